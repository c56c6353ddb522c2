"""Checked mode with a store and no group: who waits, the order of posts, what is told."""

import contextlib
import re
import threading
from collections import Counter
from datetime import timedelta
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d_in_cpp

from distlab.compat import torch as private
from distlab.errors import ArgumentError, MismatchError
from distlab.rank import checks
from distlab.rank.checks import Checker
from distlab.rank.log import LOG, Note
from distlab.rank.methods import MESSAGE_METHODS
from distlab.wire.messages import COLLECTIVE, MESSAGE, CallRecord
from tests.processes import until

FLOATS = (("float32", (2,)),)
# as pybind11 writes types
TAKES_A_WORK = re.compile(r"(?<!self): (c10d::|torch\._C\._distributed_c10d\.)Work\b")


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

    def _source_rank(self):
        raise RuntimeError("This backend does not say who sent it.")

    def get_future(self):
        future = torch.futures.Future()
        future.set_result([self.value])
        return future


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
    monkeypatch.setattr(checks, "record_of", lambda note: note.record)  # as a group would say it
    made = []

    class Rank:
        """The calls of one rank; `posted` lists what has gone to the group, in order."""

        def __init__(self, rank, members=(0, 1)):
            self.rank, self.members, self.posted = rank, members, []
            self.checker = Checker("cell", "127.0.0.1", 1, 10.0)
            made.append(self)

        def call(
            self,
            op="all_reduce",
            method="allreduce",
            peer=-1,
            tag=0,
            group="0",
            limit=10.0,
            **record,
        ):
            def original():
                self.posted.append(op)
                return PostedWork(op)

            me.rank = self.rank
            record = {"members": self.members, "collective": op, "tensors": FLOATS, **record}
            note = Note(op, MESSAGE if method in MESSAGE_METHODS else COLLECTIVE)
            note.method, note.peer, note.tag, note.group = method, peer, tag, group
            note.record = CallRecord(op, note.kind, **record)
            work = self.checker.call(note, limit, original)
            LOG.tie(work, note)
            return work

        def send(self, peer, tag=0, **record):
            return self.call("send", "send", peer, tag, **record)

        def recv(self, peer, tag=0, op="recv", **record):
            return self.call(op, "recv" if peer >= 0 else "recv_anysource", peer, tag, **record)

    yield Rank
    for rank in made:
        rank.checker.close()


# --- the thread that posts ---


def test_a_thread_that_fails_leaves_no_call_waiting(rank_of, monkeypatch):
    """Nobody would post it: the call fails, and so does the next one, and the cell ends."""
    one = rank_of(0)
    monkeypatch.setattr(one.checker, "_post_in_turn", lambda *_: {}["a fault"])
    words = "Checked mode has failed on this rank: KeyError: 'a fault'"
    with pytest.raises(RuntimeError, match=words):
        one.call().wait(timedelta(seconds=10))
    with pytest.raises(RuntimeError, match=words):
        one.call()


# --- collectives ---


def test_collectives_are_posted_in_their_order_when_all_have_come(rank_of, store):
    """However many were begun before: gloo counts them. Nothing stays in the store."""
    keys = store.num_keys()
    one, other = rank_of(0), rank_of(1)
    names = [f"call {k}" for k in range(50)]
    works = [one.call(name) for name in names]
    assert (works[-1].is_completed(), one.posted) == (False, [])
    works += [other.call(name) for name in names]
    assert [work.wait() for work in works] == names * 2
    assert one.posted == other.posted == names
    until(lambda: store.num_keys() == keys)


