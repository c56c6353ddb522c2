"""What an answer did, compared with what the reference did: plain data, as it came from the ranks.

Runs on the process that judges, the notebook's kernel or a marking process, and is called by
judging.py. Nothing here calls a method of a student's object: there are none, see observed.py.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy
import torch
from torch import Tensor

from distlab.checking.exercises import Exercise, Seen, outcome, returned
from distlab.checking.observed import Observed, Other, Record
from distlab.simulated.events import Event

ANOTHER_ORDER = "These are the right values in the wrong order."
MOST_VALUES = 12  # of a tensor or list that are shown
NUMBERS = (int, float)
Path = tuple[Any, ...]


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
    events: list[Event]
    printed: str


def compared(
    exercise: Exercise, expected: Sequence[Observed], actual: Sequence[Observed]
) -> list[Outcome]:
    """The outcome on each rank, of one call of the reference and one of the answer with the same
    arguments.

    Where the reference has None on every rank, an answer may have anything. Where it has None on
    some ranks only, as a function that returns its result on rank 0, an answer has None there, too.
    """
    somewhere = {path for one in expected for path in _paths(one.value)}
    return [
        _on_rank(exercise, *pair, somewhere, len(expected))
        for pair in zip(expected, actual, strict=True)
    ]


def _on_rank(
    exercise: Exercise, expected: Observed, actual: Observed, somewhere: set[Path], n: int
) -> Outcome:
    before = expected.given
    found = [
        (path, wanted, got)
        for path, wanted, got in _pairs(expected.value, actual.value)
        if wanted is not None or path in somewhere
    ]
    pairs = found or [((), None, None)]
    # of a rank that is right
    shown = next((pair for pair in pairs if pair[1] is not None), pairs[0])
    path, wanted, got = next((pair for pair in pairs if not _alike(*pair[1:])), shown)
    size = next(((t.numel(), t.element_size()) for t in before if isinstance(t, Tensor)), (0, 0))
    right = _alike(wanted, got)
    why = "" if right else _reason(exercise, path, wanted, got, expected, n)
    return Outcome(
        right, _words(before), _words(wanted), _words(got), why, size, actual.events, actual.printed
    )


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


def _pairs(expected: Any, actual: Any, path: Path = ()) -> Iterator[tuple[Path, Any, Any]]:
    """What has to be alike, and its path: parts of sequences and dicts of equal length."""
    sequences = all(isinstance(value, (list, tuple)) for value in (expected, actual)) and len(
        expected
    ) == len(actual)
    dicts = (
        isinstance(expected, dict) and isinstance(actual, dict) and expected.keys() == actual.keys()
    )
    if sequences and all(isinstance(part, (int, float, str)) for part in expected):
        yield path, list(expected), list(actual)
    elif sequences or dicts:
        for key in expected if dicts else range(len(expected)):
            yield from _pairs(expected[key], actual[key], (*path, key))
    else:
        yield path, expected, actual


def _reason(
    exercise: Exercise, path: Path, wanted: Any, got: Any, expected: Observed, n: int
) -> str:
    """Which value is wrong, and what is wrong with it; "" if neither can be said."""
    where = _where(exercise, path, wanted, expected)
    if where.endswith("change."):
        return where
    # where nothing is sent, their number has nothing to do with it
    ranks = n if expected.events else 0
    return f"{where} {_why(wanted, got, expected.given, _part(exercise, path), ranks)}".strip()


def _part(exercise: Exercise, path: Path) -> str:
    """Whether a path is of what is returned, or of an argument afterwards; "" where a trial made
    the value.
    """
    if exercise.trial is returned:
        return "returned"
    if exercise.trial is not outcome or not path:
        return ""
    return "an argument" if path[0] else "returned"


def _where(exercise: Exercise, path: Path, wanted: Any, expected: Observed) -> str:
    """Which part of a result, or which argument afterwards, is wrong; "" if that is obvious."""
    if exercise.trial is not outcome or len(path) < 2:
        return ""
    is_argument, first, *rest = path
    keys = "".join(f"[{key!r}]" for key in (rest if is_argument else (first, *rest)))
    if not is_argument:
        return f"This is {keys} of what is returned."
    name = f"`{list(inspect.signature(exercise.function).parameters)[first]}{keys}`"
    if expected.value[0] is not None and not rest and _alike(wanted, expected.given[first]):
        return f"{name} must not change."
    return f"This is {name} afterwards." if rest else ""


def _alike(expected: Any, actual: Any) -> bool:
    """Whether two values are equal, except for rounding: first their types, in which only an int
    may be a float.
    """
    if isinstance(expected, Tensor):
        return isinstance(actual, Tensor) and _alike_tensors(expected, actual)
    if isinstance(expected, (list, tuple)):
        same = isinstance(actual, (list, tuple)) and len(expected) == len(actual)
        return same and all(map(_alike, expected, actual))
    if type(expected) in NUMBERS and type(actual) in NUMBERS:
        if type(expected) is float:
            both_nan = math.isnan(expected) and math.isnan(actual)
            return both_nan or math.isclose(expected, actual, rel_tol=1e-5, abs_tol=1e-8)
        return expected == actual
    if type(expected) is not type(actual):
        return False
    if isinstance(expected, dict):
        return expected.keys() == actual.keys() and all(
            _alike(expected[key], actual[key]) for key in expected
        )
    if isinstance(expected, Record):
        return expected.kind == actual.kind and _alike(expected.fields, actual.fields)
    if isinstance(expected, numpy.ndarray):
        return (
            expected.shape == actual.shape
            and expected.dtype == actual.dtype
            and bool((expected == actual).all())
        )
    return bool(expected == actual)


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
    """What is wrong with a value, in a sentence that is true in any exercise; "" if there is none."""
    if isinstance(actual, Seen):
        return actual.why
    if actual is None:
        return "Nothing is returned: is a `return` missing? (`dist.all_reduce` and the like return nothing themselves.)"
    if expected is None:
        return (
            "Nothing should be returned here."
            if part == "returned"
            else "There should be nothing here."
        )
    if isinstance(expected, Tensor) and isinstance(actual, Tensor):
        return _why_tensor(expected, actual, given, part, n)
    if isinstance(expected, list) and isinstance(actual, list):
        if len(actual) != len(expected):
            return f"Its length should be {len(expected)}, not {len(actual)}."
        if any(isinstance(part, Tensor) for part in actual):
            return "It should hold numbers, not tensors: `item()` turns a tensor into a number."
        return ANOTHER_ORDER if sorted(map(repr, expected)) == sorted(map(repr, actual)) else ""
    if type(actual) is type(expected) or (
        isinstance(actual, (int, float)) and not isinstance(expected, Tensor)
    ):
        return ""
    return f"Its type should be {_type(expected)}, not {_type(actual)}."


def _type(value: Any) -> str:
    """The name of a value's type on its rank."""
    return value.kind if isinstance(value, (Other, Record)) else type(value).__name__


