"""What a rank notes of its calls, by torch's own functions, and how another process reads it."""

import gc
import threading
import weakref
from dataclasses import replace
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from distlab.rank import freed, hooks, log, membership, status, threads
from distlab.rank.left_behind import pending
from distlab.rank.log import LOG
from distlab.rank.message_counter import Kind
from distlab.rank.passes import Passes
from distlab.rank.records import record_of
from distlab.wire.messages import COLLECTIVE, WAITING, CallRecord


def newest():
    """The newest collective, as another process reads it."""
    return record_of([note for row in LOG.collectives.values() for note in row][-1])


def traffic():
    """The numbers of messages, as tuples of (is a send, group, peer, tag, count, dropped)."""
    newest = status._traffic()
    return [
        (one.is_send, one.group, one.peer, one.tag, one.sequence, one.dropped) for one in newest
    ]


def ones(*shape, dtype=torch.float32):
    return torch.ones(shape, dtype=dtype)


def four_of(*shape):
    return [ones(*shape) for _ in range(4)]


# --- collectives ---


@pytest.mark.parametrize(
    "call",
    [
        lambda group, tensor: group.allreduce([tensor]),
        lambda group, tensor: group.allreduce(tensor),
        lambda group, tensor: group.broadcast(tensor, root=1),
        lambda group, tensor: group.allgather([[tensor] * 4], [tensor]),
    ],
    ids=["allreduce of a list", "allreduce", "broadcast", "allgather"],
)
@pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning")
def test_a_note_keeps_no_tensor(four, call):
    """The log would hold the memory of the newest calls, also of a method that got no options."""
    tensor = ones(2)
    call(dist.group.WORLD, tensor)
    gone = weakref.ref(tensor)
    del tensor
    gc.collect()
    assert gone() is None


FLOATS = (("float32", (2,)),)


@pytest.mark.parametrize(
    ("call", "op", "fields"),
    [
        (
            lambda: dist.broadcast(ones(2, 3), src=3),
            "broadcast",
            {"tensors": (("float32", (2, 3)),), "root": 3},
        ),
        (lambda: dist.reduce(ones(2), dst=2), "reduce", {"root": 2, "reduce_op": "SUM"}),
        (lambda: dist.scatter(ones(2), four_of(2), src=1), "scatter", {"root": 1}),
        (lambda: dist.reduce_scatter(ones(2), four_of(2)), "reduce_scatter", {"reduce_op": "SUM"}),
        (lambda: dist.all_gather_into_tensor(ones(8), ones(2)), "all_gather_into_tensor", {}),
        (lambda: dist.barrier(), "barrier", {"tensors": ()}),
        (lambda: dist.group.WORLD.broadcast(ones(2), root=2), "broadcast", {"root": 2}),
    ],
)
@pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning")
def test_a_collective_is_noted_with_its_arguments(four, call, op, fields):
    """What every rank must agree on, by the learner's name and the common one."""
    call()
    plain = {"members": (0, 1, 2, 3), "group": "0", "sequence": 1, "tensors": FLOATS}
    said = replace(newest(), collective="", site=None, lines=())
    assert said == CallRecord(op, COLLECTIVE, **{**plain, **fields})


def test_an_even_side_of_an_uneven_all_to_all_is_split_by_its_own_size(four):
    """Splits may be given for the input alone: the output's parts are quarters of the output."""
    arguments = (ones(4, 3), ones(10, 3), [], [1, 2, 3, 4], dist.AllToAllOptions())
    said = record_of(hooks.note_of("alltoall_base", "0", arguments, {}))
    assert (said.sends, said.receives) == ((3, 6, 9, 12), (3,) * 4)


