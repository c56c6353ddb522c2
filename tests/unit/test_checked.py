"""Checked mode with a store on paper: what waits for what, in which order it is posted, and what is told."""

import json
import threading
import time
from datetime import timedelta
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from distlab import checked, poster
from distlab.checked import Checker
from distlab.errors import MismatchError
from distlab.notes import NOTES
from distlab.poster import Deferred, Poster

TENSOR = {"tensors": [["float32", [2]]], "members": [0, 1, 2]}


class FakeStore:
    """A TCPStore in memory, for several ranks of one process."""

    def __init__(self):
        self.values = {}
        self.changed = threading.Condition()
        self.gone = False

    def _use(self):
        if self.gone:
            raise ConnectionError("Broken pipe")

    def set(self, key, value):
        with self.changed:
            self._use()
            self.values[key] = str(value).encode()
            self.changed.notify_all()

    def get(self, key):
        with self.changed:
            self._use()
            if not self.changed.wait_for(lambda: key in self.values, 10):
                raise RuntimeError(f"wait timeout after 10000ms, keys: /{key}")
            return self.values[key]

    def multi_get(self, keys):
        return [self.get(key) for key in keys]

    def add(self, key, amount):
        with self.changed:
            self._use()
            total = int(self.values.get(key, b"0")) + amount
            self.values[key] = str(total).encode()
            self.changed.notify_all()
            return total

    def check(self, keys):
        with self.changed:
            self._use()
            return all(key in self.values for key in keys)

    def delete_key(self, key):
        with self.changed:
            self._use()
            return self.values.pop(key, None) is not None


class FakeWork:
    """What a call returns when it has been posted."""

    def __init__(self, value=True):
        self.value = value
        self.waits = []

    def wait(self, *timeout):
        self.waits.append(timeout)
        return self.value

    def is_completed(self):
        return True

    def result(self):
        return [self.value]

    def get_future(self):
        future = torch.futures.Future()
        future.set_result(self.value)
        return future


def note_of(method="allreduce", **fields):
    """A note as calls.py makes it, for what a Checker reads of it."""
    plain = {"group": "0", "peer": -1, "tag": 0, "is_async": False, "own_limit": False, "done": False}
    return SimpleNamespace(method=method, **{**plain, **fields})


@pytest.fixture
def store():
    return FakeStore()


@pytest.fixture
def rank_of(monkeypatch, store):
    """Gives a Checker that belongs to a rank, on whatever thread it is used."""
    me = threading.local()
    monkeypatch.setattr(dist, "get_rank", lambda: me.rank)
    monkeypatch.setattr(dist, "TCPStore", lambda *address, **options: store)
    monkeypatch.setattr(checked.state, "describe", lambda note: {**TENSOR, **note.plain})

    class Rank:
        """The calls of one rank; `posted` lists what has gone to the group, in order."""

        def __init__(self, rank, limit=10.0):
            self.rank, self.posted = rank, []
            self.checker = Checker("cell", "127.0.0.1", 1, limit)

        def call(self, name, note, **plain):
            me.rank = self.rank
            note.plain = {"op": name, "collective": name, **plain}

            def original():
                me.rank = self.rank
                self.posted.append(name)
                return FakeWork(name)

            return self.checker.call(note, original)

        def collective(self, name="all_reduce", is_async=False, **plain):
            return self.call(name, note_of(is_async=is_async), **plain)

        def send(self, peer, name="send", tag=0, **plain):
            return self.call(name, note_of("send", peer=peer, tag=tag), **plain)

        def recv(self, peer=-1, name="recv", tag=0, **plain):
            method = "recv" if peer >= 0 else "recv_anysource"
            return self.call(name, note_of(method, peer=peer, tag=tag), **plain)

    made = []

    def make(rank, **options):
        made.append(Rank(rank, **options))
        return made[-1]

    yield make
    for rank in made:
        rank.checker.close()


def on_thread(function, *arguments, **keywords):
    """The thread that runs it, and what came out, an error too."""
    outcome = []

    def run():
        try:
            outcome.append(function(*arguments, **keywords))
        except Exception as error:
            outcome.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, outcome


