"""What an answer did, compared with what the reference did: plain data, as it came from the ranks.

Runs on the process that judges, the notebook's kernel or a marking process, and is called by
judging.py. Nothing here calls a method of a student's object: there are none, see observed.py.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy
import torch
from torch import Tensor

from distlab.checking.exercises import Exercise, Seen, returned, returned_and_arguments
from distlab.checking.observed import Observed, Other, Record
from distlab.simulated.events import NotedEvent

ANOTHER_ORDER = "These are the right values in the wrong order."
NOTHING_RETURNED = (
    "Nothing is returned: is a `return` missing? "
    "(`dist.all_reduce` and the like return nothing themselves.)"
)
MOST_VALUES = 12  # of a tensor or list that are shown
MOST_LETTERS = 60  # of any other value
MOST_TIMES = 16  # the largest factor by which all values may be wrong that is looked for
NUMBER_TYPES = (int, float)
Path = tuple[Any, ...]  # to a part of a value: indices and keys


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


def compared(
    exercise: Exercise, expected: Sequence[Observed], actual: Sequence[Observed]
) -> list[Outcome]:
    """The outcome on each rank, of a call of the reference and the same call of the answer.

    Where the reference has None on every rank, an answer may have anything. Where it has None on
    some ranks only, as a function that returns its result on rank 0, an answer has None there, too.
    """
    somewhere: set[Path] = set()
    for one in expected:
        somewhere.update(_paths(one.value))
    n = len(expected)
    outcomes = []
    for wanted, found in zip(expected, actual, strict=True):
        outcomes.append(_on_rank(exercise, wanted, found, somewhere, n))
    return outcomes


@dataclass(frozen=True)
class _Part:
    """A part of what a call did that has to be alike.

    Attributes:
        path: where it is, as indices and keys.
        wanted: what the reference has there.
        found: what the answer has there.
    """

    path: Path
    wanted: Any
    found: Any

    @cached_property
    def right(self) -> bool:
        return _alike(self.wanted, self.found)


def _on_rank(
    exercise: Exercise, expected: Observed, actual: Observed, somewhere: set[Path], n: int
) -> Outcome:
    """The outcome on one rank.

    Args:
        exercise: what was called.
        expected: what the reference did.
        actual: what the answer did.
        somewhere: the paths at which the reference has a value on any rank.
        n: the number of ranks.
    """
    parts = []
    for part in _comparable_parts(expected.value, actual.value):
        if part.wanted is not None or part.path in somewhere:
            parts.append(part)
    shown = _part_to_show(parts)
    why = ""
    if not shown.right:
        why = _reason(exercise, shown, expected, n)
    return Outcome(
        right=shown.right,
        given=_words(expected.given),
        expected=_words(shown.wanted),
        actual=_words(shown.found),
        why=why,
        size=_size_of_first_tensor(expected.given),
        events=actual.events,
        printed=actual.printed,
    )


def _part_to_show(parts: Sequence[_Part]) -> _Part:
    """The part that a verdict shows: the first that is wrong, or else the first with a value."""
    for part in parts:
        if not part.right:
            return part
    for part in parts:
        if part.wanted is not None:
            return part
    return parts[0] if parts else _Part((), None, None)


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


def _comparable_parts(expected: Any, actual: Any, path: Path = ()) -> Iterator[_Part]:
    """What has to be alike: the parts of sequences of equal length, and of dicts of equal keys.

    A sequence of plain values is one part, because it is shown as a whole.
    """
    if _are_sequences(expected, actual):
        if _is_shown_as_a_whole(expected):
            yield _Part(path, list(expected), list(actual))
            return
        for place in range(len(expected)):
            yield from _comparable_parts(expected[place], actual[place], (*path, place))
    elif _are_dicts(expected, actual):
        for key in expected:
            yield from _comparable_parts(expected[key], actual[key], (*path, key))
    else:
        yield _Part(path, expected, actual)


def _is_shown_as_a_whole(sequence: Sequence[Any]) -> bool:
    return all(isinstance(part, (int, float, str)) for part in sequence)


def _are_sequences(expected: Any, actual: Any) -> bool:
    """Whether both are sequences of the same length."""
    both = isinstance(expected, (list, tuple)) and isinstance(actual, (list, tuple))
    return both and len(expected) == len(actual)


def _are_dicts(expected: Any, actual: Any) -> bool:
    """Whether both are dicts with the same keys."""
    both = isinstance(expected, dict) and isinstance(actual, dict)
    return both and expected.keys() == actual.keys()


def _reason(exercise: Exercise, part: _Part, expected: Observed, n: int) -> str:
    """Which value is wrong, and what is wrong with it; "" if neither can be said."""
    place = _Place.of(exercise, part.path)
    name = ""
    if place.argument is not None:
        parameters = list(inspect.signature(exercise.function).parameters)
        name = f"`{parameters[place.argument]}{_in_brackets(place.keys)}`"
    if _must_not_change(place, part, expected):
        return f"{name} must not change."
    # where nothing is sent, the number of ranks has nothing to do with it
    ranks = n if expected.events else 0
    why = _why(part.wanted, part.found, expected.given, place.kind, ranks)
    if not place.keys:
        return why
    where = f"{name} afterwards"
    if place.argument is None:
        where = f"{_in_brackets(place.keys)} of what is returned"
    return f"This is {where}. {why}".strip()


class _Place(NamedTuple):
    """Where a part is in what a call did.

    Attributes:
        kind: "returned", or "an argument" afterwards; "" where a trial made the value.
        argument: the number of the argument; None if the part is none, or of all of them.
        keys: indices and keys to the part, in what is returned or in the argument.
    """

    kind: str
    argument: int | None = None
    keys: Path = ()

    @classmethod
    def of(cls, exercise: Exercise, path: Path) -> _Place:
        """The place that a path leads to, in the value that the exercise's trial has made."""
        if exercise.trial is returned:
            return cls("returned")  # its parts need no name
        if exercise.trial is not returned_and_arguments or not path:
            return cls("")
        # `returned_and_arguments` makes (what is returned, the arguments)
        is_argument, *keys = path
        if not is_argument:
            return cls("returned", keys=tuple(keys))
        if not keys:
            return cls("an argument")
        return cls("an argument", keys[0], tuple(keys[1:]))