def _why_tensor(expected: Tensor, actual: Tensor, given: tuple[Any, ...], part: str, n: int) -> str:
    if actual.shape != expected.shape:
        return f"The shape should be {tuple(expected.shape)}, not {tuple(actual.shape)}."
    if actual.dtype != expected.dtype:
        return f"The dtype should be {expected.dtype}, not {actual.dtype}.".replace("torch.", "")
    parts = [part for one in given for part in (one.values() if isinstance(one, dict) else [one])]
    if any(isinstance(part, Tensor) and _alike(part, actual) for part in parts):
        if part == "returned":
            return "What is returned is a tensor as it was given."
        return "The tensor is unchanged: the result has to be written into it."
    if bool(actual.isfinite().all() < expected.isfinite().all()):
        return "Some values are infinite or NaN: is one too large for its dtype, or divided by 0?"
    for factor in range(2, 17):
        also = f", and there are {n} ranks" if factor == n else ""
        if _alike(expected * factor, actual):
            return f"Every value is {factor} times too large{also}."
        if expected.is_floating_point() and _alike(expected, actual * factor):
            return f"Every value is {factor} times too small{also}."
    if not expected.is_complex() and _alike(
        *(part.flatten().sort().values for part in (expected, actual))
    ):
        return ANOTHER_ORDER
    wrong = (expected != actual).flatten().nonzero().flatten().tolist()
    if len(wrong) == expected.numel():
        return ""
    return f"{len(wrong)} of {expected.numel()} values are wrong, the first at index {wrong[0]}."


def _words(value: Any) -> str:
    """A value in few characters."""
    if isinstance(value, Tensor):
        shown = _words(value.flatten()[: MOST_VALUES + 1].tolist() if value.ndim else value.item())
        return shown if value.ndim < 2 else f"{tuple(value.shape)}: {shown}"
    if isinstance(value, tuple) and len(value) < 2:
        return "".join(map(_words, value))
    if isinstance(value, (list, tuple)):
        more = ["..."] if len(value) > MOST_VALUES else []
        return f"[{', '.join([*map(_words, value[:MOST_VALUES]), *more])}]"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, Record):
        return f"{value.kind}({', '.join(f'{name}={_words(part)}' for name, part in value.fields.items())})"
    if isinstance(value, Other):
        value = Seen(value.words)
    text = str(value) if isinstance(value, Seen) else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