def together(*calls):
    """The outcomes of calls made by several ranks at once."""
    started = [on_thread(call) for call in calls]
    for thread, _ in started:
        thread.join(10)
    return [outcome[0] for _, outcome in started]


def until(condition):
    deadline = time.monotonic() + 10
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.001)
    assert condition()


# --- collectives ---


def test_a_collective_is_made_when_all_have_come(rank_of, store):
    """Nobody's data moves before; nothing is left in the store afterwards."""
    ranks = [rank_of(r) for r in range(3)]
    early = [on_thread(rank.collective) for rank in ranks[:2]]
    until(lambda: store.values.get("cell/0/1/arrived") == b"2")
    assert [rank.posted for rank in ranks] == [[], [], []]
    assert ranks[2].collective().value == "all_reduce"
    for thread, outcome in early:
        thread.join(10)
        assert outcome[0].value == "all_reduce"
    assert store.values == {}


def test_calls_that_do_not_fit_are_made_by_nobody(rank_of):
    """Every rank is told the same, with a capital, before any data moves."""
    ranks = [rank_of(r) for r in range(3)]
    ops = ("MAX", "SUM", "SUM")
    told = together(
        *(lambda rank=rank, op=op: rank.collective(reduce_op=op) for rank, op in zip(ranks, ops, strict=True))
    )
    assert {type(error) for error in told} == {MismatchError}
    words = "The ranks do not agree in all_reduce: rank 0 has op=MAX, ranks 1-2 have op=SUM."
    assert {str(error) for error in told} == {words}
    assert [rank.posted for rank in ranks] == [[], [], []]


def test_different_collectives_are_told(rank_of):
    """By their numbers, whatever they are."""
    one, other = rank_of(0), rank_of(1)
    pair = {"members": [0, 1]}
    told = together(lambda: one.collective(**pair), lambda: other.collective("barrier", tensors=[], **pair))
    words = "The ranks do not call the same collective: rank 0 calls all_reduce, rank 1 calls barrier."
    assert [str(error) for error in told] == [words] * 2


def test_an_asynchronous_collective_does_not_block(rank_of):
    """It is posted when the others have come; its caller goes on meanwhile."""
    one, other = rank_of(0), rank_of(1)
    work = one.collective(is_async=True, members=[0, 1])
    assert isinstance(work, dist.Work)
    assert (work.is_completed(), one.posted) == (False, [])
    other.collective(members=[0, 1])
    assert work.wait() == "all_reduce"
    assert (work.is_completed(), one.posted) == (True, ["all_reduce"])


def test_an_asynchronous_collective_that_does_not_fit_is_told_by_its_wait(rank_of):
    """Its caller learns of it where it waits, each time."""
    one, other = rank_of(0), rank_of(1)
    work = one.collective(is_async=True, members=[0, 1], root=0)
    with pytest.raises(MismatchError):
        other.collective(members=[0, 1], root=1)
    words = "The ranks do not agree in all_reduce: rank 0 has the root 0, rank 1 has the root 1."
    for _ in range(2):
        with pytest.raises(MismatchError) as caught:
            work.wait()
        assert str(caught.value) == words
    assert one.posted == []
    assert work.is_completed()


def test_collectives_are_posted_in_their_order(rank_of):
    """One that blocks comes after the asynchronous ones before it, on each rank: gloo counts them."""
    one, other = rank_of(0), rank_of(1)
    pair = {"members": [0, 1]}
    works = [one.collective(f"async {k}", is_async=True, **pair) for k in range(3)]
    last = one.collective("last", **pair)
    for k in range(3):
        other.collective(f"async {k}", **pair)
    other.collective("last", **pair)
    assert last.wait() == "last"
    assert [work.wait() for work in works] == ["async 0", "async 1", "async 2"]
    assert one.posted == other.posted == ["async 0", "async 1", "async 2", "last"]