def _must_not_change(place: _Place, part: _Part, expected: Observed) -> bool:
    """Whether a part is an argument that the reference leaves as it was, and returns a result."""
    if place.argument is None or place.keys:
        return False
    returned_value, _ = expected.value
    unchanged = _alike(part.wanted, expected.given[place.argument])
    return returned_value is not None and unchanged


def _in_brackets(keys: Sequence[Any]) -> str:
    return "".join(f"[{key!r}]" for key in keys)


def _alike(expected: Any, actual: Any) -> bool:
    """Whether two values are equal, except for rounding.

    Their types have to be the same, too, except that an int may be a float.
    """
    if isinstance(expected, Tensor):
        return isinstance(actual, Tensor) and _alike_tensors(expected, actual)
    if isinstance(expected, (list, tuple)):
        return _are_sequences(expected, actual) and all(map(_alike, expected, actual))
    if type(expected) in NUMBER_TYPES and type(actual) in NUMBER_TYPES:
        return _alike_numbers(expected, actual)
    if type(expected) is not type(actual):
        return False
    if isinstance(expected, dict):
        same_keys = expected.keys() == actual.keys()
        return same_keys and all(_alike(expected[key], actual[key]) for key in expected)
    if isinstance(expected, Record):
        return expected.kind == actual.kind and _alike(expected.fields, actual.fields)
    if isinstance(expected, numpy.ndarray):
        same_kind = expected.shape == actual.shape and expected.dtype == actual.dtype
        return same_kind and bool((expected == actual).all())
    return bool(expected == actual)


def _alike_numbers(expected: float, actual: float) -> bool:
    if isinstance(expected, int):
        return expected == actual
    if math.isnan(expected) and math.isnan(actual):
        return True
    return math.isclose(expected, actual, rel_tol=1e-5, abs_tol=1e-8)


def _alike_tensors(expected: Tensor, actual: Tensor) -> bool:
    if actual.shape != expected.shape or actual.dtype != expected.dtype:
        return False
    if not expected.is_floating_point():
        return torch.equal(expected, actual)
    digits = 1e-2 if expected.element_size() < 4 else 1e-5
    return torch.allclose(
        actual.double(), expected.double(), rtol=digits, atol=digits, equal_nan=True
    )


def _why(expected: Any, actual: Any, given: tuple[Any, ...], part: str, n: int) -> str:
    """What is wrong with a value, in a sentence that is true in any exercise; "" for none.

    Args:
        expected: the value of the reference.
        actual: the value of the answer.
        given: the arguments of the call.
        part: what the value is, see the kind of a _Place.
        n: the number of ranks; 0 if they sent nothing.
    """
    if isinstance(actual, Seen):
        return actual.why
    if actual is None:
        return NOTHING_RETURNED
    if expected is None:
        if part == "returned":
            return "Nothing should be returned here."
        return "There should be nothing here."
    if isinstance(expected, Tensor) and isinstance(actual, Tensor):
        return _why_tensor(expected, actual, given, part, n)
    if isinstance(expected, list) and isinstance(actual, list):
        return _why_list(expected, actual)
    is_number = isinstance(actual, (int, float)) and not isinstance(expected, Tensor)
    if type(actual) is type(expected) or is_number:
        return ""
    return f"Its type should be {_type(expected)}, not {_type(actual)}."


