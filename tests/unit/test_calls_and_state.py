"""What a rank notes of its calls, and tells: torch's own functions on a group that sends nothing, and on gloo alone."""

import asyncio
import sys
import sysconfig
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from queue import SimpleQueue
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
import torch.testing._internal.distributed.fake_pg  # registers the backend that sends nothing
from torch._C._distributed_c10d import FakeWork

from distlab import calls, notes, quiet, state
from distlab.errors import ArgumentError
from distlab.notes import NOTES
from distlab.rendezvous import loopback_interface

C10D = dist.distributed_c10d
LIMIT = timedelta(seconds=60)


@pytest.fixture(autouse=True)
def layer(monkeypatch):
    """The layer is in place for a test, and gone afterwards, with all that was noted."""
    names = [name for name in (*notes.POINT_TO_POINT, *notes.COLLECTIVES) if hasattr(dist.ProcessGroup, name)]
    for owner, method in [
        *((dist.ProcessGroup, name) for name in names),
        *[(dist.Work, "wait"), (dist.Work, "get_future"), (torch.Future, "wait"), (torch.Future, "then")],
    ]:
        monkeypatch.setattr(owner, method, getattr(owner, method))  # is put back
    monkeypatch.setattr(C10D, "default_pg_timeout", LIMIT)
    monkeypatch.setattr(NOTES, "world_size", 4)
    calls.install()
    yield
    if dist.is_initialized():
        dist.destroy_process_group()
    NOTES.forget()


@pytest.fixture
def four(monkeypatch):
    """This process is rank 1 of four that do not exist: every call ends at once."""
    monkeypatch.setattr(FakeWork, "wait", calls._waiting(FakeWork.wait))  # it does not inherit Work's
    dist.init_process_group("fake", store=dist.HashStore(), rank=1, world_size=4)