def test_two_threads_of_a_rank_number_their_calls_one_after_another(rank_of, store):
    """Each call is told by its own number, whatever thread comes between."""
    one, other = rank_of(0), rank_of(1)
    together = threading.Barrier(2)

    class Slow(Counter):
        def __setitem__(self, lane, number):
            super().__setitem__(lane, number)
            with contextlib.suppress(threading.BrokenBarrierError):
                together.wait(0.3)

    one.checker._begun = Slow()
    works = []
    threads = [threading.Thread(target=lambda: works.append(one.call())) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    works += [other.call(), other.call()]
    assert [work.wait() for work in works] == ["all_reduce"] * 4


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
    """By the (source, tag) of recvs and sends: each message serves one recv."""
    keys = store.num_keys()
    ranks = [rank_of(rank, (0, 1, 2)) for rank in range(3)]
    works = [ranks[0].recv(*given) for given in recvs]
    for (source, tag), first in zip(sends, served, strict=True):
        assert not works[first].is_completed()
        ranks[source].send(0, tag)
        assert works[first].wait() == "recv"
    assert store.num_keys() == keys
    assert all(work.is_completed() and work.result() == ["result"] for work in works)


@pytest.mark.parametrize(("recvs", "kept"), [([], 0), ([(1, 0)], 1), ([(1, 1)], 0), ([(2, 0)], 0)])
def test_the_work_of_a_dropped_isend_is_kept_if_its_recv_has_begun(rank_of, recvs, kept):
    """gloo then sends the message also without checks; if not, it is lost there, and here."""
    LOG.forget()
    receiver, sender = rank_of(0, (0, 1, 2)), rank_of(1, (0, 1, 2))
    for given in recvs:
        receiver.recv(*given, op="irecv")
    work = sender.call("isend", "send", 0)
    assert LOG.kept_works == {}
    del work
    assert len(LOG.kept_works.get("0", [])) == kept
    LOG.forget()
    assert LOG.kept_works == {}


def test_the_work_of_an_isend_is_kept_if_its_recv_was_posted_before_it_is_dropped(rank_of, store):
    """Also one from any source, and the next one after that."""
    LOG.forget()
    keys = store.num_keys()
    receiver, sender = rank_of(0), rank_of(1)
    works = [sender.call("isend", "send", 0) for _ in range(2)]
    assert receiver.recv(ANY).wait() == "recv"
    assert receiver.recv(1).wait() == "recv"
    works.clear()
    assert len(LOG.kept_works["0"]) == 2
    assert store.num_keys() == keys
    LOG.forget()


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


def test_a_call_that_is_posted_later_returns_a_work(rank_of):
    """torch asks for the type, and has methods that need the call's own Work."""
    one, other = rank_of(0), rank_of(1)
    work = one.call()
    assert isinstance(work, dist.Work)
    other.call()
    assert work.result() == ["result"]
    own = {name for name in vars(dist.Work) if not name.startswith("_")} - {"unbox"}
    assert own <= set(vars(type(work)))


def test_few_functions_of_cpp_take_a_work():
    """DDP's gets torch's own Work; groups in Python need the object of Python."""
    found = set()
    for owner in (
        c10d_in_cpp,
        *filter(lambda one: isinstance(one, type), vars(c10d_in_cpp).values()),
    ):
        for name, function in vars(owner).items():
            signatures = [line for line in (function.__doc__ or "").splitlines() if "->" in line]
            if any(TAKES_A_WORK.search(line.split("->")[0]) for line in signatures):
                found.add(name)
    # where torch is built with CUDA; never called on ranks of gloo
    of_nccl = {"_verify_work_timeout"}
    assert found - of_nccl == {"_set_forward_pass_work_handle", "_register_work"}


@pytest.mark.parametrize("begin", ["recv", "call"])
@pytest.mark.parametrize(
    ("limit", "own"),
    [(0.02, ()), (10.0, (timedelta(milliseconds=20),))],
    ids=["the call's limit", "the wait's own"],
)
def test_a_wait_is_no_longer_than_that_of_a_call(rank_of, begin, limit, own):
    """The limit ends it, in gloo's own words."""
    one = rank_of(0)
    work = one.recv(1, limit=limit) if begin == "recv" else one.call(limit=limit)
    with pytest.raises(
        RuntimeError, match=r"^Timed out waiting 20ms for recv operation to complete$"
    ):
        work.wait(*own)


def test_a_collective_is_ended_by_its_limit_and_a_recv_by_its_wait(rank_of):
    """As on gloo, where a Future, which C++ waits for without a limit, ends with its collective."""
    one = rank_of(0)
    recv = one.recv(1, limit=0.02)
    late = one.call(limit=0.02)
    with pytest.raises(RuntimeError, match=r"Timed out waiting 20ms"):
        late.get_future().wait()
    assert late.is_completed()
    assert not recv.is_completed()


def test_a_future_is_there_before_the_other_ranks(rank_of):
    """It gets the value of the call's own, and calls what follows it."""
    one, other = rank_of(0), rank_of(1)
    future = one.call("first").get_future()
    following = future.then(lambda done: [done.value(), "followed"])
    assert not future.done()
    other.call("first")
    assert future.wait() == ["first"]
    assert following.wait() == [["first"], "followed"]


@pytest.mark.parametrize(
    "follow", [lambda f: f, lambda f: f.then(lambda done: done.value())], ids=["itself", "then"]
)
def test_a_future_of_calls_that_do_not_match(rank_of, follow):
    """A waiter gets the MismatchError; C++, which keeps words only, gets those."""
    one, other = rank_of(0), rank_of(1)
    future = follow(one.call().get_future())
    other.call(tensors=(("int32", (2,)),))
    with pytest.raises(
        (MismatchError, RuntimeError), match=r"rank 0 has float32\[2\], rank 1 has int32\[2\]"
    ):
        future.wait()


# --- places for what other ranks send ---


def test_one_memory_in_several_places_is_refused(rank_of):
    """With the argument, the ranks whose data would be lost, and how to make such a list."""
    one = rank_of(0)
    place = torch.zeros(3)
    one.checker.refuse_shared_memory("tensor_list", torch.zeros(4, 3).unbind(1), [2, 5, 7])
    with pytest.raises(ArgumentError) as refused:
        one.checker.refuse_shared_memory("tensor_list", [place, torch.zeros(3), place], [2, 5, 7])
    assert str(refused.value) == (
        "tensor_list must be tensors that share no memory, got the same memory for what ranks "
        "2 and 7 send. Make it with [torch.empty_like(tensor) for _ in range(world_size)]: "
        "[tensor] * world_size is one tensor, which keeps the data of one rank only."
    )


# --- what C++ begins beside them ---


def test_what_cpp_begins_comes_after_what_was_begun_before(rank_of):
    """In the same group; messages and other groups wait on."""
    one, other = rank_of(0), rank_of(1)
    kept = [one.recv(1), one.call("elsewhere", group="1")]
    one.call("first")
    one.call("second")
    begun = threading.Thread(
        target=one.checker.in_turn, args=("0", lambda: one.posted.append("in C++"))
    )
    begun.start()
    assert one.posted == []
    other.call("first")
    until(lambda: one.posted == ["first"])
    other.call("second")
    begun.join()
    assert one.posted == ["first", "second", "in C++"]
    assert not any(work.is_completed() for work in kept)


def test_the_functions_that_begin_collectives_in_cpp_exist():
    """Under these names, in this torch."""
    assert [name for owner, name in private.BEGINNING_IN_CPP if not hasattr(owner, name)] == []


@pytest.mark.parametrize(
    ("own", "limit"), [(None, 60.0), (timedelta(seconds=2), 2.0), (timedelta(-1), 60.0)]
)
def test_the_limit_of_a_call(alone, own, limit):
    """Its own, or else that of its group."""
    options = SimpleNamespace(timeout=own)
    assert private.limit_of(dist.group.WORLD, options).total_seconds() == limit