def _why_list(expected: list[Any], actual: list[Any]) -> str:
    if len(actual) != len(expected):
        return f"Its length should be {len(expected)}, not {len(actual)}."
    if any(isinstance(value, Tensor) for value in actual):
        return "It should hold numbers, not tensors: `item()` turns a tensor into a number."
    same_values = sorted(map(repr, expected)) == sorted(map(repr, actual))
    return ANOTHER_ORDER if same_values else ""


def _type(value: Any) -> str:
    """The name of a value's type on its rank."""
    return value.kind if isinstance(value, (Other, Record)) else type(value).__name__


def _why_tensor(expected: Tensor, actual: Tensor, given: tuple[Any, ...], part: str, n: int) -> str:
    if actual.shape != expected.shape:
        return f"The shape should be {tuple(expected.shape)}, not {tuple(actual.shape)}."
    if actual.dtype != expected.dtype:
        return f"The dtype should be {expected.dtype}, not {actual.dtype}.".replace("torch.", "")
    as_given = any(_alike(tensor, actual) for tensor in _tensors_of(given))
    if as_given:
        if part == "returned":
            return "What is returned is a tensor as it was given."
        return "The tensor is unchanged: the result has to be written into it."
    if bool(expected.isfinite().all()) and not bool(actual.isfinite().all()):
        return "Some values are infinite or NaN: is one too large for its dtype, or divided by 0?"
    factor = _why_factor(expected, actual, n)
    if factor:
        return factor
    if not expected.is_complex() and _alike(_in_order(expected), _in_order(actual)):
        return ANOTHER_ORDER
    differs = (expected != actual).flatten()
    wrong = differs.nonzero().flatten().tolist()
    if len(wrong) == expected.numel():
        return ""
    return f"{len(wrong)} of {expected.numel()} values are wrong, the first at index {wrong[0]}."


def _tensors_of(given: tuple[Any, ...]) -> list[Tensor]:
    """The tensors among some arguments, those in dicts included."""
    values: list[Any] = []
    for one in given:
        if isinstance(one, dict):
            values.extend(one.values())
        else:
            values.append(one)
    return [value for value in values if isinstance(value, Tensor)]


def _why_factor(expected: Tensor, actual: Tensor, n: int) -> str:
    """By which whole number all values are wrong; "" for none."""
    for factor in range(2, MOST_TIMES + 1):
        also = f", and there are {n} ranks" if factor == n else ""
        if _alike(expected * factor, actual):
            return f"Every value is {factor} times too large{also}."
        if expected.is_floating_point() and _alike(expected, actual * factor):
            return f"Every value is {factor} times too small{also}."
    return ""


def _in_order(tensor: Tensor) -> Tensor:
    return tensor.flatten().sort().values


def _words(value: Any) -> str:
    """A value in few characters."""
    if isinstance(value, Tensor):
        return _words_of_tensor(value)
    if isinstance(value, tuple) and len(value) < 2:
        return "".join(map(_words, value))
    if isinstance(value, (list, tuple)):
        return _words_of_sequence(value)
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, Record):
        fields = [f"{name}={_words(part)}" for name, part in value.fields.items()]
        return f"{value.kind}({', '.join(fields)})"
    if isinstance(value, Other):
        return _cut_off(value.words)
    if isinstance(value, Seen):
        return _cut_off(str(value))
    return _cut_off(repr(value))


def _words_of_sequence(values: Sequence[Any]) -> str:
    words = [_words(value) for value in values[:MOST_VALUES]]
    if len(values) > MOST_VALUES:
        words.append("...")
    return f"[{', '.join(words)}]"


def _words_of_tensor(tensor: Tensor) -> str:
    if tensor.ndim == 0:
        return _words(tensor.item())
    first_values = tensor.flatten()[: MOST_VALUES + 1]
    values = _words(first_values.tolist())
    if tensor.ndim == 1:
        return values
    return f"{tuple(tensor.shape)}: {values}"


def _cut_off(text: str) -> str:
    if len(text) <= MOST_LETTERS:
        return text
    return f"{text[: MOST_LETTERS - 3]}..."