@pytest.fixture
def alone(monkeypatch):
    """A gloo group of this process alone."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", loopback_interface())
    monkeypatch.setattr(NOTES, "world_size", 1)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1, timeout=LIMIT)


def last():
    """The newest collective, described."""
    return state.describe([note for row in NOTES.collectives.values() for note in row][-1])


def ones(*shape, dtype=torch.float32):
    return torch.ones(shape, dtype=dtype)


def four_of(*shape):
    return [ones(*shape) for _ in range(4)]


# --- collectives ---


@pytest.mark.parametrize(
    ("call", "op", "collective", "arguments"),
    [
        (lambda: dist.all_reduce(ones(2), op=dist.ReduceOp.MAX), "all_reduce", "all_reduce", {"reduce_op": "MAX"}),
        (lambda: dist.broadcast(ones(2), src=3), "broadcast", "broadcast", {"root": 3}),
        (lambda: dist.reduce(ones(2), dst=2), "reduce", "reduce", {"root": 2, "reduce_op": "SUM"}),
        (lambda: dist.all_gather(four_of(2), ones(2)), "all_gather", "all_gather", {}),
        (lambda: dist.gather(ones(2), four_of(2), dst=1), "gather", "gather", {"root": 1}),
        (lambda: dist.gather(ones(2), dst=3), "gather", "gather", {"root": 3}),
        (lambda: dist.scatter(ones(2), four_of(2), src=1), "scatter", "scatter", {"root": 1}),
        (lambda: dist.scatter(ones(2), src=0), "scatter", "scatter", {"root": 0}),
        (lambda: dist.reduce_scatter(ones(2), four_of(2)), "reduce_scatter", "reduce_scatter", {"reduce_op": "SUM"}),
        (lambda: dist.all_gather_into_tensor(ones(8), ones(2)), "all_gather_into_tensor", "all_gather_single", {}),
        (
            lambda: dist.reduce_scatter_tensor(ones(2), ones(8), op=dist.ReduceOp.MIN),
            "reduce_scatter_tensor",
            "reduce_scatter_single",
            {"reduce_op": "MIN"},
        ),
    ],
)
@pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning")
def test_a_collective_is_noted_with_its_arguments(four, call, op, collective, arguments):
    """What every rank must agree on, by the name that the learner used and the one that the ranks have in common."""
    call()
    said = last()
    assert (said["op"], said["kind"], said["collective"]) == (op, "collective", collective)
    assert (said["group"], said["members"], said["sequence"]) == ("0", [0, 1, 2, 3], 1)
    assert said["tensors"] == [["float32", [2]]]
    assert {key: said[key] for key in ("root", "reduce_op") if key in said} == arguments
    assert not said["own_limit"]


def test_a_barrier_has_no_tensors(four):
    """There is nothing to agree on but the barrier."""
    dist.barrier()
    assert (last()["op"], last()["tensors"]) == ("barrier", [])


def test_the_types_of_tensors_are_noted(four):
    """As torch names them, without "torch."."""
    dist.all_reduce(ones(2, 3, dtype=torch.int64))
    assert last()["tensors"] == [["int64", [2, 3]]]
    dist.all_reduce(torch.tensor(1.0, dtype=torch.bfloat16))
    assert last()["tensors"] == [["bfloat16", []]]


def test_an_all_to_all_is_noted_with_both_sides(four):
    """Elements to and from each rank."""
    dist.all_to_all([ones(k + 1, 2) for k in range(4)], four_of(1, 2))
    assert (last()["sends"], last()["receives"]) == ([2] * 4, [2, 4, 6, 8])
    dist.all_to_all_single(ones(8), ones(8))
    assert (last()["sends"], last()["receives"]) == ([2] * 4, [2] * 4)


def test_an_even_side_of_an_uneven_all_to_all_is_split_by_its_own_size(four):
    """Splits may be given for the input alone: the output's parts are quarters of the output."""
    note = notes.Note("alltoall_base", "0", (ones(4, 3), ones(10, 3), [], [1, 2, 3, 4], dist.AllToAllOptions()), {})
    said = state.describe(note)
    assert (said["sends"], said["receives"]) == ([3, 6, 9, 12], [3] * 4)
    note = notes.Note("alltoall_base", "0", (ones(0, 3), ones(4, 3), [0] * 4, [], dist.AllToAllOptions()), {})
    said = state.describe(note)
    assert (said["sends"], said["receives"]) == ([3] * 4, [0] * 4)


def test_an_object_collective_is_noted_by_its_own_name(four):
    """Its parts are collectives, each with a number; the learner called all_gather_object."""
    dist.all_gather_object([None] * 4, "x")
    assert NOTES.counts == {"0": 2}
    assert (last()["op"], last()["sequence"]) == ("all_gather_object", 2)
    assert last()["collective"] in ("all_gather", "all_gather_single")  # the second one since torch 2.15


def test_a_subgroup_is_noted_with_the_worlds_ranks(four):
    """Members and roots are ranks of the world; each group counts for itself."""
    pair = dist.new_group([1, 3])
    dist.barrier()
    dist.broadcast(ones(1), src=3, group=pair)
    said = last()
    assert (said["group"], said["members"], said["root"], said["sequence"]) == (pair.group_name, [1, 3], 3, 1)
    assert NOTES.counts == {"0": 1, pair.group_name: 1}


def test_methods_of_a_group_are_noted_with_keywords_too(four):
    """A program may call the ProcessGroup itself."""
    world = dist.group.WORLD
    world.broadcast(ones(2), root=2)
    assert last()["root"] == 2
    world.barrier()
    assert last()["op"] == "barrier"
    world.send([ones(1)], dstRank=2, tag=7)
    world.recv(tensors=[ones(1)], srcRank=3, tag=8)
    assert NOTES.traffic == {(True, "0", 2, 7): 1, (False, "0", 3, 8): 1}


