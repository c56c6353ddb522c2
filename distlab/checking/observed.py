"""What one call of a function did on one rank, as bytes on their way to the process that judges.

A rank writes it (`to_bytes`, called by trial.py), and the process that judges reads it
(`from_bytes`, called by judging.py's callers). The bytes are JSON of known types, so that reading
them runs no code, whoever wrote them. Tensors and arrays travel as their memory; subclasses of str,
int and float become plain ones. A value of any other type travels as its type's name and its repr:
it can be shown, and equals only what has both.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import re
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

MOST_BYTES = 1 << 26  # of one value
MOST_DEEP = 50  # lists in lists
MOST_DIGITS = 4000  # of an int as JSON, of which Python reads a few more
ADDRESS = re.compile(r" at 0x[0-9a-f]+")  # in a repr, another one in each process
MOST_OF_REPR = 200
TENSORS = (Tensor, torch.nn.Parameter, torch.nn.Buffer)
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
    """A value of a type that does not travel.

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
        changed: an attribute of torch or Python that is another one than before the answer came; ""
            for none.
    """

    value: Any
    given: tuple[Any, ...]
    events: list[NotedEvent]
    printed: str
    changed: str = ""


def to_bytes(
    value: Any, given: Any, happened: list[NotedEvent], printed: str, changed: str = ""
) -> bytes:
    """One call as bytes; see Observed for the arguments. `value` and `given` may be packed already.

    Runs on: a rank.
    """
    if not isinstance(value, Packed):
        value = packed(value)
    if not isinstance(given, Packed):
        given = packed(given)
    call = {
        "value": value,
        "given": given,
        "events": [_packed_event(event) for event in happened],
        # of a str of the answer's own, only the text
        "printed": str.__str__(printed),
        "changed": str.__str__(changed),
    }
    return json.dumps(call).encode()


def from_bytes(data: bytes) -> Observed:
    """What a rank wrote. Runs on: the process that judges.

    Raises:
        ValueError: these are no bytes of `to_bytes`.
    """
    try:
        found = json.loads(data)
        if not isinstance(found["printed"], str) or not isinstance(found["changed"], str):
            raise ValueError("its texts are none")
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


class Packed(list[Any]):
    """A value as JSON has it, [kind, ...].

    A value that may change later, such as an argument of the answer, is packed before.
    """


def packed(value: Any, depth: int = 0) -> Packed:
    """A value as JSON has it. Runs on: a rank."""
    if depth > MOST_DEEP:
        return Packed(["other", _name(value), "nested too deeply"])
    # a number of numpy's is the number that it holds, and its True is True
    if isinstance(value, numpy.generic) and type(value).__module__ == "numpy":
        value = value.item()
    if value is None or type(value) is bool:
        return Packed(["plain", value])
    if isinstance(value, Seen):
        return Packed(["seen", str.__str__(value), str(value.why)])
    # of a subclass only the plain value, by the method of the plain type
    if isinstance(value, str):
        return _packed_plain(str.__str__(value))
    if isinstance(value, int):
        return _packed_plain(int.__int__(value))
    if isinstance(value, float):
        return _packed_plain(float.__float__(value))
    if isinstance(value, complex):
        return Packed(["complex", value.real, value.imag])
    if isinstance(value, (bytes, bytearray)):
        return Packed([type(value).__name__, _text_of(bytes(value))])
    return _packed_container(value, depth) or _packed_memory(value) or _packed_other(value)


def _packed_plain(value: int | float | str) -> Packed:
    if isinstance(value, int) and value.bit_length() > 3 * MOST_DIGITS:
        return Packed(["other", "int", f"a number of {value.bit_length()} bits"])
    if isinstance(value, str) and len(value) > MOST_BYTES:
        return Packed(["other", "str", f"a text of {len(value)} characters"])
    return Packed(["plain", value])


def _packed_container(value: Any, depth: int) -> Packed | None:
    """A list, tuple, dict or set, or an instance of a dataclass; None for anything else."""
    if isinstance(value, (list, tuple)):
        kind = "list" if isinstance(value, list) else "tuple"
        if len(value) > MOST_BYTES // 8:
            return Packed(["other", _name(value), f"{len(value)} values"])
        return Packed([kind, [packed(part, depth + 1) for part in value]])
    if isinstance(value, dict):
        pairs = [[packed(key, depth + 1), packed(part, depth + 1)] for key, part in value.items()]
        return Packed(["dict", pairs])
    if isinstance(value, (set, frozenset)):
        parts = [packed(part, depth + 1) for part in value]
        return Packed([type(value).__name__, sorted(parts, key=json.dumps)])
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {}
        for one in dataclasses.fields(value):
            fields[one.name] = packed(getattr(value, one.name, None), depth + 1)
        return Packed(["record", _name(value), fields])
    return None


def _packed_memory(value: Any) -> Packed | None:
    """A plain tensor or array; None for anything else."""
    if type(value) is numpy.ndarray:
        if value.dtype.kind not in KINDS_OF_NUMBERS or value.nbytes > MOST_BYTES:
            return None
        return Packed(["array", value.dtype.str, list(value.shape), _text_of(value.tobytes())])
    if type(value) not in TENSORS or value.layout is not torch.strided or value.is_quantized:
        return None
    if value.device.type != "cpu" or value.numel() * value.element_size() > MOST_BYTES:
        return Packed(["other", "Tensor", f"shape {tuple(value.shape)} on {value.device}"])
    dtype = str(value.dtype).removeprefix("torch.")
    return Packed(["tensor", dtype, list(value.shape), _text_of(_memory_of(value))])


def _memory_of(tensor: Tensor) -> bytes:
    """The bytes of a tensor's elements, in their order."""
    if tensor.numel() == 0:
        return b""
    plain = tensor.detach().resolve_conj().resolve_neg()
    dense = plain.clone(memory_format=torch.contiguous_format)
    return dense.reshape(-1).view(torch.uint8).numpy().tobytes()