def test_a_collective_that_was_read_late_is_still_there(rank_of, store):
    """A rank that is ahead may announce the next before it has read the verdict on the last."""
    one, other = rank_of(0), rank_of(1)
    pair = {"members": [0, 1]}
    works = [one.collective(is_async=True, **pair) for _ in range(50)]
    for _ in range(50):
        other.collective(**pair)
    assert [work.wait() for work in works] == ["all_reduce"] * 50
    until(lambda: store.values == {})


def test_groups_have_turns_of_their_own(rank_of):
    """The first collective of each group is its first, whatever happened in others."""
    one, other = rank_of(0), rank_of(1)
    one.call("alone", note_of(group="1"), members=[0])
    told = together(
        lambda: one.call("both", note_of(group="2"), members=[0, 1]),
        lambda: other.call("both", note_of(group="2"), members=[0, 1]),
    )
    assert [work.value for work in told] == ["both", "both"]


def test_a_monitored_barrier_is_left_alone(rank_of, store):
    """It has a limit of its own, and says itself who is missing."""
    alone = rank_of(0)
    assert alone.call("monitored_barrier", note_of("monitored_barrier")).value == "monitored_barrier"
    assert store.values == {}


# --- messages ---


def test_a_recv_is_posted_when_its_sender_has_told(rank_of, store):
    """An irecv returns at once; the send never waits for the comparison."""
    receiver, sender = rank_of(0), rank_of(1)
    work = receiver.recv(1)
    assert not work.is_completed()
    assert sender.send(0).value == "send"
    assert work.wait() == "recv"
    assert store.values == {}


def test_a_send_may_come_first(rank_of):
    """What it says stays until the recv has come."""
    receiver, sender = rank_of(0), rank_of(1)
    sender.send(0)
    assert receiver.recv(1).wait() == "recv"


def test_a_message_that_does_not_fit_is_not_received(rank_of):
    """Sender, receiver, and what each has said."""
    receiver, sender = rank_of(0), rank_of(2)
    work = receiver.recv(2)
    sender.send(0, tensors=[["int32", [3]]])
    with pytest.raises(MismatchError) as caught:
        work.wait()
    words = "The two ends of a message from rank 2 to rank 0 do not fit: int32[3] is sent, float32[2] is to receive it."
    assert str(caught.value) == words
    assert receiver.posted == []


def test_ranks_of_a_subgroup_are_named_as_those_of_the_world(rank_of):
    """Peers are numbers in the group; the sentence has the world's."""
    receiver, sender = rank_of(7), rank_of(5)
    group = {"members": [5, 7]}
    work = receiver.recv(0, **group)
    sender.send(1, tensors=[["float32", [9]]], **group)
    with pytest.raises(MismatchError, match="from rank 5 to rank 7"):
        work.wait()


def test_messages_of_one_source_and_tag_keep_their_order(rank_of):
    """The first recv is compared with the first send."""
    receiver, sender = rank_of(0), rank_of(1)
    works = [receiver.recv(1, f"recv {k}", tensors=[["float32", [k]]]) for k in range(5)]
    for k in range(5):
        sender.send(0, tensors=[["float32", [k]]])
    assert [work.wait() for work in reversed(works)] == [f"recv {k}" for k in (4, 3, 2, 1, 0)]
    assert receiver.posted == [f"recv {k}" for k in range(5)]


def test_tags_overtake_each_other(rank_of):
    """A recv whose message is there does not wait for one with another tag before it."""
    receiver, sender = rank_of(0), rank_of(1)
    first, second = receiver.recv(1, "first", tag=1), receiver.recv(1, "second", tag=2)
    sender.send(0, tag=2)
    assert second.wait() == "second"
    assert not first.is_completed()
    sender.send(0, tag=1)
    assert first.wait() == "first"


def test_any_source_takes_several_messages_of_one_sender(rank_of):
    """Recvs from any source that were begun together serve whatever comes."""
    receiver, sender = rank_of(0), rank_of(1)
    works = [receiver.recv() for _ in range(4)]
    for _ in range(4):
        sender.send(0)
    assert [work.wait() for work in works] == ["recv"] * 4


