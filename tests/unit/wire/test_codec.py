"""Every field of every message through the codec and back, with other libraries' values.

The cases come from the annotations, so that a new message or field has its own.
"""

import dataclasses
import enum
import types
import typing

import numpy as np
import pytest
import torch

from distlab.errors import ArgumentTypeError
from distlab.wire import codec, messages, orders
from distlab.wire.codec import MESSAGE_CLASSES, MessageError, from_json, protocol, to_json
from distlab.wire.messages import Answer, CallRecord, Query, RankStatus
from distlab.wire.orders import ServerPlan
from distlab.wire.source import Line


class Number(enum.IntEnum):
    TWO = 2


class Text(str, enum.Enum):
    LONG = "long"


class Colour(enum.Enum):
    RED = 1


class Name(str):
    pass


# by type: values that arrive as they are, those that arrive as the plain value, and those that are
# refused
ARRIVE = {
    bool: [True, False],
    int: [0, -1, 2**70],
    float: [0.5, -1e300],
    str: ["", 'é "quoted"\n', "class"],
}
BECOME_PLAIN = {
    bool: [],
    int: [True, Number.TWO],
    float: [3, True, Number.TWO, np.float64(0.5)],
    str: [Text.LONG, Name("name"), np.str_("text")],
}
ARRAYS = [
    np.arange(1),
    torch.ones(1),
    np.float32(1),
    np.bool_(True),
    Colour.RED,
    object(),
    b"bytes",
    {},
]
REFUSED = {
    bool: [1, np.bool_(True), torch.tensor(True), None, "yes", Number.TWO, *ARRAYS],
    int: [np.int64(3), np.uint8(3), torch.tensor(3), 1.5, np.float64(1), "1", None, *ARRAYS],
    float: [np.float32(0.5), torch.tensor(0.5), "0.5", None, *ARRAYS],
    str: [3, np.int64(3), None, *ARRAYS],
}


def plain_message(kind):
    """A message with plain values in the fields that it must have."""
    hints = typing.get_type_hints(kind)
    must = [one.name for one in dataclasses.fields(kind) if one.default is dataclasses.MISSING]
    return kind(**{name: values(hints[name], ARRIVE)[0] for name in must})


def values(annotation, table):
    """Values of an annotation, whose innermost ones come from a table."""
    if annotation in table:
        return table[annotation]
    if dataclasses.is_dataclass(annotation):
        of_another = plain_message(Query if annotation is not Query else orders.Alive)
        return [of_another, "text", *ARRAYS] if table is REFUSED else [plain_message(annotation)]
    origin = typing.get_origin(annotation)
    inner = typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        of_something = [one for one in values(inner[0], table) if one is not None]
        return of_something if table is REFUSED else [None, *of_something]
    if origin is tuple and inner[-1] is Ellipsis:
        rows = [(one,) for one in values(inner[0], table)]
        return (
            [*rows, "text", *ARRAYS]
            if table is REFUSED
            else [(), *rows, *(row * 2 for row in rows)]
        )
    if origin is tuple:
        row = tuple(values(one, ARRIVE)[0] for one in inner)
        rows = []
        for index, kind in enumerate(inner):
            for one in values(kind, table):
                rows.append((*row[:index], one, *row[index + 1 :]))
        return [*rows, row[:-1], *ARRAYS] if table is REFUSED else rows
    assert origin is dict, f"{annotation}: teach this test, and the codec, how it travels"
    tables = [{"class": one} for one in values(inner[1], table)]
    return (
        [*tables, [], *(one for one in ARRAYS if one != {})] if table is REFUSED else [{}, *tables]
    )


def made(kind, table):
    """Messages of a class with one field from the table, and that field's name."""
    for name, hint in typing.get_type_hints(kind).items():
        for value in values(hint, table):
            yield name, dataclasses.replace(plain_message(kind), **{name: value})


def plain(value):
    """Whether nothing in a message is of another library, nor of a subclass of a plain type."""
    if dataclasses.is_dataclass(value):
        return all(plain(getattr(value, one.name)) for one in dataclasses.fields(value))
    if isinstance(value, tuple):
        return type(value) is tuple and all(map(plain, value))
    if isinstance(value, dict):
        return type(value) is dict and all(map(plain, [*value.keys(), *value.values()]))
    return type(value) in (bool, int, float, str, type(None))


@pytest.mark.parametrize("kind", MESSAGE_CLASSES.values(), ids=MESSAGE_CLASSES)
def test_every_field_arrives(kind):
    """As it was sent; a value of a subclass of a plain type comes as the plain one."""
    for table in (ARRIVE, BECOME_PLAIN):
        for name, message in made(kind, table):
            received = from_json(to_json(message))
            assert received == message, name
            assert plain(received), name