def _packed_other(value: Any) -> Packed:
    words = ADDRESS.sub("", str.__str__(repr(value)))
    return Packed(["other", _name(value), words[:MOST_OF_REPR]])


def _name(value: Any) -> str:
    return str(type(value).__name__)


def _text_of(memory: bytes) -> str:
    return base64.b64encode(memory).decode()


def unpacked(value: Any) -> Any:
    """A value from JSON. Runs on: the process that judges.

    Raises:
        ValueError, KeyError, TypeError, IndexError, RuntimeError: it is none.
    """
    kind, *parts = value
    return _UNPACK[kind](*parts)


def _plain(value: Any) -> Any:
    if value is not None and type(value) not in (bool, int, float, str):
        raise ValueError("a plain value is None, a bool, a number or a text")
    return value


def _text(value: Any) -> str:
    if type(value) is not str:
        raise ValueError("a text is expected")
    return value


def _tensor(dtype: str, shape: list[int], memory: str) -> Tensor:
    kind = getattr(torch, _text(dtype))
    if not isinstance(kind, torch.dtype):
        raise ValueError("no dtype of torch")
    data = bytearray(base64.b64decode(_text(memory)))
    sizes = [_checked_size(part) for part in shape]
    if not data:
        return torch.empty(sizes, dtype=kind)
    return torch.frombuffer(data, dtype=kind).reshape(sizes)


def _array(dtype: str, shape: list[int], memory: str) -> numpy.ndarray:
    kind = numpy.dtype(_text(dtype))
    if kind.kind not in KINDS_OF_NUMBERS:
        raise ValueError("no array of numbers")
    data = numpy.frombuffer(base64.b64decode(_text(memory)), kind)
    return data.reshape([_checked_size(part) for part in shape]).copy()


def _checked_size(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError("no size")
    return value


_UNPACK: dict[str, Callable[..., Any]] = {
    "plain": _plain,
    "seen": lambda words, why: Seen(_text(words), _text(why)),
    "complex": complex,
    "bytes": lambda memory: base64.b64decode(_text(memory)),
    "bytearray": lambda memory: bytearray(base64.b64decode(_text(memory))),
    "list": lambda parts: [unpacked(part) for part in parts],
    "tuple": lambda parts: tuple([unpacked(part) for part in parts]),
    "dict": lambda pairs: {_key(key): unpacked(part) for key, part in pairs},
    "set": lambda parts: {_key(part) for part in parts},
    "frozenset": lambda parts: frozenset({_key(part) for part in parts}),
    "record": lambda kind, fields: Record(
        _text(kind), {name: unpacked(part) for name, part in fields.items()}
    ),
    "tensor": _tensor,
    "array": _array,
    "other": lambda kind, words: Other(_text(kind), _text(words)),
}


def _key(value: Any) -> Any:
    """A key of a dict, or a member of a set.

    Where the value itself cannot be one, its JSON is. So it is for a tensor, whose own hash says
    nothing of its numbers.
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


def _packed_event(event: NotedEvent) -> list[Any]:
    values = []
    for one in dataclasses.fields(event):
        value = getattr(event, one.name)
        if isinstance(event, Callback) and one.name == "events":
            value = [_packed_event(inner) for inner in value]
        values.append(value)
    return [type(event).__name__, *values]


def _unpacked_event(data: list[Any]) -> NotedEvent:
    name, *values = data
    if name == Callback.__name__:
        op, after, inner = values
        events_inside = [_unpacked_event(event) for event in inner]
        return Callback(_checked_size(op), _checked_size(after), events_inside)
    fields = [tuple(value) if isinstance(value, list) else value for value in values]
    for field in fields:
        parts = field if isinstance(field, tuple) else (field,)
        if not all(part is None or isinstance(part, (bool, int, float, str)) for part in parts):
            raise ValueError("no event")
    return EVENTS[name](*fields)
