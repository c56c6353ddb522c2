"""What one call of a function did on one rank, read from bytes by the process that judges.

`from_bytes` is called by judging.py's callers; the rank has written the bytes with packing.py. They
are JSON of known types, so that reading them runs no code, whoever wrote them.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy
import torch
from torch import Tensor

from distlab.checking.exercises import Seen
from distlab.simulated import events
from distlab.simulated.events import Callback, NotedEvent
from distlab.wire.pickling import read_plain_only as read_plain_only  # for the course's runner

KINDS_OF_NUMBERS = "biufc"  # of numpy's dtypes
# by name, those that have no events inside
EVENTS: dict[str, Callable[..., NotedEvent]] = {
    "Compute": events.Compute,
    "PointToPoint": events.PointToPoint,
    "CollectiveCall": events.CollectiveCall,
    "Wait": events.Wait,
    "Align": events.Align,
}


@dataclass(frozen=True)
class Other:
    """What arrives in place of a value whose type does not travel.

    Attributes:
        kind: the name of its type.
        words: its repr without addresses.
    """

    kind: str
    words: str


@dataclass(frozen=True)
class Record:
    """An instance of a dataclass.

    Attributes:
        kind: the name of its class.
        fields: by name.
    """

    kind: str
    fields: dict[str, Any]


@dataclass(frozen=True)
class Observed:
    """What one call of a function did on one rank.

    Attributes:
        value: what the trial returned.
        given: the arguments, before the call; () for an answer, as they are those of the reference.
        events: what the rank sent and received.
        printed: the beginning of what the function printed.
        changed: a function of torch, Python or distlab that is another one than before the answer
            came; "" for none.
    """

    value: Any
    given: tuple[Any, ...]
    events: list[NotedEvent]
    printed: str
    changed: str = ""


def from_bytes(data: bytes) -> Observed:
    """What a rank wrote. Runs on: the process that judges.

    Raises:
        ValueError: `to_bytes` has not written that.
    """
    try:
        found = json.loads(data)
        if not isinstance(found["printed"], str) or not isinstance(found["changed"], str):
            raise ValueError("what was printed or changed is not a text")
        return Observed(
            value=unpacked(found["value"]),
            given=unpacked(found["given"]),
            events=[_unpacked_event(event) for event in found["events"]],
            printed=found["printed"],
            changed=found["changed"],
        )
    except (KeyError, IndexError, TypeError, AttributeError, RuntimeError, RecursionError) as error:
        raise ValueError(f"what a rank sent cannot be read: {error}") from error


# --- values ---


def unpacked(value: Any) -> Any:
    """A value from JSON. Runs on: the process that judges.

    Raises:
        ValueError, KeyError, TypeError, IndexError, RuntimeError: that is not a packed value.
    """
    kind, *parts = value
    return _UNPACK[kind](*parts)


def _unpacked_plain(value: Any) -> Any:
    if value is not None and type(value) not in (bool, int, float, str):
        raise ValueError("a plain value is None, a bool, a number or a text")
    return value


def _text(value: Any) -> str:
    if type(value) is not str:
        raise ValueError("a text is expected")
    return value


def _unpacked_seen(words: str, why: str) -> Seen:
    return Seen(_text(words), _text(why))


def _unpacked_bytes(text: str) -> bytes:
    """The bytes that packing.py has written as a text."""
    return base64.b64decode(_text(text))


def _unpacked_bytearray(text: str) -> bytearray:
    return bytearray(_unpacked_bytes(text))


def _unpacked_list(parts: list[Any]) -> list[Any]:
    return [unpacked(part) for part in parts]


def _unpacked_tuple(parts: list[Any]) -> tuple[Any, ...]:
    return tuple(_unpacked_list(parts))


def _unpacked_dict(pairs: list[Any]) -> dict[Any, Any]:
    return {_key(key): unpacked(part) for key, part in pairs}


def _unpacked_set(parts: list[Any]) -> set[Any]:
    return {_key(part) for part in parts}


def _unpacked_frozenset(parts: list[Any]) -> frozenset[Any]:
    return frozenset(_unpacked_set(parts))


def _unpacked_record(kind: str, fields: dict[str, Any]) -> Record:
    values = {name: unpacked(part) for name, part in fields.items()}
    return Record(_text(kind), values)


def _unpacked_other(kind: str, words: str) -> Other:
    return Other(_text(kind), _text(words))


def _unpacked_tensor(dtype: str, shape: list[int], memory: str) -> Tensor:
    kind = getattr(torch, _text(dtype))
    if not isinstance(kind, torch.dtype):
        raise ValueError("that is not a dtype of torch")
    data = _unpacked_bytearray(memory)
    sizes = _checked_sizes(shape)
    if not data:
        return torch.empty(sizes, dtype=kind)
    return torch.frombuffer(data, dtype=kind).reshape(sizes)


def _unpacked_array(dtype: str, shape: list[int], memory: str) -> numpy.ndarray:
    kind = numpy.dtype(_text(dtype))
    if kind.kind not in KINDS_OF_NUMBERS:
        raise ValueError("that is not an array of numbers")
    data = numpy.frombuffer(_unpacked_bytes(memory), kind)
    return data.reshape(_checked_sizes(shape)).copy()


def _checked_sizes(shape: list[Any]) -> list[int]:
    return [_checked_size(size) for size in shape]


def _checked_size(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError("a size is a whole number of 0 or more")
    return value


# by the first word of a packed value; the others are the arguments
_UNPACK: dict[str, Callable[..., Any]] = {
    "plain": _unpacked_plain,
    "seen": _unpacked_seen,
    "complex": complex,
    "bytes": _unpacked_bytes,
    "bytearray": _unpacked_bytearray,
    "list": _unpacked_list,
    "tuple": _unpacked_tuple,
    "dict": _unpacked_dict,
    "set": _unpacked_set,
    "frozenset": _unpacked_frozenset,
    "record": _unpacked_record,
    "tensor": _unpacked_tensor,
    "array": _unpacked_array,
    "other": _unpacked_other,
}


def _key(value: Any) -> Any:
    """A key of a dict, or a member of a set.

    Where the value itself cannot be one, its JSON stands for it. That includes a tensor, whose own
    hash says nothing of its numbers.
    """
    found = unpacked(value)
    if isinstance(found, Tensor):
        return json.dumps(value)
    try:
        hash(found)
    except TypeError:
        return json.dumps(value)
    return found


# --- events ---


def _unpacked_event(data: list[Any]) -> NotedEvent:
    name, *values = data
    if name == Callback.__name__:
        op, after, inner = values
        events_inside = [_unpacked_event(event) for event in inner]
        return Callback(_checked_size(op), _checked_size(after), events_inside)
    fields = []
    for value in values:
        if isinstance(value, list):
            fields.append(tuple([_plain_part(part) for part in value]))
        else:
            fields.append(_plain_part(value))
    return EVENTS[name](*fields)


def _plain_part(value: Any) -> Any:
    if value is not None and not isinstance(value, (bool, int, float, str)):
        raise ValueError("an event has plain values, or lists of them")
    return value
