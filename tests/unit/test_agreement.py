"""Whether the ranks' calls of one collective, or the two ends of a message, fit together: the sentences in full."""

import pytest

from distlab.agreement import disagreement, misfit, tensor_words


def call(op="all_reduce", tensors=(("float32", [4]),), members=(0, 1, 2), **more):
    return {"op": op, "collective": op, "tensors": [list(t) for t in tensors], "members": list(members), **more}


def test_calls_that_fit_do_not_disagree():
    """The same collective with the same arguments; one call alone, and none, fit too."""
    assert disagreement({rank: call(reduce_op="SUM") for rank in range(3)}) == ""
    assert disagreement({0: call()}) == ""
    assert disagreement({}) == ""


def test_different_collectives_are_told_by_what_the_learner_called():
    """The fewest ranks come first; the names are those of torch.distributed's functions."""
    calls = {0: call(), 1: call("barrier", tensors=()), 2: call()}
    words = "the ranks do not call the same collective: rank 1 calls barrier, ranks 0 and 2 call all_reduce."
    assert disagreement(calls) == words


def test_two_names_of_one_collective_fit():
    """all_gather_into_tensor and all_gather_single are the same call below."""
    old = {**call("all_gather_into_tensor"), "collective": "all_gather_single"}
    assert disagreement({0: old, 1: call("all_gather_single")}) == ""


@pytest.mark.parametrize(
    ("one", "others", "words"),
    [
        ({"reduce_op": "MAX"}, {"reduce_op": "SUM"}, "rank 2 has op=MAX, ranks 0-1 have op=SUM"),
        ({"root": 1}, {"root": 0}, "rank 2 has the root 1, ranks 0-1 have the root 0"),
        ({"tensors": [("int32", [4])]}, {}, "rank 2 has int32[4], ranks 0-1 have float32[4]"),
        ({"tensors": [("float32", [2, 2])]}, {}, "rank 2 has float32[2, 2], ranks 0-1 have float32[4]"),
        ({"tensors": [("float32", [])]}, {}, "rank 2 has float32[], ranks 0-1 have float32[4]"),
        ({"tensors": ()}, {}, "rank 2 has none, ranks 0-1 have float32[4]"),
    ],
    ids=["reduce op", "root", "dtype", "shape", "scalar", "no tensor"],
)
def test_arguments_that_differ(one, others, words):
    """Reduce op, root, dtype and shape have to be the same on every rank."""
    calls = {0: call(**others), 1: call(**others), 2: call(**{**others, **one})}
    assert disagreement(calls) == f"the ranks do not agree in all_reduce: {words}."


def test_three_different_values_are_listed():
    """As many groups as there are values."""
    calls = {rank: call(root=rank) for rank in range(3)}
    words = "rank 0 has the root 0, rank 1 has the root 1, rank 2 has the root 2"
    assert disagreement(calls) == f"the ranks do not agree in all_reduce: {words}."


def all_to_all(sends, receives, dtype="float32", **more):
    return call("all_to_all_single", [(dtype, [sum(sends)])], sends=sends, receives=receives, **more)


def test_uneven_splits_that_fit():
    """What rank i sends to rank j is what j expects from i; shapes differ then, and may."""
    sends = [[1, 2, 3], [4, 5, 6], [7, 8, 9]]
    calls = {rank: all_to_all(sends[rank], [row[rank] for row in sends]) for rank in range(3)}
    assert disagreement(calls) == ""


def test_uneven_splits_that_do_not_fit():
    """The two ends are named, with the elements of each."""
    calls = {0: all_to_all([2, 1], [2, 2], members=(0, 2)), 2: all_to_all([2, 2], [2, 2], members=(0, 2))}
    words = "the ranks do not agree in all_to_all_single: rank 0 sends 1 element to rank 2, which expects 2 elements."
    assert disagreement(calls) == words


def test_splits_of_a_rank_that_has_not_come_are_not_missed():
    """Only the calls that are known are compared; splits of another length are left to gloo."""
    calls = {0: all_to_all([2, 1, 9], [2, 2, 9]), 1: all_to_all([2, 2, 9], [1, 2, 9])}
    assert disagreement(calls) == ""
    assert disagreement({0: all_to_all([2], [2]), 1: all_to_all([2], [2])}) == ""


def test_types_of_an_all_to_all_have_to_be_the_same():
    """Its shapes may differ, its types may not."""
    calls = {0: all_to_all([1, 1], [1, 1], members=(0, 1)), 1: all_to_all([1, 1], [1, 1], "int64", members=(0, 1))}
    words = "the ranks do not agree in all_to_all_single: rank 0 has float32, rank 1 has int64."
    assert disagreement(calls) == words


@pytest.mark.parametrize(
    ("received", "words"),
    [
        (("float32", [2, 3]), ""),
        (("float32", [3, 2]), ""),
        (("float32", [6]), ""),
        (("float32", [5]), "float32[2, 3] is sent, float32[5] is to receive it"),
        (("int32", [2, 3]), "float32[2, 3] is sent, int32[2, 3] is to receive it"),
    ],
    ids=["the same", "another shape", "flat", "another size", "another type"],
)
def test_a_message_is_a_row_of_numbers(received, words):
    """Type and number of elements must be the same at both ends; the shape need not be."""
    assert misfit(call("send", [("float32", [2, 3])]), call("recv", [received])) == words


def test_a_scalar_is_one_element():
    """A tensor without extent carries one number."""
    assert misfit(call("send", [("float32", [])]), call("recv", [("float32", [1])])) == ""


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        ([], ""),
        ([("float32", [2, 3])], "float32[2, 3]"),
        ([("float32", []), ("int64", [1])], "float32[], int64[1]"),
        ([("int8", [n]) for n in range(5)], "int8[0], int8[1], int8[2] and 2 more"),
    ],
)
def test_tensors_in_words(tensors, words):
    """Types and shapes, at most three of them."""
    assert tensor_words(call(tensors=tensors)) == words


def test_types_alone_in_words():
    """Each type once, in order, without its shapes; nothing for a call without tensors."""
    assert tensor_words(call(tensors=[("int8", [1]), ("float32", [2]), ("int8", [3])]), shapes=False) == "float32, int8"
    assert tensor_words({"op": "backward"}) == ""