NEXT = "The last rank has no next one: use (rank + 1) % world_size, or skip it."
PREVIOUS = "Rank 0 has no previous one: use (rank - 1) % world_size, or skip it."
BELOW = "Use a rank below the number of ranks, which is 4 here."


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: dist.send(ones(1), dst=4), f"dst must be a rank from 0 to 3, got 4. {NEXT}"),
        (lambda: dist.isend(ones(1), 7), f"dst must be a rank from 0 to 3, got 7. {BELOW}"),
        (lambda: dist.recv(ones(1), src=4), f"src must be a rank from 0 to 3, got 4. {NEXT}"),
        (lambda: dist.irecv(ones(1), -1), f"src must be a rank from 0 to 3, got -1. {PREVIOUS}"),
        (lambda: dist.send(ones(1), "2"), f"dst must be a rank from 0 to 3, got '2'. {BELOW}"),
        (lambda: dist.group.WORLD.send([ones(1)], 5, 0), f"dst must be a rank from 0 to 3, got 5. {BELOW}"),
        (lambda: dist.send_object_list(["x"], dst=4), f"dst must be a rank from 0 to 3, got 4. {NEXT}"),
        (lambda: dist.recv_object_list([None], src=-2), f"src must be a rank from 0 to 3, got -2. {BELOW}"),
        (
            lambda: dist.batch_isend_irecv([dist.P2POp(dist.isend, ones(1), 4)]),
            f"peer must be a rank from 0 to 3, got 4. {NEXT}",
        ),
        (lambda: dist.broadcast(ones(1), src=4), f"src must be a rank from 0 to 3, got 4. {BELOW}"),
        (lambda: dist.broadcast_object_list([1], src=9), f"src must be a rank from 0 to 3, got 9. {BELOW}"),
        (lambda: dist.reduce(ones(1), dst=-1), f"dst must be a rank from 0 to 3, got -1. {BELOW}"),
        (lambda: dist.gather(ones(1), dst=4), f"dst must be a rank from 0 to 3, got 4. {BELOW}"),
        (lambda: dist.scatter(ones(1), src=-4), f"src must be a rank from 0 to 3, got -4. {BELOW}"),
    ],
)
def test_a_rank_that_does_not_exist_is_refused(four, call, said):
    """Before torch is called, and nothing is noted."""
    with pytest.raises(ArgumentError) as caught:
        call()
    assert str(caught.value) == said
    assert state._traffic() == []
    assert NOTES.counts == {}


@pytest.mark.parametrize(
    ("call", "given"),
    [
        (lambda g: dist.isend(ones(1), group_dst=2, group=g), ("group_dst", 2)),
        (lambda g: dist.irecv(ones(1), group_src=3, group=g), ("group_src", 3)),
        (lambda g: dist.reduce(ones(1), group_dst=-1, group=g), ("group_dst", -1)),
    ],
)
def test_in_a_group_its_own_numbers_count(four, call, given):
    """What is a rank of the world, and none of the group, is refused; the world's ranks are translated by torch."""
    pair = dist.new_group([1, 3])
    name, rank = given
    with pytest.raises(ArgumentError, match=rf"^{name} must be a rank of its group, from 0 to 1, got {rank}\."):
        call(pair)
    for allowed in ({"dst": 3}, {"group_dst": 1}):
        dist.isend(ones(1), **allowed, group=pair)
    dist.broadcast(ones(1), src=3, group=pair)
    assert NOTES.traffic == {(True, pair.group_name, 1, 0): 2}


class Half(dist.ProcessGroup):
    """A backend in Python that has one method, and leaves the others to torch."""

    def __init__(self, store, rank, size, timeout):
        super().__init__(rank, size)

    def allreduce(self, tensors, opts=None):
        return FakeWork()


