"""Values that came from ranks: whether two are equal, and what they are called in few characters.

Runs on the process that judges, and is called by comparing.py and reasons.py. The values are those
of observed.py: plain data, so that nothing here calls a method of a student's object.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy
import torch
from torch import Tensor

from distlab.checking.exercises import Seen
from distlab.checking.observed import Other, Record

MOST_VALUES = 12  # of a tensor or list that are shown
MOST_LETTERS = 60  # of any other value
NUMBER_TYPES = (int, float)
# numbers of a tensor that are compared at a time: they stay in the cache, one thread compares them,
# and the first wrong piece ends the comparison
PIECE = 1 << 14


def are_sequences(expected: Any, actual: Any) -> bool:
    """Whether both are sequences of the same length."""
    both = isinstance(expected, (list, tuple)) and isinstance(actual, (list, tuple))
    return both and len(expected) == len(actual)


def are_dicts(expected: Any, actual: Any) -> bool:
    """Whether both are dicts with the same keys."""
    both = isinstance(expected, dict) and isinstance(actual, dict)
    return both and expected.keys() == actual.keys()


def alike(expected: Any, actual: Any) -> bool:
    """Whether two values are equal, except for rounding.

    Their types have to be the same, too, except that an int may be a float.
    """
    if isinstance(expected, Tensor):
        return isinstance(actual, Tensor) and _alike_tensors(expected, actual)
    if isinstance(expected, (list, tuple)):
        return are_sequences(expected, actual) and all(map(alike, expected, actual))
    if type(expected) in NUMBER_TYPES and type(actual) in NUMBER_TYPES:
        return _alike_numbers(expected, actual)
    if type(expected) is not type(actual):
        return False
    if isinstance(expected, dict):
        return _alike_dicts(expected, actual)
    if isinstance(expected, Record):
        return expected.kind == actual.kind and _alike_dicts(expected.fields, actual.fields)
    if isinstance(expected, numpy.ndarray):
        return _alike_arrays(expected, actual)
    return bool(expected == actual)


def _alike_dicts(expected: dict[Any, Any], actual: dict[Any, Any]) -> bool:
    if expected.keys() != actual.keys():
        return False
    return all(alike(value, actual[key]) for key, value in expected.items())


def _alike_arrays(expected: numpy.ndarray, actual: numpy.ndarray) -> bool:
    if expected.shape != actual.shape or expected.dtype != actual.dtype:
        return False
    return bool((expected == actual).all())


def _alike_numbers(expected: float, actual: float) -> bool:
    if isinstance(expected, int):
        return expected == actual
    try:
        if math.isnan(expected) and math.isnan(actual):
            return True
        return math.isclose(expected, actual, rel_tol=1e-5, abs_tol=1e-8)
    except OverflowError:  # an int that is larger than any float
        return False


def _alike_tensors(expected: Tensor, actual: Tensor) -> bool:
    if actual.shape != expected.shape or actual.dtype != expected.dtype:
        return False
    if not expected.is_floating_point():
        return torch.equal(expected, actual)
    digits = 1e-2 if expected.element_size() < 4 else 1e-5
    wanted = expected.flatten().split(PIECE)
    found = actual.flatten().split(PIECE)
    pieces = zip(wanted, found, strict=True)
    return all(_alike_pieces(one, other, digits) for one, other in pieces)


def _alike_pieces(expected: Tensor, actual: Tensor, digits: float) -> bool:
    """Whether numbers are equal, or differ in digits beyond these."""
    if torch.equal(expected, actual):  # as most answers that are right
        return True
    wanted = expected.double()
    found = actual.double()
    return torch.allclose(found, wanted, rtol=digits, atol=digits, equal_nan=True)


def words_of(value: Any) -> str:
    """A value in few characters."""
    if isinstance(value, Tensor):
        return _words_of_tensor(value)
    if isinstance(value, tuple) and len(value) < 2:
        return "".join(map(words_of, value))
    if isinstance(value, (list, tuple)):
        return _words_of_sequence(value)
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, Record):
        return _words_of_record(value)
    if isinstance(value, Other):
        return _cut_off(value.words)
    if isinstance(value, Seen):
        return _cut_off(str(value))
    return _cut_off(repr(value))


def _words_of_record(record: Record) -> str:
    fields = []
    for name, value in record.fields.items():
        fields.append(f"{name}={words_of(value)}")
    inside = ", ".join(fields)
    return f"{record.kind}({inside})"


def _words_of_sequence(values: Sequence[Any]) -> str:
    words = [words_of(value) for value in values[:MOST_VALUES]]
    if len(values) > MOST_VALUES:
        words.append("...")
    inside = ", ".join(words)
    return f"[{inside}]"


def _words_of_tensor(tensor: Tensor) -> str:
    if tensor.ndim == 0:
        return words_of(tensor.item())
    first_values = tensor.flatten()[: MOST_VALUES + 1]
    values = words_of(first_values.tolist())
    if tensor.ndim == 1:
        return values
    return f"{tuple(tensor.shape)}: {values}"


def _cut_off(text: str) -> str:
    if len(text) <= MOST_LETTERS:
        return text
    return f"{text[: MOST_LETTERS - 3]}..."
