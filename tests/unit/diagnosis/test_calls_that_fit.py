"""Whether calls of a collective, or the two ends of a message, fit: the sentences."""

import pytest

from distlab.diagnosis.matching import disagreement, misfit, tensor_words
from distlab.wire.messages import COLLECTIVE, CallRecord


def call(op="all_reduce", tensors=(("float32", [4]),), members=(0, 1, 2), **more):
    return CallRecord(
        op, COLLECTIVE, tuple(members), tensors=tuple(tensors), **{"collective": op, **more}
    )


def all_to_all(sends, receives, dtype="float32", **more):
    return call(
        "all_to_all_single", [(dtype, [sum(sends)])], sends=sends, receives=receives, **more
    )


@pytest.mark.parametrize(
    "calls",
    [
        [],
        [call(reduce_op="SUM"), call(reduce_op="SUM")],
        [call("all_gather_into_tensor", collective="all_gather_single"), call("all_gather_single")],
        [
            all_to_all([1, 2, 3], [1, 4, 7]),
            all_to_all([4, 5, 6], [2, 5, 8]),
            all_to_all([7, 8, 9], [3, 6, 9]),
        ],
        [all_to_all([2, 1, 9], [2, 2, 9]), all_to_all([2, 2, 9], [1, 2, 9])],
        [all_to_all([2], [2]), all_to_all([2], [2])],
        [call("broadcast", [("float32", [6])]), call("broadcast", [("float32", [2, 3])])],
    ],
    ids=[
        "none",
        "the same",
        "two names",
        "uneven splits",
        "splits of two of three",
        "splits of another length",
        "a broadcast into another shape",
    ],
)
def test_calls_that_fit_do_not_disagree(calls):
    """Only what is known is compared; what a rank sends to another is what that one expects."""
    assert disagreement(dict(enumerate(calls))) == ""


@pytest.mark.parametrize(
    ("tensors", "words"),
    [([("float32", [])], "float32[]"), ((), "none")],
    ids=["scalar", "no tensor"],
)
def test_tensors_that_differ(tensors, words):
    """Also a scalar, or none at all; the zoo has shapes, dtypes, roots, reduce ops and splits."""
    words = (
        f"The ranks' all_reduce calls do not match: rank 2 has {words}, ranks 0-1 have float32[4]."
    )
    assert disagreement({0: call(), 1: call(), 2: call(tensors=tensors)}) == words


def test_a_broadcast_of_as_many_elements_fits():
    """Torch asks for no more; where their number or type differs, the words have the shapes."""
    calls = {
        0: call("broadcast", [("float32", [2, 3])]),
        1: call("broadcast", [("float32", [2, 2])]),
    }
    words = (
        "The ranks' broadcast calls do not match: "
        "rank 0 has float32[2, 3], rank 1 has float32[2, 2]."
    )
    assert disagreement(calls) == words


@pytest.mark.parametrize(
    ("sent", "received"),
    [([2, 3], [2, 3]), ([2, 3], [6]), ([], [1])],
    ids=["the same", "flat", "a scalar"],
)
def test_a_message_is_a_row_of_numbers(sent, received):
    """The shape may differ at the two ends; the zoo has differing types and sizes."""
    assert misfit(call("send", [("float32", sent)]), call("recv", [("float32", received)])) == ""


def test_tensors_in_words():
    """Types and shapes, at most three of them; or each type once, in order."""
    tensors = [("int8", [n]) for n in range(4)] + [("float32", [])]
    assert tensor_words(call(tensors=tensors)) == "int8[0], int8[1], int8[2] and 2 more"
    assert tensor_words(call(tensors=tensors), shapes=False) == "float32, int8"
