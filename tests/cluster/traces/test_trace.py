"""cluster.trace() on real ranks: known messages, errors, clocks, and what is left."""

import os
import sys
from math import inf

import pytest
import torch
import torch.distributed as dist

import distlab
from tests.refused import raised


def ring(rank, world_size, steps=3):
    given = torch.full((100,), float(rank))
    got = torch.zeros(100)
    for step in range(steps):
        work = dist.isend(given, (rank + 1) % world_size, tag=step)
        dist.recv(got, (rank - 1) % world_size, tag=step)
        work.wait()


def ends(trace):
    return sorted((m.src, m.dst, m.tag, m.num_bytes, m.matched) for m in trace.messages)


def of(trace, rank, kind):
    return [event for event in trace.events if (event.rank, event.kind) == (rank, kind)]


def traced(cluster, program):
    """A trace in which events are in order, recvs end after their sends, nothing failed."""
    with cluster.trace() as trace:
        cluster.run(program)
    for message in trace.messages:
        assert not message.matched or message.recv.end >= message.left >= message.send.start
    starts = [event.start for event in trace.events]
    assert starts == [0, *sorted(starts[1:])]
    assert not any(event.failed for event in trace.events)
    return trace


def test_groups(usable):
    """Groups with the same ranks and tags are kept apart; peers are ranks of the world."""

    def twice(rank, world_size):
        odd = dist.new_group([3, 1])
        tensor = torch.zeros(2)
        works = []
        if rank == 1:
            works = [dist.isend(tensor, 3), dist.isend(tensor[:1], 3, group=odd)]
        elif rank == 3:
            works = [dist.irecv(tensor[:1], 1, group=odd), dist.irecv(tensor, 1)]
        for work in works:
            work.wait()
        if works:
            dist.all_reduce(tensor, group=odd)

    trace = traced(usable, twice)
    found = {(m.src, m.dst, len(m.group), m.num_bytes, m.matched) for m in trace.messages}
    assert found == {(1, 3, 2, 4, True), (1, 3, 4, 8, True)}
    (all_reduce,) = [one for one in trace.collectives if one.op == "all_reduce"]
    assert sorted(all_reduce.group) == [1, 3]
    assert all_reduce.complete


def test_immediate_batched_and_from_anybody(usable):
    """irecv with its wait, batch_isend_irecv, and the source of a recv from anybody."""

    def program(rank, world_size):
        tensor = torch.zeros(1)
        for _ in range(3 if rank == 0 else 0):
            dist.recv(tensor)
        if rank > 0:
            dist.send(tensor, 0)
        peer = rank ^ 1
        calls = (dist.isend, dist.irecv)
        ops = [dist.P2POp(call, torch.zeros(1), peer, tag=1) for call in calls]
        for work in dist.batch_isend_irecv(ops):
            work.wait()

    trace = traced(usable, program)
    to_rank_0 = [(r, 0, 0, 4, True) for r in (1, 2, 3)]
    in_pairs = [(r, r ^ 1, 1, 4, True) for r in range(4)]
    assert ends(trace) == sorted(to_rank_0 + in_pairs)
    assert [e.op for e in of(trace, 3, "wait")] == ["isend", "irecv"]
    assert [e.op for e in of(trace, 0, "recv")] == ["recv", "recv", "recv", "irecv"]


def test_collectives(usable):
    """One event a rank, under the name that was called, with the bytes that a rank gives."""

    def program(rank, world_size):
        one = torch.zeros(100)
        four = [torch.zeros(100) for _ in range(4)]
        dist.all_reduce(one)
        dist.all_gather(four, one)
        dist.reduce(one, 2)
        dist.scatter(one, four if rank == 0 else None, 0)
        dist.reduce_scatter(one, four)
        dist.all_to_all([torch.zeros(100) for _ in range(4)], four)
        dist.all_gather_object([None] * 4, rank)
        dist.monitored_barrier()

    expected = [
        ("all_reduce", 400, None),
        ("all_gather", 400, None),
        ("reduce", 400, 2),
        ("scatter", 1600, 0),
        ("reduce_scatter", 1600, None),
        ("all_to_all", 1600, None),
        ("monitored_barrier", 0, None),
    ]
    trace = traced(usable, program)
    assert [call.op for call in trace.collectives].count("all_gather_object") == 2
    of_tensors = [event for event in of(trace, 0, "collective") if "object" not in event.op]
    assert [(event.op, event.num_bytes, event.peer) for event in of_tensors] == expected
    for collective in trace.collectives:
        assert collective.complete
        assert collective.group == (0, 1, 2, 3)
        assert len(collective.events) == 4
        assert all(event.blocking for event in collective.events)
    assert trace.messages == []