@pytest.mark.parametrize(
    "call",
    [
        lambda g: dist.barrier(group=g),
        lambda g: dist.broadcast(ones(1), src=2, group=g),
        lambda g: dist.isend(ones(1), dst=2, group=g),
        lambda g: torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1), process_group=g),
    ],
    ids=["barrier", "broadcast", "isend", "DistributedDataParallel"],
)
def test_a_method_that_a_backend_in_python_lacks(four, call):
    """torch's own answer comes, and nothing is noted: torch finds its method where the class has none."""
    if not hasattr(dist.Backend, "HALF"):
        dist.Backend.register_backend("half", Half, devices=["cpu"])
    group = dist.new_group(backend="half")
    dist.all_reduce(ones(1), group=group)
    with pytest.raises(RuntimeError, match="No backend type associated with device type cpu"):
        call(group)
    assert not any(NOTES.counts.values())
    assert not any(count for *_, count, _ in state._traffic())


# --- messages ---


@pytest.mark.parametrize(
    ("call", "row"),
    [
        (lambda: dist.send(ones(3), 2), (True, "0", 2, 0, 1, 0)),
        (lambda: dist.send(ones(3), 2, tag=7), (True, "0", 2, 7, 1, 0)),
        (lambda: dist.isend(ones(3), 0).wait(), (True, "0", 0, 0, 1, 0)),
        (lambda: dist.recv(ones(3), src=3, tag=1), (False, "0", 3, 1, 1, 0)),
        (lambda: dist.irecv(ones(3), tag=5), (False, "0", None, 5, 1, 0)),
    ],
    ids=["send", "with a tag", "isend", "recv", "from any source"],
)
def test_a_message_is_counted_by_its_ends_and_tag(four, call, row):
    """As (is a send, group, peer, tag, count, dropped)."""
    call()
    assert state._traffic() == [row]


def test_messages_of_a_kind_have_numbers(four):
    """The n-th send to a rank with a tag; other kinds count for themselves."""
    for tag in (0, 0, 1):
        dist.send(ones(1), 2, tag=tag)
    dist.recv(ones(1), 2)
    assert sorted(NOTES.traffic.items()) == [
        ((False, "0", 2, 0), 1),
        ((True, "0", 2, 0), 2),
        ((True, "0", 2, 1), 1),
    ]


def test_a_batch_is_noted_message_by_message(four):
    """batch_isend_irecv begins each of its messages by itself."""
    batch = [dist.P2POp(dist.isend, ones(1), 2), dist.P2POp(dist.irecv, ones(1), 0)]
    for work in dist.batch_isend_irecv(batch):
        work.wait()
    assert state._traffic() == [(True, "0", 2, 0, 1, 0), (False, "0", 0, 0, 1, 0)]


def test_peers_in_a_subgroup_are_the_worlds_ranks(four):
    """Rank 3 is number 1 of the group [1, 3]."""
    pair = dist.new_group([1, 3])
    dist.send(ones(1), 3, group=pair)
    assert state._traffic() == [(True, pair.group_name, 3, 0, 1, 0)]


def test_the_newest_kinds_of_messages_are_told(four):
    """A kind that is used again is new again; of many kinds the oldest are left out."""
    for tag in range(100):
        dist.send(ones(1), 2, tag=tag)
        dist.send(ones(1), 3, tag=0)
    rows = state._traffic()
    assert len(rows) == 2 * notes.REMEMBERED
    assert rows[-1] == (True, "0", 3, 0, 100, 0)
    assert rows[0][3] == 100 - (len(rows) - 1)


def test_a_send_whose_work_is_dropped_is_told(four):
    """One that was waited for, by its Work or its future, has arrived and is not dropped."""
    dist.isend(ones(1), 2)
    dist.isend(ones(1), 2).wait()
    dist.send(ones(1), 2)
    kept = dist.isend(ones(1), 2)
    assert state._traffic() == [(True, "0", 2, 0, 4, 1)]
    del kept
    assert state._traffic() == [(True, "0", 2, 0, 4, 2)]