def test_any_source_takes_messages_of_several_senders(rank_of):
    """One of each, in any order."""
    receiver, senders = rank_of(0), [rank_of(r) for r in (1, 2)]
    works = [receiver.recv() for _ in range(2)]
    for sender in reversed(senders):
        sender.send(0)
    assert [work.wait() for work in works] == ["recv"] * 2


def test_a_directed_recv_comes_after_one_from_any_source_before_it(rank_of):
    """The first message goes to the recv that was begun first, the second to the other."""
    receiver, sender = rank_of(0), rank_of(1)
    any_source, directed = receiver.recv(-1, "any"), receiver.recv(1, "directed")
    sender.send(0)
    assert any_source.wait() == "any"
    assert not directed.is_completed()
    sender.send(0)
    assert directed.wait() == "directed"


def test_a_recv_from_another_source_is_not_held_up(rank_of):
    """Only those that could take the same message wait for each other."""
    receiver, one, two = rank_of(0), rank_of(1), rank_of(2)
    first, second = receiver.recv(1, "from 1"), receiver.recv(2, "from 2")
    two.send(0)
    assert second.wait() == "from 2"
    one.send(0)
    assert first.wait() == "from 1"


def test_a_message_to_oneself_is_compared_too(rank_of):
    """Its send and its recv count for themselves."""
    alone = rank_of(0)
    work = alone.recv(0)
    alone.send(0)
    assert work.wait() == "recv"


# --- the end of a cell, and of the store ---


def test_what_waits_at_the_end_of_a_cell_is_posted_unchecked(rank_of):
    """Its other end may come in a later cell, which tells nothing of it."""
    receiver = rank_of(0)
    works = [receiver.recv(1, f"recv {k}") for k in range(2)]
    later = receiver.collective("later", is_async=True)
    receiver.checker.close()
    assert receiver.posted == ["recv 0", "recv 1", "later"]
    assert [work.wait() for work in (*works, later)] == ["recv 0", "recv 1", "later"]


def test_what_is_known_at_the_end_of_a_cell_is_checked(rank_of):
    """A message that has been told of is compared, however late it is."""
    receiver, sender = rank_of(0), rank_of(1)
    sender.send(0, tensors=[["int8", [2]]])
    work = receiver.recv(1)
    receiver.checker.close()
    with pytest.raises(MismatchError):
        work.wait()


def test_a_store_that_is_gone_ends_every_wait(rank_of, store):
    """The sentinel frees a rank in checked mode by its connection to the store."""
    receiver = rank_of(0)
    works = [receiver.recv(1), receiver.recv(2)]
    store.gone = True
    for work in works:
        with pytest.raises(ConnectionError, match="Broken pipe"):
            work.wait()


# --- a deferred call ---


def settled(value=None, error=None, limit=10.0):
    """A deferred call that was posted, or refused."""
    call = Deferred(note_of(), lambda: value or FakeWork(), limit)

    def check():
        if error is not None:
            raise error

    call.settle(check)
    return call


def test_a_deferred_call_waits_no_longer_than_a_call_does():
    """The cluster's limit ends it, in gloo's own words."""
    call = Deferred(note_of(), FakeWork, limit=0.02)
    with pytest.raises(RuntimeError) as caught:
        call.wait()
    assert str(caught.value) == "Timed out waiting 20ms for recv operation to complete"
    call.settle(lambda: None)
    assert call.wait() is True


def test_a_limit_given_to_wait_is_its_own():
    """Work.wait(timeout) ends by itself, before the call is posted and afterwards."""
    call = Deferred(note_of(), FakeWork, limit=10.0)
    with pytest.raises(RuntimeError, match="Timed out waiting 10ms for recv operation to complete"):
        call.wait(timedelta(milliseconds=10))
    assert call._note.waits_shorter
    work = FakeWork()
    settled(work).wait(timedelta(seconds=5))
    assert work.waits == [(timedelta(seconds=5),)]


def test_a_call_that_its_group_refuses_raises_where_it_is_waited_for():
    """The error of the call itself, as that of the comparison."""

    def refuse():
        raise ValueError("no such tensor")

    call = Deferred(note_of(), refuse, 10.0)
    call.settle(lambda: None)
    with pytest.raises(ValueError, match="no such tensor"):
        call.wait()