def test_what_was_recorded_before_an_error_is_kept(usable):
    """The error passes through the with block, the trace is there, and shows who waited in vain."""

    def fail(rank, world_size):
        dist.barrier()
        if rank == 1:
            raise ValueError("on purpose")
        dist.recv(torch.zeros(1), 1)

    with pytest.raises(distlab.RankError, match="on purpose"), usable.trace() as trace:
        usable.run(fail)
    assert usable.last_trace is trace
    assert [c.op for c in trace.collectives] == ["barrier"]
    for rank in (0, 2, 3):
        (recv,) = of(trace, rank, "recv")
        assert (recv.failed, recv.peer, recv.ready) == (True, 1, inf)
    assert ends(trace) == [(1, rank, 0, 4, False) for rank in (0, 2, 3)]


def test_a_group_that_is_rebuilt_inside_of_a_trace(usable):
    """The new group's messages are matched, and the old one's are not taken for theirs."""

    def post(rank, world_size):
        if rank == 0:
            sys.modules["__main__"].kept = dist.irecv(torch.zeros(1), 1)

    with usable.trace() as trace:
        usable.run(post)
        usable.heal()
        usable.run(ring, 1)
    of_old_group = (1, 0, 0, 4, False)
    of_new_group = [(r, (r + 1) % 4, 0, 400, True) for r in range(4)]
    assert ends(trace) == sorted([of_old_group, *of_new_group])


def test_a_rank_that_was_replaced(usable):
    """Messages between the new process and those that lived on are matched."""

    def end_rank_3(rank, world_size):
        if rank == 3:
            os._exit(1)
        dist.barrier()

    raised(distlab.RankDied, usable.run, end_rank_3)
    trace = traced(usable, lambda rank, world_size: ring(rank, world_size, steps=1))
    assert ends(trace) == [(rank, (rank + 1) % 4, 0, 400, True) for rank in range(4)]


def test_some_ranks_only(usable):
    """Ranks that are not traced record nothing; of their messages one end is known.

    A second trace is refused meanwhile.
    """
    refusal = r"^This cluster is already being traced\. Leave the with block"
    with usable.trace(ranks=[0, 1]) as trace:
        with pytest.raises(distlab.ClusterError, match=refusal), usable.trace():
            pass
        usable.run(ring)
    assert {event.rank for event in trace.events} == {0, 1}
    found = {(m.src, m.dst): (m.matched, m.traced) for m in trace.messages}
    assert found == {(0, 1): (True, True), (1, 2): (False, False), (3, 0): (False, False)}
    assert trace.notes() == ["6 messages to or from ranks that were not traced."]
    assert usable.last_trace is trace


def test_a_profiler_of_the_programs_own(usable):
    """A trace does not begin while one runs; one that begins inside ends it."""

    def begin(rank, world_size):
        sys.modules["__main__"].mine = own = torch.autograd.profiler.profile(use_kineto=True)
        own.__enter__()

    def end(rank, world_size):
        mine.__exit__(None, None, None)  # noqa: F821

    usable.run(begin, ranks=[2])
    refusal = r"^rank 2 cannot be traced: a profiler is already running there\."
    with pytest.raises(distlab.ClusterError, match=refusal), usable.trace():
        pass
    usable.run(end, ranks=[2])
    with usable.trace() as trace:
        usable.run(begin, ranks=[1])
        usable.run(end, ranks=[1])
    why = "the code there used a profiler of its own, which ended the trace's"
    assert trace.missing == {1: why}
    profiles = usable.run(lambda rank, world_size: torch._C._autograd._profiler_enabled())
    assert profiles == [False] * 4