def test_what_is_dropped_of_an_old_group_does_not_count_in_a_new_one(four):
    """A Work that outlives its group is nobody's."""
    old = dist.isend(ones(1), 2)
    NOTES.forget()
    new = dist.isend(ones(1), 2)
    del old
    assert state._traffic() == [(True, "0", 2, 0, 1, 0)]
    new.wait()


# --- refusals, limits, forgetting ---


def test_a_call_that_is_refused_is_no_call(four):
    """torch refuses a tag of None before it sends; the next message has the number that its peer expects."""
    with pytest.raises(TypeError):
        dist.send(ones(1), 2, tag=None)
    with pytest.raises(TypeError):
        dist.group.WORLD.allreduce("no tensor", dist.AllreduceOptions())
    dist.all_reduce(ones(1))
    assert [row for row in state._traffic() if row[4]] == []
    assert (NOTES.counts, last()["sequence"]) == ({"0": 1}, 1)


def test_a_shorter_limit_of_a_call_is_its_own(alone):
    """A call that gloo ends before the cluster's time is over ends by itself."""
    options = dist.AllreduceOptions()
    for seconds, own in ((5, True), (60, False), (90, False)):
        options.timeout = timedelta(seconds=seconds)
        dist.group.WORLD.allreduce([ones(1)], options).wait()
        assert last()["own_limit"] is own
    dist.barrier()
    assert not last()["own_limit"]


def test_a_shorter_limit_of_a_group_is_its_calls_own(alone):
    """new_group(timeout=...) ends each call of the group; so does a limit that was set later."""
    short = dist.new_group([0], timeout=timedelta(seconds=5))
    dist.all_reduce(ones(1), group=short)
    assert last()["own_limit"]
    dist.all_reduce(ones(1))
    assert not last()["own_limit"]
    C10D._set_pg_timeout(timedelta(seconds=2), dist.group.WORLD)
    assert state.describe(NOTES.collectives["0"][0])["own_limit"]


def test_a_monitored_barrier_with_a_limit_ends_by_itself(alone):
    """Its limit is its first argument."""
    dist.monitored_barrier(timeout=timedelta(seconds=5))
    assert (last()["op"], last()["own_limit"]) == ("monitored_barrier", True)
    dist.monitored_barrier()
    assert not last()["own_limit"]


def test_a_wait_with_a_limit_ends_by_itself(alone):
    """Work.wait(timeout) comes back before the call does."""
    work = dist.all_reduce(ones(1), async_op=True)
    assert not last()["own_limit"]
    work.wait(timedelta(seconds=5))
    assert last()["own_limit"]


def test_forget_leaves_nothing(four):
    """After a rebuild every rank counts from the start."""
    dist.all_reduce(ones(1))
    work = dist.isend(ones(1), 2)
    NOTES.forget()
    assert (NOTES.counts, NOTES.traffic, NOTES.dropped, NOTES.collectives) == ({}, {}, {}, {})
    assert NOTES.of(work) is None
    dist.all_reduce(ones(1))
    assert last()["sequence"] == 1


def test_the_memory_of_a_group_is_short(four):
    """Of many collectives the newest are described, with their numbers."""
    for _ in range(notes.REMEMBERED + 5):
        dist.all_reduce(ones(1))
    kept = NOTES.collectives["0"]
    assert [kept[0].sequence, kept[-1].sequence] == [6, notes.REMEMBERED + 5]


def test_a_group_that_is_gone_is_described_without_members(four):
    """A note may outlive its group, and is told without a peer or a root to look up."""
    dist.broadcast(ones(1), src=3)
    note = NOTES.collectives["0"][-1]
    dist.destroy_process_group()
    said = state.describe(note)
    assert (said["members"], said["root"]) == ([], 3)


def test_installing_twice_notes_once(four):
    """A rank may join again."""
    calls.install()
    dist.all_reduce(ones(1))
    assert NOTES.counts == {"0": 1}