def test_a_subgroup_is_noted_with_the_worlds_ranks(four):
    """Members, roots and peers are ranks of the world; each group counts for itself."""
    pair = dist.new_group([1, 3])
    dist.barrier()
    dist.broadcast(ones(1), src=3, group=pair)
    dist.send(ones(1), 3, group=pair)
    said = newest()
    assert (said.group, said.members, said.root, said.sequence) == (pair.group_name, (1, 3), 3, 1)
    assert [LOG.collectives[name][-1].sequence for name in ("0", pair.group_name)] == [1, 1]
    assert traffic() == [(True, pair.group_name, 3, 0, 1, 0)]


# --- messages ---


def test_a_send_whose_work_is_dropped_is_told(four):
    """One that was waited for is not dropped; an old group's do not count."""
    dist.isend(ones(1), 2)
    dist.isend(ones(1), 2).wait()
    dist.send(ones(1), 2)
    kept = dist.isend(ones(1), 2)
    assert traffic() == [(True, "0", 2, 0, 4, 1)]
    del kept
    assert traffic() == [(True, "0", 2, 0, 4, 2)]
    old = dist.isend(ones(1), 2)
    LOG.forget()
    new = dist.isend(ones(1), 2)
    del old
    assert traffic() == [(True, "0", 2, 0, 1, 0)]
    new.wait()


def test_an_irecv_whose_work_is_dropped_is_told(four):
    """One that was waited for has arrived, and is not dropped; nor is a recv."""
    dist.recv(ones(1), 2)
    dist.irecv(ones(1), 2).wait()
    kept = dist.irecv(ones(1), 2)
    assert traffic() == [(False, "0", 2, 0, 3, 0)]
    del kept
    dist.irecv(ones(1), 2)
    assert traffic() == [(False, "0", 2, 0, 4, 2)]


# --- what a thread waits in ---


def test_waits_that_are_left_in_any_order_leave_nothing_behind(four):
    """Two tasks of a loop may wait at once, and the first may leave first."""
    thread = threading.get_ident()
    call = log.Note("barrier", COLLECTIVE)
    with log.InCall(call):
        first, second = (
            log.InCall(log.Note("first", WAITING)),
            log.InCall(log.Note("second", WAITING)),
        )
        first.__enter__()
        second.__enter__()
        first.__exit__(None, None, None)
        assert LOG.waiting_in[thread].op == "second"
        second.__exit__(None, None, None)
        assert LOG.waiting_in[thread] is call
        with log.InCall(call):  # begins and waits for the same call
            assert LOG.waiting_in[thread] is call
        assert LOG.waiting_in[thread] is call
    assert LOG.waiting_in[thread] is None


# --- what is kept ---


def test_what_an_earlier_cell_has_begun_is_kept_until_it_ends():
    """A Work and a Future have different names for their end."""
    notes, note = log.Log(), log.Note("all_reduce", COLLECTIVE)
    note.options = dist.AllreduceOptions()
    note.options.asyncOp = True
    future = torch.futures.Future()
    notes.tie(future, note)
    assert pending(notes.unwaited, notes.cells) == []
    notes.end_cell()
    assert pending(notes.unwaited, notes.cells) == [note]
    future.set_result(None)
    assert pending(notes.unwaited, notes.cells) == []


# --- limits, forgetting ---


LIMITS = {
    "none": (lambda: dist.barrier(), False),
    "of a wait": (lambda: dist.all_reduce(ones(1), async_op=True).wait(timedelta(seconds=5)), True),
    "of a group": (lambda: dist.barrier(dist.new_group([0], timeout=timedelta(seconds=5))), True),
    # shorter than the cluster's minute, and yet too long for anybody to wait for it
    "long, of a wait": (
        lambda: dist.all_reduce(ones(1), async_op=True).wait(timedelta(seconds=30)),
        False,
    ),
    "long, of a group": (
        lambda: dist.barrier(dist.new_group([0], timeout=timedelta(seconds=30))),
        False,
    ),
}


@pytest.mark.parametrize(("call", "own_limit"), LIMITS.values(), ids=LIMITS)
def test_a_call_with_a_short_limit_ends_by_itself(alone, call, own_limit):
    call()
    assert newest().own_limit is own_limit