@pytest.mark.parametrize("kind", MESSAGE_CLASSES.values(), ids=MESSAGE_CLASSES)
def test_every_field_refuses_what_is_not_plain_by_its_name(kind):
    """Where it is sent, with the message's and the field's name."""
    tried = set()
    for name, message in made(kind, REFUSED):
        with pytest.raises(ArgumentTypeError, match=rf"^{kind.__name__}\.{name} must be .*, got "):
            to_json(message)
        tried.add(name)
    assert tried == set(typing.get_type_hints(kind))


def test_a_refusal_says_which_value():
    """In the words of every other refusal."""
    with pytest.raises(ArgumentTypeError) as refused:
        to_json(
            Answer(
                1, RankStatus(0, "idle", history=(CallRecord("send", "message", tag=np.int64(7)),))
            )
        )
    value = repr(np.int64(7))
    assert str(refused.value) == f"CallRecord.tag must be a value of type int, got {value}."
    with pytest.raises(
        ArgumentTypeError,
        match=r"^message must be one of the classes of distlab\.wire, got 'text'\.$",
    ):
        to_json("text")


def test_all_messages_are_known():
    """Those of both files, by their names."""
    there = []
    for module in (messages, orders):
        there += [one for one in vars(module).values() if dataclasses.is_dataclass(one)]
    assert list(MESSAGE_CLASSES.values()) == there


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("{not JSON", "Expecting property name"),
        ("[1]", "it is not an object with a class"),
        ('"text"', "it is not an object with a class"),
        ("{}", "it is not an object with a class"),
        ('{"class": ["Nobody"]}', "it is not an object with a class"),
        ('{"class": "Nobody"}', "it has no class 'Nobody'"),
        ('{"class": "Query", "number": 1, "colour": 2}', "Query has no field 'colour'"),
        ('{"class": "Query"}', "missing 1 required positional argument: 'number'"),
        ('{"class": "Query", "number": "1"}', "Query.number must be a value of type int, got '1'"),
        (
            '{"class": "Answer", "number": 1, "status": 5}',
            "Answer.status must be a RankStatus, got 5",
        ),
        (
            '{"class": "Answer", "number": 1, "megabytes": 1' + "0" * 400 + "}",
            "Answer.megabytes must be a value of type float, got 1000",
        ),
        ("[" * 200_000, "recursion"),
        (b"\xff\xfe\xff{", ""),
    ],
)
def test_what_is_no_message_is_refused(line, why):
    """With one kind of error, as where another version of distlab has sent it."""
    with pytest.raises(MessageError, match="is no message of this distlab") as refused:
        from_json(line)
    assert why in str(refused.value)


@pytest.mark.parametrize("annotation", [dict[int, str], tuple[()], list[int], typing.Any])
def test_a_field_that_would_arrive_as_another_value_is_refused(annotation):
    """When its message is first sent: JSON has no keys but texts."""

    @dataclasses.dataclass(frozen=True)
    class Extended:
        field: annotation

    with pytest.raises(TypeError, match=r"^no message can have "):
        codec._Message(Extended).write(Extended({}), "Extended")


@dataclasses.dataclass(frozen=True)
class Lengths:
    of_names: dict[str, tuple[int, ...]]


def test_the_values_of_a_dict_arrive_as_they_were():
    message = Lengths({"x": (1, 2)})
    as_fields = codec._Message(Lengths)
    assert as_fields.read(as_fields.write(message, "Lengths"), "Lengths") == message


def test_the_protocol_changes_with_a_field(monkeypatch):
    """So that two distlabs of one version number, with other messages, are told apart."""
    before = protocol()
    assert before == protocol()

    @dataclasses.dataclass(frozen=True)
    class Query2:
        number: int
        want: str = ""

    monkeypatch.setitem(codec.MESSAGE_CLASSES, "Query", Query2)
    assert protocol() != before


def test_a_question_and_a_plan_as_they_are_sent():
    """One line each, that a person can read."""
    assert (
        to_json(Query(3, "status"))
        == '{"class": "Query", "number": 3, "want": "status", "line": null}'
    )
    plan = ServerPlan({"class": "a variable's name"}, ("numpy",))
    assert from_json(to_json(plan)) == plan
    call = CallRecord(
        "recv",
        "message",
        (0, 1),
        tensors=(("float32", (2,)),),
        lines=(Line(5, "dist.recv(t)", "f"),),
    )
    answer = Answer(7, RankStatus(1, "idle", call, history=(call,), fingerprint=(1, 2)), ("x", "y"))
    assert "\n" not in to_json(answer)
    assert from_json(to_json(answer)) == answer
