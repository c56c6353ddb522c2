"""Checked mode with a store and without a group: what waits for what, in which order it is posted, and what is told."""

from datetime import timedelta
from types import SimpleNamespace

import pytest
import torch.distributed as dist

from distlab.rank.checks import Checker, Deferred
from distlab.rank.log import LOG, POINT_TO_POINT, Note
from distlab.wire.messages import COLLECTIVE, MESSAGE, OTHER, CallRecord
from tests.processes import until

FLOATS = (("float32", (2,)),)


class PostedWork:
    """What a call returns when it has been posted; it has ended, with this value."""

    def __init__(self, value=True):
        self.value = value

    def wait(self, *timeout):
        return self.value

    def is_completed(self):
        return True

    def result(self):
        return ["result"]


@pytest.fixture
def store():
    """The cluster's store, in memory."""
    return dist.HashStore()


@pytest.fixture
def rank_of(monkeypatch, store):
    """Gives the calls of a rank of the world or of a group of `members`."""
    me = SimpleNamespace()
    monkeypatch.setattr(dist, "get_rank", lambda: me.rank)
    monkeypatch.setattr(dist, "TCPStore", lambda *address, **options: store)
    made = []

    class Rank:
        """The calls of one rank; `posted` lists what has gone to the group, in order."""

        def __init__(self, rank, members=(0, 1)):
            self.rank, self.members, self.posted = rank, members, []
            self.checker = Checker("cell", "127.0.0.1", 1, 10.0)
            made.append(self)

        def call(self, op="all_reduce", method="allreduce", peer=-1, tag=0, group="0", **record):
            def original():
                self.posted.append(op)
                return PostedWork(op)

            me.rank = self.rank
            record = {"members": self.members, "collective": op, "tensors": FLOATS, **record}
            note = Note(op, MESSAGE if method in POINT_TO_POINT else COLLECTIVE)
            note.method, note.peer, note.tag, note.group = method, peer, tag, group
            note.record = lambda: CallRecord(op, OTHER, **record)
            work = self.checker.call(note, original)
            LOG.tie(work, note)
            return work

        def send(self, peer, tag=0, **record):
            return self.call("send", "send", peer, tag, **record)

        def recv(self, peer, tag=0, op="recv", **record):
            return self.call(op, "recv" if peer >= 0 else "recv_anysource", peer, tag, **record)

    yield Rank
    for rank in made:
        rank.checker.close()


# --- collectives ---


def test_collectives_are_posted_in_their_order_when_all_have_come(rank_of, store):
    """However many were begun before the others came: gloo counts them. Nothing stays in the store."""
    keys = store.num_keys()
    one, other = rank_of(0), rank_of(1)
    names = [f"call {k}" for k in range(50)]
    works = [one.call(name) for name in names]
    assert (works[-1].is_completed(), one.posted) == (False, [])
    works += [other.call(name) for name in names]
    assert [work.wait() for work in works] == names * 2
    assert one.posted == other.posted == names
    until(lambda: store.num_keys() == keys)


# --- messages ---


ANY = -1

ROUTES = {
    "in their order": ([(1, 0)] * 4, [(1, 0)] * 4, [0, 1, 2, 3]),
    "tags overtake each other": ([(1, 1), (1, 2)], [(1, 2), (1, 1)], [1, 0]),
    "another source is not held up": ([(1, 0), (2, 0)], [(2, 0), (1, 0)], [1, 0]),
    "from any source": ([(ANY, 0)] * 2, [(2, 0), (1, 0)], [0, 1]),
    "a directed one after one from any source": ([(ANY, 0), (1, 0)], [(1, 0)] * 2, [0, 1]),
    "of oneself": ([(0, 0)], [(0, 0)], [0]),
}


@pytest.mark.parametrize(("recvs", "sends", "served"), ROUTES.values(), ids=ROUTES)
def test_a_message_goes_to_the_recv_that_takes_it(rank_of, store, recvs, sends, served):
    """By the (source, tag) of recvs and sends: each message serves one recv, and only recvs of its lane wait for it."""
    keys = store.num_keys()
    ranks = [rank_of(rank, (0, 1, 2)) for rank in range(3)]
    works = [ranks[0].recv(*given) for given in recvs]
    for (source, tag), first in zip(sends, served, strict=True):
        assert not works[first].is_completed()
        ranks[source].send(0, tag)
        assert works[first].wait() == "recv"
    assert store.num_keys() == keys
    assert all(work.is_completed() and work.result() == ["result"] for work in works)


# --- the end of a cell, and of the store ---


def test_what_waits_at_the_end_of_a_cell_is_posted_unchecked(rank_of):
    """Its other end may come in a later cell, which tells nothing of it."""
    receiver = rank_of(0)
    works = [receiver.recv(1, op="first"), receiver.recv(1, op="second"), receiver.call()]
    receiver.checker.close()
    assert receiver.posted == [work.wait() for work in works] == ["first", "second", "all_reduce"]


def test_a_store_that_is_gone_ends_every_wait(rank_of, monkeypatch):
    """The watchdog frees a rank in checked mode by its connection to the store."""
    receiver = rank_of(0)
    works = [receiver.recv(1), receiver.recv(1)]

    def gone(self, keys):
        raise ConnectionError("Broken pipe")

    monkeypatch.setattr(dist.HashStore, "check", gone)
    for work in works:
        with pytest.raises(ConnectionError, match="Broken pipe"):
            work.wait()


# --- what a call returns that is posted later ---


@pytest.mark.parametrize("limit", [None, timedelta(milliseconds=20)], ids=["the cluster's limit", "the wait's own"])
def test_a_wait_is_no_longer_than_that_of_a_call(rank_of, limit):
    """The limit ends it, in gloo's own words."""
    rank_of(0).checker.close()
    call = Deferred(None, None, [], PostedWork, 10.0 if limit else 0.02)
    with pytest.raises(RuntimeError, match=r"^Timed out waiting 20ms for recv operation to complete$"):
        call.wait(*([limit] if limit else []))