# --- waiting ---


class Slow:
    """A Work whose wait lasts until a test ends it."""

    def __init__(self):
        self.entered, self.end = threading.Event(), threading.Event()

    def wait(self, *timeout):
        self.entered.set()
        assert self.end.wait(10)
        return "done"


def noted(method="allreduce", *arguments):
    """A slow Work and its note, as `ProcessGroup.<method>` would have left them."""
    work = Slow()
    begin = calls._noting(method, lambda group, *args: work)
    assert begin(dist.group.WORLD, *(arguments or ([ones(1)],))) is work
    return work, NOTES.of(work)


def in_thread(function, *arguments):
    """The thread that runs it, and what comes out."""
    outcome = []

    def run():
        try:
            outcome.append(function(*arguments))
        except Exception as error:
            outcome.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, outcome


def test_a_wait_says_what_is_waited_for(four):
    """While it lasts, and not afterwards; to begin and to end it count as movement."""
    work, note = noted()
    before = NOTES.total
    thread, outcome = in_thread(calls._waiting(Slow.wait), work)
    assert work.entered.wait(10)
    assert NOTES.now[thread.ident] is note
    assert not note.done
    work.end.set()
    thread.join(10)
    assert outcome == ["done"]
    assert thread.ident not in NOTES.now
    assert NOTES.total == before + 2
    assert note.done


def test_a_wait_for_what_was_not_noted_is_left_alone(four):
    """A Work that somebody else has made."""
    work = Slow()
    work.end.set()
    assert calls._waiting(Slow.wait)(work) == "done"


def test_a_future_is_waited_for_as_its_work_is(alone):
    """Also one that was made from it by then()."""
    work = dist.all_reduce(ones(1), async_op=True)
    future = work.get_future()
    half = future.then(lambda future: future.value()[0] / 2)
    note = NOTES.of(work)
    assert NOTES.of(future) is note
    assert NOTES.of(half) is note
    assert half.wait().tolist() == [0.5]
    assert note.done


def test_a_wait_for_any_source_can_be_freed(four):
    """No socket belongs to it: the thread that waits is left behind, and the caller told."""
    work, _ = noted("recv_anysource", [ones(1)], 0)
    thread, outcome = in_thread(calls._waiting(Slow.wait), work)
    assert work.entered.wait(10)
    NOTES.freed += 1
    thread.join(10)
    assert str(outcome[0]) == "Connection closed: the wait for a message from any rank was ended."
    work.end.set()


def test_a_wait_for_any_source_returns_what_the_wait_returns(four):
    """Its value, or its error."""
    work, _ = noted("recv_anysource", [ones(1)], 0)
    work.end.set()
    assert calls._waiting(Slow.wait)(work) == "done"

    def fail(self):
        raise RuntimeError("Timed out")

    with pytest.raises(RuntimeError, match="Timed out"):
        calls._waiting(fail)(work)


# --- the state of a rank ---


def run_code(function):
    """Run it as a cell: by a function of this name in this module of IPython's."""
    shell = {"__name__": "IPython.core.interactiveshell"}
    exec("def run_code(code, names):\n    exec(code, names)", shell)
    shell["run_code"](compile("function()", "<cell>", "exec"), {"function": function})


@pytest.fixture
def doing():
    """Runs something on a thread that plays the main thread; gives its summary while it does."""
    threads = []

    def summary_of(function, ready, end, execute=True):
        thread = threading.Thread(target=run_code if execute else function, args=(function,) if execute else ())
        threads.append((thread, end))
        thread.start()
        assert ready.wait(10)
        return thread, state.summary(thread.ident, set(), list)

    yield summary_of
    for thread, end in threads:
        end.set()
        thread.join(10)


