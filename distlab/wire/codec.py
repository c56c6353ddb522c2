"""One way to JSON for every message of this folder.

Runs on both sides, called by all that send or receive messages: channel.py, connection.py, the fork
server, watchdogs, checks.py, groups.py and rpc_calls.py.

A field holds what its annotation says, or it is refused by name. A message is one line, a JSON
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
from typing import Any, Protocol

from distlab.arguments import refuse
from distlab.wire import messages, orders


def _messages_in(*modules: types.ModuleType) -> dict[str, type]:
    """The classes of messages in these modules, by name."""
    kinds = {}
    for module in modules:
        for kind in vars(module).values():
            if isinstance(kind, type) and dataclasses.is_dataclass(kind):
                kinds[kind.__name__] = kind
    return kinds


MESSAGE_CLASSES = _messages_in(messages, orders)
PLAIN_TYPES = (bool, int, float, str)


class MessageError(ValueError):
    """What arrived is no message that this distlab knows."""


def to_json(message: Any) -> str:
    """A message as one line of JSON.

    Raises:
        ArgumentTypeError: a field does not hold what its annotation says.
    """
    kind: type = type(message)
    if kind not in MESSAGE_CLASSES.values():
        refuse("message", "one of the classes of distlab.wire", message, wrong_type=True)
    fields = _codec_of(kind).write(message, kind.__name__)
    return json.dumps({"class": kind.__name__, **fields})


def from_json(line: str | bytes) -> Any:
    """The message in a line of JSON.

    Raises:
        MessageError: it is none that this distlab knows, for example because another version of
            it has sent it.
    """
    try:
        return _message_in(json.loads(line))
    except (ValueError, TypeError, RecursionError) as error:
        reason = str(error).rstrip(".")
        raise MessageError(
            f"{_beginning_of(line)} is no message of this distlab: {reason}."
        ) from error


def _message_in(fields: Any) -> Any:
    """The message in what JSON has read."""
    name = None
    if isinstance(fields, dict):
        name = fields.pop("class", None)
    if not isinstance(name, str):
        raise MessageError("it is not an object with a class")
    if name not in MESSAGE_CLASSES:
        raise MessageError(f"it has no class {name!r}")
    return _codec_of(MESSAGE_CLASSES[name]).read(fields, name)


def protocol() -> str:
    """Return a checksum of all messages and their fields, in 8 hexadecimal digits.

    It is equal on two machines that know the same messages with the same fields.

    Runs on: anywhere.
    """
    fields = {}
    for name in sorted(MESSAGE_CLASSES):
        of_class = dataclasses.fields(MESSAGE_CLASSES[name])
        fields[name] = [(one.name, str(one.type)) for one in of_class]
    checksum = zlib.crc32(json.dumps(fields).encode())
    return f"{checksum:08x}"


def _beginning_of(line: str | bytes) -> str:
    """The beginning of a line, quoted."""
    text = line.decode(errors="replace") if isinstance(line, bytes) else line
    if len(text) > 60:
        text = f"{text[:57]}..."
    return repr(text)


# --- a class for each kind of annotation: how its values are written, and read ---


class _Codec(Protocol):
    """How the values of one annotation travel; `name` is the field's, for errors."""

    def write(self, value: Any, name: str) -> Any:
        """The value as JSON has it."""

    def read(self, value: Any, name: str) -> Any:
        """The value that JSON has."""


class _PlainValue:
    """bool, int, float or str; an int may stand for a float."""

    def __init__(self, kind: type):
        self._kind = kind
        self._allowed = (int, float) if kind is float else kind
        self._rule = f"a value of type {kind.__name__}"

    def write(self, value: Any, name: str) -> Any:
        if type(value) is self._kind:
            return value
        if not isinstance(value, self._allowed):
            refuse(name, self._rule, value, wrong_type=True)
        if self._kind is str:
            return str.__str__(value)  # not the __str__ of a subclass
        try:
            return self._kind(value)
        except OverflowError:  # an int that is larger than every float
            refuse(name, self._rule, value)

    def read(self, value: Any, name: str) -> Any:
        return self.write(value, name)


class _Optional:
    """Something, or None."""

    def __init__(self, annotation: Any):
        self._inner = _codec_of(annotation)

    def write(self, value: Any, name: str) -> Any:
        if value is None:
            return None
        return self._inner.write(value, name)

    def read(self, value: Any, name: str) -> Any:
        if value is None:
            return None
        return self._inner.read(value, name)


