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
from collections.abc import Callable, Iterable
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
# Of an int in JSON: Python reads no more than 4,300 decimal digits, and a digit takes 3.3 bits.
MOST_BITS = 3 * 4000
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
        # only the text, where an answer has a class of its own for it
        "printed": str.__str__(printed),
        "changed": str.__str__(changed),
    }
    return json.dumps(call).encode()


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
    if isinstance(value, int) and value.bit_length() > MOST_BITS:
        return Packed(["other", "int", f"a number of {value.bit_length()} bits"])
    if isinstance(value, str) and len(value) > MOST_BYTES:
        return Packed(["other", "str", f"a text of {len(value)} characters"])
    return Packed(["plain", value])


def _packed_container(value: Any, depth: int) -> Packed | None:
    """A list, tuple, dict or set, or an instance of a dataclass; None for anything else."""
    deeper = depth + 1
    if isinstance(value, (list, tuple)):
        kind = "list" if isinstance(value, list) else "tuple"
        if len(value) > MOST_BYTES // 8:
            return Packed(["other", _name(value), f"{len(value)} values"])
        return Packed([kind, _packed_parts(value, deeper)])
    if isinstance(value, dict):
        pairs = [_packed_parts(pair, deeper) for pair in value.items()]
        return Packed(["dict", pairs])
    if isinstance(value, (set, frozenset)):
        parts = _packed_parts(value, deeper)
        return Packed([type(value).__name__, sorted(parts, key=json.dumps)])
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {}
        for one in dataclasses.fields(value):
            part = getattr(value, one.name, None)
            fields[one.name] = packed(part, deeper)
        return Packed(["record", _name(value), fields])
    return None


def _packed_parts(values: Iterable[Any], depth: int) -> list[Packed]:
    return [packed(value, depth) for value in values]


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
    whole_repr = str.__str__(repr(value))
    words = ADDRESS.sub("", whole_repr)
    return Packed(["other", _name(value), words[:MOST_OF_REPR]])


def _name(value: Any) -> str:
    return str(type(value).__name__)


def _text_of(memory: bytes) -> str:
    return base64.b64encode(memory).decode()


def unpacked(value: Any) -> Any:
    """A value from JSON. Runs on: the process that judges.

    Raises:
        ValueError, KeyError, TypeError, IndexError, RuntimeError: that is not a packed value.
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


def _seen(words: str, why: str) -> Seen:
    return Seen(_text(words), _text(why))


def _bytes(text: str) -> bytes:
    """The memory that `_text_of` has written."""
    return base64.b64decode(_text(text))


def _bytearray(text: str) -> bytearray:
    return bytearray(_bytes(text))


def _list(parts: list[Any]) -> list[Any]:
    return [unpacked(part) for part in parts]


def _tuple(parts: list[Any]) -> tuple[Any, ...]:
    return tuple(_list(parts))


def _dict(pairs: list[Any]) -> dict[Any, Any]:
    return {_key(key): unpacked(part) for key, part in pairs}


def _set(parts: list[Any]) -> set[Any]:
    return {_key(part) for part in parts}


def _frozenset(parts: list[Any]) -> frozenset[Any]:
    return frozenset(_set(parts))


def _record(kind: str, fields: dict[str, Any]) -> Record:
    values = {name: unpacked(part) for name, part in fields.items()}
    return Record(_text(kind), values)


def _other(kind: str, words: str) -> Other:
    return Other(_text(kind), _text(words))


def _tensor(dtype: str, shape: list[int], memory: str) -> Tensor:
    kind = getattr(torch, _text(dtype))
    if not isinstance(kind, torch.dtype):
        raise ValueError("that is not a dtype of torch")
    data = _bytearray(memory)
    sizes = _checked_sizes(shape)
    if not data:
        return torch.empty(sizes, dtype=kind)
    return torch.frombuffer(data, dtype=kind).reshape(sizes)


def _array(dtype: str, shape: list[int], memory: str) -> numpy.ndarray:
    kind = numpy.dtype(_text(dtype))
    if kind.kind not in KINDS_OF_NUMBERS:
        raise ValueError("that is not an array of numbers")
    data = numpy.frombuffer(_bytes(memory), kind)
    return data.reshape(_checked_sizes(shape)).copy()


def _checked_sizes(shape: list[Any]) -> list[int]:
    return [_checked_size(size) for size in shape]


def _checked_size(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError("a size is a whole number of 0 or more")
    return value


# by the first word of a packed value; the others are the arguments
_UNPACK: dict[str, Callable[..., Any]] = {
    "plain": _plain,
    "seen": _seen,
    "complex": complex,
    "bytes": _bytes,
    "bytearray": _bytearray,
    "list": _list,
    "tuple": _tuple,
    "dict": _dict,
    "set": _set,
    "frozenset": _frozenset,
    "record": _record,
    "tensor": _tensor,
    "array": _array,
    "other": _other,
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