def test_a_rank_that_waits_says_in_which_call_and_where(four, doing):
    """The call with its arguments, the learner's lines outermost first, and how long."""
    work, _ = noted("send", [ones(3)], 2, 7)
    wait = calls._waiting(Slow.wait)

    def cell():
        wait(work)

    _, said = doing(cell, work.entered, work.end)
    assert said["doing"] == "communicating"
    assert {key: said["call"][key] for key in ("kind", "is_send", "peer", "tag", "sequence")} == {
        **{"kind": "message", "is_send": True, "peer": 2, "tag": 7, "sequence": 1}
    }
    assert said["call"]["tensors"] == [["float32", [3]]]
    assert [line[3] for line in said["lines"]][-2:] == ["cell", "wait"]  # the wait is one of this file's
    assert said["seconds"] >= 0
    assert said["traffic"] == [(True, "0", 2, 7, 1, 0)]
    assert said["groups"] == 1


def test_a_rank_that_computes_has_no_call(four, doing):
    """Code of a cell that is not in torch.distributed; its collectives are left out, to answer at once."""
    dist.all_reduce(ones(1))
    ready, end = threading.Event(), threading.Event()

    def cell():
        ready.set()
        end.wait(10)

    _, said = doing(cell, ready, end)
    assert (said["doing"], said["call"], said["seconds"], said["history"]) == ("computing", None, None, [])
    assert (said["quiet"], said["rounds"]) == (False, [])


def test_a_rank_that_runs_no_cell_is_idle(four, doing):
    """What the engine does by itself is not the learner's; its earlier collectives are told."""
    dist.all_reduce(ones(1))
    ready, end = threading.Event(), threading.Event()

    def engine():
        ready.set()
        end.wait(10)

    _, said = doing(engine, ready, end, execute=False)
    assert (said["doing"], said["call"]) == ("idle", None)
    assert [old["op"] for old in said["history"]] == ["all_reduce"]
    assert said["counts"] == {"0": 1}


# waits in C, as a call of a process group does: no frame of Python is deeper
GIVEN = "ranks=None, timeout=None, use_local_synchronization=False"
WAITS = f"def {{0}}(ready, end, {GIVEN}):\n    ready.put(1)\n    end.get()\n"


@pytest.fixture
def in_library(doing):
    """The summary of a rank that waits in a function of a library; a cell has called it."""

    def summary_of(module, function, **given):
        ready, end = SimpleQueue(), SimpleQueue()
        library = {"__name__": module}
        exec(compile(WAITS.format(function), f"{sysconfig.get_path('purelib')}/{module}.py", "exec"), library)
        return doing(
            lambda: library[function](ready, end, **given),
            SimpleNamespace(wait=lambda seconds: ready.get(timeout=seconds)),
            SimpleNamespace(set=lambda: end.put(1)),
        )[1]

    return summary_of


@pytest.mark.parametrize(
    ("module", "function", "op", "own_limit"),
    [
        ("torch.autograd.graph", "_engine_run_backward", "backward", False),
        ("torch.nn.parallel.distributed", "_sync_module_states", "DistributedDataParallel", False),
        ("torch.distributed.distributed_c10d", "init_process_group", "init_process_group", True),
        ("torch.distributed.checkpoint", "save", "checkpoint", True),
    ],
)
def test_a_wait_without_a_note_is_told_by_where_it_is(four, in_library, module, function, op, own_limit):
    """Of backward() and of a model in training it is known that they wait for the others; the rest may end."""
    said = in_library(module, function)
    assert said["doing"] == "communicating"
    assert said["call"] == {"op": op, "kind": "other", "members": [0, 1, 2, 3], "own_limit": own_limit}


def test_training_in_a_group_with_a_shorter_limit_may_end(alone, in_library):
    """Nobody knows in which group C++ waits: one with a limit of its own may be it."""
    assert not in_library("torch.autograd.graph", "run")["call"]["own_limit"]
    dist.new_group([0], timeout=timedelta(seconds=5))
    assert in_library("torch.autograd.graph", "run")["call"]["own_limit"]