class _VariadicTuple:
    """A tuple of any length, whose values are alike."""

    def __init__(self, annotation: Any):
        self._inner = _codec_of(annotation)

    def write(self, value: Any, name: str) -> Any:
        _check_sequence(value, name)
        return [self._inner.write(one, name) for one in value]

    def read(self, value: Any, name: str) -> Any:
        _check_sequence(value, name)
        return tuple(self._inner.read(one, name) for one in value)


class _FixedTuple:
    """A tuple of a certain length, whose values differ."""

    def __init__(self, annotations: tuple[Any, ...]):
        self._inner = [_codec_of(one) for one in annotations]

    def write(self, value: Any, name: str) -> Any:
        _check_sequence(value, name, len(self._inner))
        written = []
        for inner, one in zip(self._inner, value, strict=True):
            written.append(inner.write(one, name))
        return written

    def read(self, value: Any, name: str) -> Any:
        _check_sequence(value, name, len(self._inner))
        found = []
        for inner, one in zip(self._inner, value, strict=True):
            found.append(inner.read(one, name))
        return tuple(found)


def _check_sequence(value: Any, name: str, length: int | None = None) -> None:
    """Refuse a value that is no tuple, or has another length; JSON has lists for tuples."""
    if not isinstance(value, (tuple, list)):
        refuse(name, "a tuple", value, wrong_type=True)
    if length is not None and len(value) != length:
        refuse(name, f"a tuple of {length}", value, wrong_type=True)


class _Dict:
    """A dict from names: JSON has no other keys."""

    def __init__(self, key: Any, value: Any):
        if key is not str:
            raise TypeError(f"no message can have a dict from {key}")
        self._key = _codec_of(key)
        self._value = _codec_of(value)

    def write(self, value: Any, name: str) -> Any:
        _check_dict(value, name)
        written = {}
        for key, one in value.items():
            written[self._key.write(key, name)] = self._value.write(one, name)
        return written

    def read(self, value: Any, name: str) -> Any:
        _check_dict(value, name)
        found = {}
        for key, one in value.items():
            found[self._key.read(key, name)] = self._value.read(one, name)
        return found


def _check_dict(value: Any, name: str) -> None:
    """Refuse a value that is no dict."""
    if not isinstance(value, dict):
        refuse(name, "a dict", value, wrong_type=True)


class _Message:
    """A message, as its fields."""

    def __init__(self, kind: type):
        self._kind = kind
        self._name = kind.__name__

    @functools.cached_property
    def _fields(self) -> dict[str, _Codec]:
        """The codec of each field.

        It is made when it is needed, because a class may hold others of its own kind.
        """
        hints = typing.get_type_hints(self._kind)
        return {field: _codec_of(annotation) for field, annotation in hints.items()}

    def write(self, value: Any, name: str) -> Any:
        if type(value) is not self._kind:
            refuse(name, f"a {self._name}", value, wrong_type=True)
        written = {}
        for field, codec in self._fields.items():
            written[field] = codec.write(getattr(value, field), f"{self._name}.{field}")
        return written

    def read(self, value: Any, name: str) -> Any:
        if not isinstance(value, dict):
            refuse(name, f"a {self._name}", value, wrong_type=True)
        fields = {}
        for field, one in value.items():
            codec = self._fields.get(field)
            if codec is None:
                raise MessageError(f"{self._name} has no field {field!r}")
            fields[field] = codec.read(one, f"{self._name}.{field}")
        return self._kind(**fields)


@functools.cache
def _codec_of(annotation: Any) -> _Codec:
    """How values of an annotation travel; TypeError for an annotation that no message may have."""
    if annotation in PLAIN_TYPES:
        return _PlainValue(annotation)
    if isinstance(annotation, type) and dataclasses.is_dataclass(annotation):
        return _Message(annotation)
    origin = typing.get_origin(annotation)
    inner = typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        if len(inner) == 2 and inner[1] is type(None):
            return _Optional(inner[0])
    elif origin is tuple and inner:
        if inner[-1] is Ellipsis:
            return _VariadicTuple(inner[0])
        return _FixedTuple(inner)
    elif origin is dict:
        key, value = inner
        return _Dict(key, value)
    raise TypeError(f"no message can have a field of {annotation}")
