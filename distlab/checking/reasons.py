"""What is wrong with a value of an answer, in a sentence that is true in any exercise.

Runs on the process that judges, and is called by comparing.py, with plain data as it came from the
ranks.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from torch import Tensor

from distlab.checking.exercises import Exercise, Seen, returned, returned_and_arguments
from distlab.checking.observed import Observed, Other, Record
from distlab.checking.values import alike

ANOTHER_ORDER = "These are the right values in the wrong order."
NOTHING_RETURNED = (
    "Nothing is returned: is a `return` missing? "
    "(`dist.all_reduce` and the like return nothing themselves.)"
)
# by the kind of a _Place: what is said of a tensor that is equal to one that was given
AS_GIVEN = {
    "returned": "It returns the values that it was given.",
    "an argument": "The tensor is unchanged, but the result has to be written into it.",
    "": "These are still the values that were given. Is the result written where it is wanted?",
}
MOST_TIMES = 16  # the largest factor by which all values may be wrong that is looked for
Path = tuple[Any, ...]  # to a part of a value: indices and keys


@dataclass(frozen=True)
class ComparedPart:
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
        return alike(self.wanted, self.found)


def reason_for(
    exercise: Exercise,
    part: ComparedPart,
    expected: Observed,
    n: int,
    *,
    returns: bool,
    writes: bool,
) -> str:
    """What is wrong with a value, and which one it is; "" if neither can be said.

    Args:
        exercise: what was called.
        part: the value.
        expected: what the reference did.
        n: the number of ranks.
        returns: whether the reference returns something on any rank.
        writes: whether the answer has written a wrong value into an argument on any rank.
    """
    place = _Place.of(exercise, part.path)
    if returns and _must_not_change(place, part, expected):
        return f"`{name_of(exercise, part.path)}` must not change."
    # where nothing is sent, the number of ranks has nothing to do with it
    ranks = n if expected.events else 0
    why = _why(part.wanted, part.found, expected.given, place.kind, ranks)
    if writes and why == AS_GIVEN["an argument"]:
        return ""  # it does write: by chance the values on this rank stay as they are
    if place.kind == "returned" and place.keys:
        return f"This is {_in_brackets(place.keys)} of the returned value. {why}".strip()
    return why


def name_of(exercise: Exercise, path: Path) -> str:
    """The name of an argument, or of a part of one: "tensors['a']"; "" for any other value."""
    place = _Place.of(exercise, path)
    if place.argument is None:
        return ""
    parameters = list(inspect.signature(exercise.function).parameters)
    return parameters[place.argument] + _in_brackets(place.keys)


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


def _must_not_change(place: _Place, part: ComparedPart, expected: Observed) -> bool:
    """Whether a part is an argument that the reference leaves as it was."""
    if place.argument is None or place.keys:
        return False
    return alike(part.wanted, expected.given[place.argument])


def _in_brackets(keys: Sequence[Any]) -> str:
    return "".join(f"[{key!r}]" for key in keys)


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
    if type(actual) is type(expected):
        return ""
    if isinstance(actual, (int, float)) and not isinstance(expected, Tensor):
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
    if isinstance(value, (Other, Record)):
        return value.kind
    return type(value).__name__


def _why_tensor(expected: Tensor, actual: Tensor, given: tuple[Any, ...], part: str, n: int) -> str:
    if actual.shape != expected.shape:
        return f"The shape should be {tuple(expected.shape)}, not {tuple(actual.shape)}."
    if actual.dtype != expected.dtype:
        return f"The dtype should be {expected.dtype}, not {actual.dtype}.".replace("torch.", "")
    as_given = any(alike(tensor, actual) for tensor in _tensors_of(given))
    if as_given:
        return AS_GIVEN[part]
    if _is_finite(expected) and not _is_finite(actual):
        return "Some values are infinite or NaN: is one too large for its dtype, or divided by 0?"
    factor = _why_factor(expected, actual, n)
    if factor:
        return factor
    if not expected.is_complex() and alike(_in_order(expected), _in_order(actual)):
        return ANOTHER_ORDER
    differs = (expected != actual).flatten()
    wrong = differs.nonzero().flatten().tolist()
    if len(wrong) == expected.numel():
        return ""
    return f"{len(wrong)} of {expected.numel()} values are wrong, the first at index {wrong[0]}."


def _is_finite(tensor: Tensor) -> bool:
    return bool(tensor.isfinite().all())


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
        if alike(expected * factor, actual):
            return f"Every value is {factor} times too large{also}."
        if expected.is_floating_point() and alike(expected, actual * factor):
            return f"Every value is {factor} times too small{also}."
    return ""


def _in_order(tensor: Tensor) -> Tensor:
    return tensor.flatten().sort().values