def test_what_cannot_be_seen_to_compute_may_end(four, in_library, monkeypatch):
    """Without /proc a long backward pass looks like a wait for the others."""
    monkeypatch.setattr(state.os.path, "isdir", lambda path: False)
    assert in_library("torch.autograd.graph", "run")["call"]["own_limit"]


@pytest.mark.parametrize(
    ("given", "known"),
    [
        ({"ranks": [3, 1]}, {"members": [1, 3], "own_limit": False, "sequence": 1}),
        ({"ranks": None}, {"members": [0, 1, 2, 3], "own_limit": False, "sequence": 1}),
        ({"ranks": [1], "timeout": LIMIT}, {"members": [1], "own_limit": True, "sequence": 1}),
        ({"ranks": [1, 2], "use_local_synchronization": True}, {"members": [1, 2], "own_limit": False, "sequence": 0}),
    ],
    ids=["some", "all", "with a limit", "local"],
)
def test_a_wait_in_new_group_says_whom_it_needs(four, in_library, given, known):
    """The members, and how many groups were made; those that members make alone are not counted."""
    call = in_library("torch.distributed.distributed_c10d", "new_group", **given)["call"]
    assert call == {"op": "new_group", "kind": "other", **known}


def test_a_model_that_computes_is_not_waiting(four, in_library):
    """Its layers are torch's, and wait for nobody."""
    assert in_library("torch.nn.modules.linear", "forward")["doing"] == "computing"


# --- threads and variables ---


@pytest.fixture
def others():
    """Whether a thread of the test may still communicate, as a rank would see it; ends what the test has started."""
    ours = {thread.native_id for thread in threading.enumerate()}
    ended = []
    yield SimpleNamespace(
        may_act=lambda: bool(quiet.actors(threading.get_ident(), ours)), at_end=lambda *calls: ended.extend(calls)
    )
    for end in ended:
        end()


def until(condition):
    deadline = time.monotonic() + 10
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.001)
    assert condition()


def test_no_other_thread_no_action(others):
    """The threads that were there before the group do not count."""
    assert not others.may_act()


def test_a_timer_may_act_when_its_time_has_come(others):
    """It runs no code of the learner's yet."""
    timer = threading.Timer(60, print)
    timer.start()
    others.at_end(timer.cancel, timer.join)
    assert others.may_act()


def test_a_pool_acts_while_it_works(others):
    """A worker that waits for work does nothing by itself; one that is busy may do more afterwards."""
    pool = ThreadPoolExecutor(1)
    others.at_end(lambda: pool.shutdown(wait=True))
    pool.submit(int).result(10)
    until(lambda: not others.may_act())
    end = threading.Event()
    others.at_end(end.set)
    pool.submit(end.wait, 10)
    until(others.may_act)
    end.set()
    until(lambda: not others.may_act())


def test_a_loop_on_a_thread_may_act(others):
    """asyncio's sleep is nobody's frame."""
    thread = threading.Thread(target=asyncio.run, args=(asyncio.sleep(1),))
    thread.start()
    others.at_end(thread.join)
    assert others.may_act()


def test_our_own_threads_do_not_count(others):
    """Their names begin with distlab-, and they run no code of the learner's."""
    end = threading.Event()
    thread = threading.Thread(target=end.wait, args=(10,), name="distlab-something")
    thread.start()
    others.at_end(end.set, thread.join)
    assert not others.may_act()


def test_variables_are_the_learners(monkeypatch):
    """Names that a cell has defined: no modules, nothing private, nothing that distlab or IPython has put there."""
    main = SimpleNamespace(
        **{"x": 1, "model": 2, "_private": 3, "torch": torch, "rank": 0, "world_size": 2, "In": [], "get_ipython": len}
    )
    monkeypatch.setitem(sys.modules, "__main__", main)
    assert state.variables() == ["model", "x"]
