"""What an answer did, compared with what the reference did: plain data, as it came from the ranks.

Runs on the process that judges, the notebook's kernel or a marking process, and is called by
judging.py. Nothing here calls a method of a student's object: none arrives, see observed.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from distlab.checking.exercises import Exercise, returned_and_arguments
from distlab.checking.observed import Observed
from distlab.checking.reasons import ComparedPart, Path, name_of, reason_for
from distlab.checking.values import alike, are_dicts, are_sequences, words_of
from distlab.simulated.events import NotedEvent

# paths in the value of `returned_and_arguments`
RETURNED: Path = (0,)
FIRST_ARGUMENT: Path = (1, 0)


@dataclass(frozen=True)
class Outcome:
    """The outcome of one call on one rank.

    Attributes:
        right: whether the answer did what the reference did.
        given: the arguments, in words.
        expected: one value as the reference left it, in words: the first that is wrong, if one is.
        actual: the same value as the answer left it.
        why: what is wrong, if that can be said in general; else "".
        size: of the first tensor among the arguments: elements, and bytes of each.
        events: what the answer sent and received.
        printed: the beginning of what it printed.
    """

    right: bool
    given: str
    expected: str
    actual: str
    why: str
    size: tuple[int, int]
    events: list[NotedEvent]
    printed: str


def compare(
    exercise: Exercise, expected: Sequence[Observed], actual: Sequence[Observed]
) -> list[Outcome]:
    """The outcome on each rank, of a call of the reference and the same call of the answer.

    Where the reference has None on every rank, an answer may have anything. Where it has None on
    some ranks only, as a function that returns its result on rank 0, an answer has None there, too.
    """
    somewhere: set[Path] = set()
    for one in expected:
        somewhere.update(_paths(one.value))
    calls = list(zip(expected, actual, strict=True))
    writes = any(_writes_wrong_values(exercise, wanted, found) for wanted, found in calls)
    outcomes = []
    for wanted, found in calls:
        outcomes.append(_on_rank(exercise, wanted, found, somewhere, len(calls), writes))
    return outcomes


def _writes_wrong_values(exercise: Exercise, expected: Observed, actual: Observed) -> bool:
    """Whether an answer has changed an argument on a rank, and not as the reference has."""
    if exercise.trial is not returned_and_arguments:
        return False
    # otherwise nothing is known of the arguments
    if not are_sequences(expected.value, actual.value):
        return False
    _, wanted = expected.value
    _, found = actual.value
    for before, right, after in zip(expected.given, wanted, found, strict=False):
        if not alike(before, after) and not alike(right, after):
            return True
    return False


def _on_rank(
    exercise: Exercise,
    expected: Observed,
    actual: Observed,
    somewhere: set[Path],
    n: int,
    writes: bool,
) -> Outcome:
    """The outcome on one rank.

    Args:
        exercise: what was called.
        expected: what the reference did.
        actual: what the answer did.
        somewhere: the paths at which the reference has a value on any rank.
        n: the number of ranks.
        writes: as for `reason_for`.
    """
    parts = []
    for part in _comparable_parts(expected.value, actual.value):
        if part.wanted is not None or part.path in somewhere:
            parts.append(part)
    shown = _part_to_show(parts)
    why = ""
    if not shown.right:
        returns = RETURNED in somewhere
        why = reason_for(exercise, shown, expected, n, returns=returns, writes=writes)
    return Outcome(
        right=shown.right,
        given=words_of(expected.given),
        expected=_named(shown.wanted, exercise, shown.path, somewhere),
        actual=_named(shown.found, exercise, shown.path, somewhere),
        why=why,
        size=_size_of_first_tensor(expected.given),
        events=actual.events,
        printed=actual.printed,
    )


def _named(value: Any, exercise: Exercise, path: Path, somewhere: set[Path]) -> str:
    """A value in words; an argument has its name where the function could be expected to return.

    So nobody takes an argument that must not change for a result.
    """
    name = name_of(exercise, path)
    if not name or (RETURNED not in somewhere and path == FIRST_ARGUMENT):
        return words_of(value)
    return f"{name} = {words_of(value)}"


def _part_to_show(parts: Sequence[ComparedPart]) -> ComparedPart:
    """The part that a verdict shows: the first that is wrong, or else the first with a value."""
    for part in parts:
        if not part.right:
            return part
    for part in parts:
        if part.wanted is not None:
            return part
    return parts[0] if parts else ComparedPart((), None, None)


def _size_of_first_tensor(given: tuple[Any, ...]) -> tuple[int, int]:
    """The elements of the first tensor among the arguments, and the bytes of each."""
    for value in given:
        if isinstance(value, Tensor):
            return value.numel(), value.element_size()
    return 0, 0


def _paths(value: Any, path: Path = ()) -> Iterator[Path]:
    """The path of everything in a value that is not None, itself included."""
    if value is None:
        return
    yield path
    if isinstance(value, (list, tuple)):
        for number, part in enumerate(value):
            yield from _paths(part, (*path, number))
    elif isinstance(value, dict):
        for key, part in value.items():
            yield from _paths(part, (*path, key))


def _comparable_parts(expected: Any, actual: Any, path: Path = ()) -> Iterator[ComparedPart]:
    """What has to be alike: the parts of sequences of equal length, and of dicts of equal keys.

    A sequence of plain values is one part, because it is shown as a whole.
    """
    if are_sequences(expected, actual):
        if _is_shown_as_a_whole(expected):
            yield ComparedPart(path, list(expected), list(actual))
            return
        for place in range(len(expected)):
            yield from _comparable_parts(expected[place], actual[place], (*path, place))
    elif are_dicts(expected, actual):
        for key in expected:
            yield from _comparable_parts(expected[key], actual[key], (*path, key))
    else:
        yield ComparedPart(path, expected, actual)


def _is_shown_as_a_whole(sequence: Sequence[Any]) -> bool:
    return all(isinstance(part, (int, float, str)) for part in sequence)