@pytest.mark.parametrize(
    ("cluster", "limit", "short"),
    [
        (600, 0, False),
        (600, 2, True),
        (600, 10, False),
        (600, 180, False),
        (2, 2, False),
        (2, 1, True),
        (7, 8, False),
    ],
)
def test_which_timeouts_are_short(monkeypatch, cluster, limit, short):
    """Those below ten seconds, unless it is the cluster's own."""
    monkeypatch.setattr(dist.distributed_c10d, "default_pg_timeout", timedelta(seconds=cluster))
    assert membership.is_short(timedelta(seconds=limit)) is short


def test_an_interrupted_wait_does_not_outlive_its_group(four):
    """Else the note of a wait would say for ever that its thread waits."""
    dist.all_reduce(ones(2))
    (note,) = LOG.collectives["0"]
    log.InCall(note).__enter__()
    assert threads.name_of_wait(threading.get_ident()) == "all_reduce"
    LOG.forget()
    assert threads.name_of_wait(threading.get_ident()) == ""


def test_a_rank_that_is_freed_begins_no_more_calls(four):
    """Until its group is built anew: what it sent then would be cut off in its midst."""
    LOG.closed = True
    with pytest.raises(RuntimeError, match="Connection closed: this rank was freed"):
        dist.all_reduce(ones(2))
    assert not any(LOG.collectives.values())
    LOG.forget()
    dist.all_reduce(ones(2))


def test_passes_are_counted_in_each_cell(four):
    """A rank that is idle has ended its cell; one that makes none in a cell has made none."""
    assert LOG.passes.of_cell(LOG.cells) == Passes()
    LOG.passes.count_forward(LOG.cells, averages=False)
    LOG.passes.count_backward(LOG.cells)
    LOG.passes.count_forward(LOG.cells, averages=True)
    assert LOG.passes.of_cell(LOG.cells) == Passes(forward=2, averaging=1, backward=1)
    LOG.end_cell()
    assert LOG.passes.of_cell(LOG.cells - 1) == Passes(forward=2, averaging=1, backward=1)
    assert LOG.passes.of_cell(LOG.cells) == Passes()
    LOG.passes.count_backward(LOG.cells)
    assert LOG.passes.of_cell(LOG.cells) == Passes(backward=1)
    LOG.end_cell()
    LOG.passes.count_with_last_cell(LOG.cells)
    assert LOG.passes.of_cell(LOG.cells) == Passes(backward=1)
    LOG.end_cell()
    assert LOG.passes.of_cell(LOG.cells - 1) == Passes(backward=1)
    LOG.end_cell()
    assert LOG.passes.of_cell(LOG.cells - 1) == Passes()


# --- the end of a group ---


def test_only_the_end_of_the_world_is_remembered(alone):
    """A smaller group's end explains no failure; nor does that of a world with a successor."""
    dist.destroy_process_group(dist.new_group([0]))
    assert LOG.destroyed is None
    dist.destroy_process_group()
    assert LOG.destroyed.lines
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    assert LOG.destroyed is None


# --- Works that go at any time ---


class Name(str):
    """A group's name; while it is compared, a Work of another group is dropped."""

    def __eq__(self, other):
        dropped = LOG.messages.dropped
        dropped.setdefault(Kind(True, f"group {len(dropped)}", 0, 0), []).append(1)
        return super().__eq__(other)

    __hash__ = str.__hash__


def test_a_work_that_goes_meanwhile_disturbs_no_wait(alone):
    """Nor does it disturb the end of a group."""
    note = hooks.note_of("barrier", "0", (), {})
    LOG.messages.dropped[Kind(True, Name("0"), 1, 0)] = [1]
    assert hooks._ends_without_connections(note) == freed.BEHIND_DROPPED
    LOG.forget_group("0")
    assert hooks._ends_without_connections(note) == ""