def test_what_was_posted_does_not_fail_any_more():
    """A store that goes away later takes nothing back."""
    call = settled()
    call.fail(ConnectionError("gone"))
    assert call.wait() is True


def test_a_wait_says_what_is_waited_for():
    """As for a Work of torch's; and that it has ended well."""
    call = Deferred(note_of(), FakeWork, 10.0)
    thread, outcome = on_thread(call.wait)
    until(lambda: NOTES.now.get(thread.ident) is call._note)
    assert not call._note.done
    call.settle(lambda: None)
    thread.join(10)
    assert (outcome, call._note.done) == ([True], True)
    assert thread.ident not in NOTES.now


def test_other_methods_are_those_of_the_work():
    """They wait until the call has been posted."""
    call = Deferred(note_of(), FakeWork, 10.0)
    thread, outcome = on_thread(call.result)
    call.settle(lambda: None)
    thread.join(10)
    assert outcome == [[True]]
    with pytest.raises(MismatchError):
        settled(error=MismatchError("no")).result()


@pytest.mark.parametrize("first", ["future", "posted"])
def test_a_future_is_there_before_the_call_is_posted(first):
    """It is completed as the call's own is, whichever comes first."""
    call = Deferred(note_of(), lambda: FakeWork(3), 10.0)
    future = call.get_future() if first == "future" else None
    call.settle(lambda: None)
    future = future or call.get_future()
    assert future.wait() == 3
    assert NOTES.of(future) is call._note


def test_a_future_of_a_refused_call_raises():
    """Before and after it was refused."""
    call = Deferred(note_of(), FakeWork, 10.0)
    before = call.get_future()
    call.fail(MismatchError("no"))
    for future in (before, call.get_future()):
        with pytest.raises(MismatchError, match="no"):
            future.wait()


# --- the poster ---


def test_the_poster_ends_when_nothing_is_left():
    """A thread works while something waits, and a new one later; none is left over."""
    poster_ = Poster(FakeStore())
    for _ in range(3):
        call = Deferred(note_of(), FakeWork, 10.0)
        poster_.add(call, ["lane"], lambda store, lanes: lambda: None)
        assert call.wait() is True
        until(lambda: not any(thread.name == poster.THREAD_NAME for thread in threading.enumerate()))
    assert not poster_.busy("lane")


def test_a_call_waits_for_those_before_it_in_a_lane():
    """It is shown its lanes that are free; a call that shares none goes past."""
    poster_, seen, go = Poster(FakeStore()), [], threading.Event()

    def when_told(store, lanes):
        return (lambda: None) if go.is_set() else None

    def at_once(name):
        def ready(store, lanes):
            seen.append((name, tuple(lanes)))
            return (lambda: None) if lanes else None

        return ready

    calls = [Deferred(note_of(), FakeWork, 10.0) for _ in range(3)]
    poster_.add(calls[0], ["a", "b"], when_told)
    poster_.add(calls[1], ["a"], at_once("behind"))
    poster_.add(calls[2], ["b", "c"], at_once("beside"))
    assert calls[2].wait() is True
    assert not calls[1].is_completed()
    assert poster_.busy("a")
    go.set()
    assert calls[1].wait() is True
    assert ("beside", ("c",)) in seen
    assert seen[-1] == ("behind", ("a",))
    assert {lanes for name, lanes in seen if name == "behind"} == {(), ("a",)}


def test_posting_counts_as_movement():
    """A rank whose recv has just been posted is not at rest."""
    poster_, before = Poster(FakeStore()), NOTES.total
    call = Deferred(note_of(), FakeWork, 10.0)
    poster_.add(call, ["lane"], lambda store, lanes: lambda: None)
    until(lambda: NOTES.total > before)


def test_what_travels_is_json(rank_of, store):
    """Ranks compare plain values: the sender's tensors, by its key."""
    rank_of(1).send(0, tag=3)
    ((key, value),) = store.values.items()
    assert key == "cell/message/0/1/0/3/1"
    assert json.loads(value)["tensors"] == [["float32", [2]]]
