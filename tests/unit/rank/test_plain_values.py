"""Numbers of other libraries in calls, as torch takes them: their notes are plain."""

import enum
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.distributed as dist

import distlab
from distlab.rank import hooks, status
from distlab.rank.log import LOG, InCall, Note
from distlab.rank.records import record_of
from distlab.rank.watchdog import variables
from distlab.wire.codec import to_json
from distlab.wire.messages import COMPUTING, Answer, RankStatus


class Two(enum.IntEnum):
    TWO = 2


TAKEN = [
    np.int64(2),
    np.uint8(2),
    np.float32(2),
    np.array(2),
    Two.TWO,
    torch.tensor(2),
    torch.tensor(2.0),
]
REFUSED = [2.0, np.float64(2), "2", np.array([2])]


def noted(monkeypatch):
    """All notes that are made from now on."""
    notes = []
    make = Note.__init__

    def keep(note, *args):
        make(note, *args)
        notes.append(note)

    monkeypatch.setattr(Note, "__init__", keep)
    return notes


def travels(*calls):
    """The calls, and the newest messages, as JSON; every number in them must be Python's own."""
    records = tuple(record_of(call) for call in calls)
    assert all(type(one.tag) is int and type(one.peer) in (int, type(None)) for one in records)
    return to_json(
        Answer(1, RankStatus(0, COMPUTING, history=records, traffic=tuple(status._traffic())))
    )


def ones(*shape):
    return torch.ones(shape or (1,))


CALLS = {
    "tag": lambda two: (dist.send(ones(), 3, tag=two), dist.recv(ones(), 3, tag=two)),
    "tag of a Work": lambda two: (dist.isend(ones(), 3, tag=two), dist.irecv(ones(), 3, tag=two)),
    "peer": lambda two: (dist.send(ones(), two), dist.recv(ones(), two), dist.isend(ones(), two)),
    "tag, any source": lambda two: dist.group.WORLD.recv_anysource([ones()], two),
    "batch": lambda two: dist.batch_isend_irecv([dist.P2POp(dist.isend, ones(), two, tag=two)]),
    "root": lambda two: (
        dist.broadcast(ones(), two),
        dist.reduce(ones(), two),
        dist.scatter(ones(), None, two),
    ),
    "of the group": lambda two: (
        dist.group.WORLD.send([ones()], two, two),
        dist.group.WORLD.recv([ones()], two, two),
    ),
}


@pytest.mark.parametrize("two", TAKEN, ids=lambda two: type(two).__name__)
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_number_of_another_library_is_noted_as_pythons_own(four, monkeypatch, call, two):
    """As a tag, a peer, a root: for torch it is 2, and so it is for the ranks."""
    notes = noted(monkeypatch)
    call(two)
    assert notes
    assert (
        '"tag": 2' in travels(*notes)
        or '"root": 2' in travels(*notes)
        or '"peer": 2' in travels(*notes)
    )


@pytest.mark.parametrize("no_number", REFUSED, ids=lambda two: type(two).__name__)
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_what_torch_takes_for_no_number_leaves_nothing_behind(four, call, no_number):
    """It is refused on the thread of the call; what the watchdog reads later is plain."""
    with pytest.raises((TypeError, ValueError)):
        call(no_number)
    travels(*[note for notes in LOG.collectives.values() for note in notes])


SPLITS = {
    "numpy's": [np.int64(1), np.int64(2)],
    "an array": np.array([1, 2]),
    "a tensor's": list(torch.tensor([1, 2])),
    "floats that torch takes": [np.float32(1), np.float32(2)],
    "a tuple": (1, 2),
}


@pytest.mark.parametrize("sizes", SPLITS.values(), ids=SPLITS)
@pytest.mark.parametrize("method", ["alltoall_base", "all_to_all_single"])
def test_splits_of_another_library(four, method, sizes):
    """One side of an all_to_all_single; an array has no truth of its own."""
    note = hooks.note_of(
        method, "0", (ones(4, 3), ones(3, 3), [], sizes, dist.AllToAllOptions()), {}
    )
    assert travels(note)
    assert (record_of(note).sends, record_of(note).receives) == ((3, 6), (3,) * 4)


def test_a_group_of_numpys_ranks(four):
    """Of its calls, the members are plain; new_group takes an array."""
    for ranks in (np.array([1, 3]), [np.int64(1), np.int64(3)], torch.tensor([1, 3])):
        group = dist.new_group(ranks)
        note = hooks.note_of("allreduce", group.group_name, ([ones()],), {})
        assert record_of(note).members == (1, 3)
        assert travels(note)


def test_a_wait_of_ones_own_for_numpys_ranks(four):
    """What is no number is refused where it is written."""
    with distlab.waiting(np.str_("for a file"), np.arange(1, 3)):
        (note,) = [note for note in LOG.waiting_in.values() if note]
        assert (record_of(note).members, record_of(note).function) == ((1, 2), "for a file")
        assert travels(note)
    with pytest.raises(
        distlab.ArgumentError, match=r"^ranks must be whole numbers, got \[1\.5\]\. For example: "
    ):
        distlab.waiting("for a file", [1.5])


def test_whether_a_call_has_a_limit_is_a_bool():
    """A comparison with numpy's number is no bool of Python's."""
    note = Note("shutdown", "other", [0], has_limit=np.float64(3) > 0)
    with InCall(note):
        assert travels(note)


def test_names_that_are_none_are_left_out(monkeypatch):
    """A program may put anything into its namespace."""
    main = SimpleNamespace()
    vars(main).update({1: "one", np.str_("x"): 2, "y": 3})
    monkeypatch.setitem(sys.modules, "__main__", main)
    assert variables() == ("x", "y")
    assert to_json(Answer(1, variables=variables()))
