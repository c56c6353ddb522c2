"""What a call did travels as bytes of known types, and is compared by their values."""

import json
from dataclasses import dataclass

import numpy
import pytest
import torch

from distlab.checking import Exercise, returned
from distlab.checking.comparing import compare
from distlab.checking.observed import Observed, Other, Record, from_bytes
from distlab.checking.packing import to_bytes
from distlab.simulated.events import Callback, CollectiveCall, PointToPoint, Wait

PLAIN = [None, True, 3, 2**70, 1.5, "text", b"bytes", 1 + 2j]
CONTAINERS = [[1, [2.0]], (1, "a"), {"a": [1]}, {1, 2}, frozenset({3})]
MEMORY = [
    torch.arange(6).reshape(2, 3),
    torch.tensor(1.5, dtype=torch.bfloat16),
    torch.empty(0, 2),
    torch.ones(4)[::2],
    torch.arange(4.0).reshape(2, 2)[:, 0],
    torch.tensor([True]),
    numpy.arange(3.0),
]
EVENTS = [
    PointToPoint(1, True, 0, 8, ("group", 0)),
    CollectiveCall(2, "all_reduce", "group", 1, (0, 1), None, (4, 4)),
    Callback(3, 2, [Wait(2)]),
]


def exercise(function):
    return Exercise("unit", trial=returned, function=function)


def after(value, **more):
    """A value after its way from a rank."""
    return from_bytes(to_bytes(value, (), [], "", **more))


def outcomes(expected, actual, given=()):
    """What is said of the values of some ranks."""
    right = [Observed(value, given, [], "") for value in expected]
    return compare(exercise(lambda: None), right, [after(value) for value in actual])


class Any:
    def __eq__(self, other):
        return True

    __hash__ = None


class Words(str):
    def __reduce__(self):
        raise AssertionError("it is pickled")


@dataclass
class Point:
    x: int
    y: torch.Tensor


@pytest.mark.parametrize("value", [*PLAIN, *CONTAINERS, *MEMORY], ids=lambda value: str(value)[:20])
def test_a_value_arrives_as_it_was(value):
    found = after(value).value
    assert type(found) is type(value)
    (outcome,) = outcomes([value], [value])
    assert outcome.right


def test_events_and_texts_arrive_as_they_were():
    found = from_bytes(to_bytes(1, (2,), EVENTS, Words("printed"), "torch.equal"))
    assert found == Observed(1, (2,), EVENTS, "printed", "torch.equal")
    assert type(found.printed) is str


def test_other_types_travel_as_words():
    """So that none of their methods is called by whoever compares."""
    assert after(Any()).value.kind == "Any"
    assert after(Words("text")).value == "text"
    assert type(after(Words("text")).value) is str
    assert type(after(numpy.int64(3)).value) is int
    assert after(numpy.bool_(True)).value is True
    assert after(torch.float32).value == Other("dtype", "torch.float32")
    point = after(Point(1, torch.ones(2))).value
    assert isinstance(point, Record)
    assert point.kind == "Point"
    assert outcomes([point], [Point(1, torch.ones(2))])[0].right
    assert not outcomes([point], [Point(1, torch.zeros(2))])[0].right
    deep = []
    deep.append(deep)
    assert "nested too deeply" in repr(after(deep).value)


def call_in_json(value, events):
    """A call as `to_bytes` writes one, with any value and events."""
    call = {"value": value, "given": ["tuple", []], "events": events, "printed": "", "changed": ""}
    return json.dumps(call).encode()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{}",
        b"\xff",
        json.dumps({"value": ["tensor", "load", [1], ""]}).encode(),
        call_in_json(["tensor", "load", [1], ""], []),
        call_in_json(["tensor", "float32", [2], "AAAA"], []),
        call_in_json(["unknown", 1], []),
        call_in_json(["plain", [1]], []),
        call_in_json(["plain", 1], [["Wait"]]),
        call_in_json(["plain", 1], [["Unknown", 1]]),
        call_in_json(["plain", 1], [["Wait", {}]]),
    ],
)
def test_other_bytes_are_refused(data):
    with pytest.raises(ValueError, match=r"."):
        from_bytes(data)


@pytest.mark.parametrize(
    ("expected", "actual"),
    [
        (1, Any()),
        (1, True),
        (1, 2),
        (1.0, float("nan")),
        ("a", 1),
        ([1], [1, 2]),
        (None, 3),
        (torch.ones(1), [1.0]),
    ],
)
def test_a_wrong_value_is_wrong(expected, actual):
    """None, too, where another rank has something."""
    somewhere = 3 if expected is None else expected
    first, second = outcomes([expected, somewhere], [actual, somewhere])
    assert (first.right, second.right) == (False, True)


def test_what_is_none_on_every_rank_matches_anything():
    assert all(one.right for one in outcomes([None, None], [1, torch.ones(2)]))


def test_the_words_say_what_to_change():
    tensor = torch.ones(2)
    assert (
        outcomes([tensor + 1], [tensor], (tensor,))[0].why
        == "It returns the values that it was given."
    )
    assert outcomes([1, None], [1, 1])[1].why == "Nothing should be returned here."
    assert outcomes([1], [Any()])[0].why == "Its type should be int, not Any."
