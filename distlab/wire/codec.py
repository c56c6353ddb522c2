"""One way to JSON for every message of this folder: a field holds what its annotation says, or it
is refused by name.

Runs on both sides, called by all that send or receive messages. A message is one line, a JSON
object of its fields, with the name of its class as "class". Tuples travel as lists, and messages
inside of a message as objects without a class, because the annotation of their field says which one
they are. A value of a subclass of a plain type, such as an IntEnum or numpy.float64, arrives as the
plain one. Everything else, such as numpy.int64 or a tensor, is refused where it is sent: a value
that comes from a learner is made plain where it enters (rank/log.py).
"""

import dataclasses
import functools
import json
import types
import typing
import zlib
from typing import Any

from distlab.arguments import refuse
from distlab.wire import messages, orders

KINDS = {
    kind.__name__: kind
    for module in (messages, orders)
    for kind in vars(module).values()
    if isinstance(kind, type) and dataclasses.is_dataclass(kind)
}
PLAIN = (bool, int, float, str)


class MessageError(ValueError):
    """What arrived is no message that this distlab knows."""


def to_json(message: Any) -> str:
    """A message as one line of JSON.

    Raises:
        ArgumentTypeError: a field does not hold what its annotation says.
    """
    kind = type(message)
    if kind not in KINDS.values():
        refuse("message", "one of the classes of distlab.wire", message, wrong_type=True)
    return json.dumps({"class": kind.__name__, **_described(kind).write(message, kind.__name__)})


def from_json(line: str | bytes) -> Any:
    """The message in a line of JSON.

    Raises:
        MessageError: it is none that this distlab knows, as where another version of it has sent
            it.
    """
    try:
        fields = json.loads(line)
        name = fields.pop("class", None) if isinstance(fields, dict) else None
        if not isinstance(name, str):
            raise MessageError("it is not an object with a class")
        if name not in KINDS:
            raise MessageError(f"it has no class {name!r}")
        return _described(KINDS[name]).read(fields, name)
    except (ValueError, TypeError) as error:
        reason = str(error).rstrip(".")
        raise MessageError(
            f"{_shortened(line)} is no message of this distlab: {reason}."
        ) from error


def protocol() -> str:
    """Equal on two machines that know the same messages with the same fields. Runs on: anywhere."""
    fields = {
        name: [(one.name, str(one.type)) for one in dataclasses.fields(kind)]
        for name, kind in sorted(KINDS.items())
    }
    return f"{zlib.crc32(json.dumps(fields).encode()):08x}"


def _shortened(line: str | bytes) -> str:
    text = line.decode(errors="replace") if isinstance(line, bytes) else line
    return repr(text if len(text) <= 60 else f"{text[:57]}...")


# --- what an annotation says: how a value of it is written, and read ---


class _Plain:
    """bool, int, float or str; an int may stand for a float."""

    def __init__(self, kind: type):
        self._kind = kind
        self._allowed = (int, float) if kind is float else kind

    def write(self, value: Any, name: str) -> Any:
        if type(value) is self._kind:
            return value
        if not isinstance(value, self._allowed):
            refuse(name, f"a value of type {self._kind.__name__}", value, wrong_type=True)
        return str.__str__(value) if self._kind is str else self._kind(value)

    read = write


class _Optional:
    """Something, or None."""

    def __init__(self, annotation: Any):
        self._inner = _described(annotation)

    def write(self, value: Any, name: str) -> Any:
        return None if value is None else self._inner.write(value, name)

    def read(self, value: Any, name: str) -> Any:
        return None if value is None else self._inner.read(value, name)


class _Row:
    """A tuple of any length, whose values are alike."""

    def __init__(self, annotation: Any):
        self._inner = _described(annotation)

    def write(self, value: Any, name: str) -> Any:
        _check_sequence(value, name)
        return [self._inner.write(one, name) for one in value]

    def read(self, value: Any, name: str) -> Any:
        _check_sequence(value, name)
        return tuple([self._inner.read(one, name) for one in value])


class _Record:
    """A tuple of a certain length, whose values differ."""

    def __init__(self, annotations: tuple[Any, ...]):
        self._inner = [_described(one) for one in annotations]

    def write(self, value: Any, name: str) -> Any:
        _check_sequence(value, name, len(self._inner))
        return [inner.write(one, name) for inner, one in zip(self._inner, value, strict=True)]

    def read(self, value: Any, name: str) -> Any:
        _check_sequence(value, name, len(self._inner))
        return tuple([inner.read(one, name) for inner, one in zip(self._inner, value, strict=True)])


def _check_sequence(value: Any, name: str, length: int | None = None) -> None:
    if not isinstance(value, (tuple, list)):
        refuse(name, "a tuple", value, wrong_type=True)
    if length is not None and len(value) != length:
        refuse(name, f"a tuple of {length}", value, wrong_type=True)


class _Table:
    """A dict from names."""

    def __init__(self, key: Any, value: Any):
        self._key, self._value = _described(key), _described(value)

    def write(self, value: Any, name: str) -> Any:
        if not isinstance(value, dict):
            refuse(name, "a dict", value, wrong_type=True)
        return {
            self._key.write(key, name): self._value.write(one, name) for key, one in value.items()
        }

    read = write


class _Message:
    """A message, as its fields."""

    def __init__(self, kind: type):
        self._kind = kind

    @functools.cached_property
    def _fields(self) -> dict[str, Any]:
        """What the annotation of each field says; later than the class is described, which may hold
        others like it.
        """
        return {
            name: _described(annotation)
            for name, annotation in typing.get_type_hints(self._kind).items()
        }

    def write(self, value: Any, name: str) -> Any:
        if type(value) is not self._kind:
            refuse(name, f"a {self._kind.__name__}", value, wrong_type=True)
        kind = self._kind.__name__
        return {
            field: inner.write(getattr(value, field), f"{kind}.{field}")
            for field, inner in self._fields.items()
        }

    def read(self, value: Any, name: str) -> Any:
        if not isinstance(value, dict):
            refuse(name, f"a {self._kind.__name__}", value, wrong_type=True)
        kind, known = self._kind.__name__, self._fields
        if unknown := [field for field in value if field not in known]:
            raise MessageError(f"{kind} has no field {unknown[0]!r}")
        return self._kind(
            **{field: known[field].read(one, f"{kind}.{field}") for field, one in value.items()}
        )


@functools.cache
def _described(annotation: Any) -> Any:
    """How values of an annotation travel; TypeError for an annotation that no message may have."""
    if annotation in PLAIN:
        return _Plain(annotation)
    if dataclasses.is_dataclass(annotation):
        return _Message(annotation)
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType) and len(inner) == 2 and inner[1] is type(None):
        return _Optional(inner[0])
    if origin is tuple and inner[-1] is Ellipsis:
        return _Row(inner[0])
    if origin is tuple:
        return _Record(inner)
    if origin is dict:
        return _Table(*inner)
    raise TypeError(f"no message can have a field of {annotation}")
