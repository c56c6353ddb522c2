"""What one call of a function did on one rank, written as bytes for the process that judges.

Runs on every rank, called by trial.py; observed.py reads the bytes and says what is in them. They
are JSON of known types. Tensors and arrays travel as their memory; subclasses of str, int and float
become plain ones. A value of any other type travels as its type's name and its repr: it can be
shown, and equals only what has both.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import re
from collections.abc import Iterable
from typing import Any

import numpy
import torch
from torch import Tensor

from distlab.checking.exercises import Seen
from distlab.checking.observed import KINDS_OF_NUMBERS
from distlab.simulated.events import Callback, NotedEvent

MOST_BYTES = 1 << 26  # of one value
MOST_DEEP = 50  # lists in lists
# Of an int in JSON: Python reads no more than 4,300 decimal digits, and a digit takes 3.3 bits.
MOST_BITS = 3 * 4000
ADDRESS = re.compile(r" at 0x[0-9a-f]+")  # in a repr, another one in each process
MOST_OF_REPR = 200
TENSORS = (Tensor, torch.nn.Parameter, torch.nn.Buffer)


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


class Packed(list[Any]):
    """A value as JSON has it, [kind, ...].

    A value that may change later, such as an argument of the answer, is packed before.
    """


def packed(value: Any, depth: int = 0) -> Packed:
    """A value as JSON has it. Runs on: a rank."""
    if depth > MOST_DEEP:
        return _packed_words(_name(value), "nested too deeply")
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
    if isinstance(value, int):
        bits = value.bit_length()
        if bits > MOST_BITS:
            return _packed_words("int", f"a number of {bits} bits")
    if isinstance(value, str):
        length = len(value)
        if length > MOST_BYTES:
            return _packed_words("str", f"a text of {length} characters")
    return Packed(["plain", value])


def _packed_container(value: Any, depth: int) -> Packed | None:
    """A list, tuple, dict or set, or an instance of a dataclass; None for anything else."""
    deeper = depth + 1
    if isinstance(value, (list, tuple)):
        kind = "list" if isinstance(value, list) else "tuple"
        if len(value) > MOST_BYTES // 8:
            return _packed_words(_name(value), f"{len(value)} values")
        return Packed([kind, _packed_parts(value, deeper)])
    if isinstance(value, dict):
        pairs = []
        for key, part in value.items():
            pairs.append(_packed_parts((key, part), deeper))
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
        return _packed_array(value)
    if type(value) in TENSORS:
        return _packed_tensor(value)
    return None


def _packed_array(array: numpy.ndarray) -> Packed | None:
    """An array of numbers; None for one of other things, or too large a one."""
    if array.dtype.kind not in KINDS_OF_NUMBERS or array.nbytes > MOST_BYTES:
        return None
    memory = _text_of(array.tobytes())
    return Packed(["array", array.dtype.str, list(array.shape), memory])


def _packed_tensor(tensor: Tensor) -> Packed | None:
    """A dense tensor, or words for one that is too large or not on the CPU; None for any other."""
    if tensor.layout is not torch.strided or tensor.is_quantized:
        return None
    num_bytes = tensor.numel() * tensor.element_size()
    if tensor.device.type != "cpu" or num_bytes > MOST_BYTES:
        return _packed_words("Tensor", f"shape {tuple(tensor.shape)} on {tensor.device}")
    dtype = str(tensor.dtype).removeprefix("torch.")
    memory = _text_of(_memory_of(tensor))
    return Packed(["tensor", dtype, list(tensor.shape), memory])


def _memory_of(tensor: Tensor) -> bytes:
    """The bytes of a tensor's elements, in their order."""
    if tensor.numel() == 0:
        return b""
    plain = tensor.detach().resolve_conj().resolve_neg()
    dense = plain.clone(memory_format=torch.contiguous_format)
    as_bytes = dense.reshape(-1).view(torch.uint8)
    return as_bytes.numpy().tobytes()


def _packed_other(value: Any) -> Packed:
    whole_repr = str.__str__(repr(value))
    words = ADDRESS.sub("", whole_repr)
    return _packed_words(_name(value), words[:MOST_OF_REPR])


def _packed_words(kind: str, words: str) -> Packed:
    """What travels in place of a value: the name of its type, and what can be shown of it."""
    return Packed(["other", kind, words])


def _name(value: Any) -> str:
    return str(type(value).__name__)


def _text_of(memory: bytes) -> str:
    return base64.b64encode(memory).decode()


def _packed_event(event: NotedEvent) -> list[Any]:
    values = []
    for one in dataclasses.fields(event):
        value = getattr(event, one.name)
        if isinstance(event, Callback) and one.name == "events":
            value = [_packed_event(inner) for inner in value]
        values.append(value)
    return [type(event).__name__, *values]
