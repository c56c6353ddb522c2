"""cluster.trace() on real ranks: programs whose messages are known, errors, clocks, and what is left afterwards."""

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from math import inf

import pytest

import distlab


def ring(rank, world_size, steps=3):
    import torch
    import torch.distributed as dist

    given, got = torch.full((100,), float(rank)), torch.zeros(100)
    for step in range(steps):
        work = dist.isend(given, (rank + 1) % world_size, tag=step)
        dist.recv(got, (rank - 1) % world_size, tag=step)
        work.wait()


def ends(trace):
    return sorted((m.src, m.dst, m.tag, m.num_bytes, m.matched) for m in trace.messages)


def of(trace, rank, kind):
    return [event for event in trace.events if (event.rank, event.kind) == (rank, kind)]


def check_order(trace):
    """What holds for every trace: no recv is over before its send began, events are in order, nothing failed."""
    for message in trace.messages:
        if message.matched:
            assert message.recv.end >= message.send.start
            assert message.left >= max(message.send.start, message.recv.start) - 1e-9
    starts = [event.start for event in trace.events]
    assert starts == sorted(starts)
    assert min(starts) == 0
    assert not any(event.failed for event in trace.events)


@pytest.mark.parametrize("n", [2, 4])
def test_ring(usable, n):
    """Every message of a ring is there once, from each rank to the next, with its tag and bytes."""

    def small_ring(rank, world_size):
        return ring(rank, n)

    with usable.trace(range(n)) as trace:
        usable.run(small_ring, ranks=range(n))
    assert ends(trace) == sorted((r, (r + 1) % n, tag, 400, True) for r in range(n) for tag in range(3))
    check_order(trace)
    assert [e.op for e in of(trace, 0, "send")] == ["isend"] * 3
    assert [e.op for e in of(trace, 0, "recv")] == ["recv"] * 3
    assert {m.group for m in trace.messages} == {(0, 1, 2, 3)}


def test_tags_out_of_order(usable):
    """Messages that are received in another order than they were sent in are matched by their tags."""

    def swap(rank, world_size):
        if rank == 0:
            works = [dist.isend(torch.zeros(size), 1, tag=size) for size in (1, 2, 3)]  # noqa: F821
            for work in works:
                work.wait()
        if rank == 1:
            for size in (3, 1, 2):
                dist.recv(torch.zeros(size), 0, tag=size)  # noqa: F821

    with usable.trace() as trace:
        usable.run(swap)
    assert ends(trace) == [(0, 1, size, 4 * size, True) for size in (1, 2, 3)]
    by_tag = {m.tag: m for m in trace.messages}
    assert by_tag[1].send.start < by_tag[2].send.start < by_tag[3].send.start
    assert by_tag[3].recv.start < by_tag[1].recv.start < by_tag[2].recv.start
    check_order(trace)


def test_groups(usable):
    """Messages and collectives of groups with the same ranks and tags are kept apart; peers are ranks of the world."""

    def twice(rank, world_size):
        odd = dist.new_group([3, 1])  # noqa: F821
        if rank not in (1, 3):
            return
        tensor = torch.zeros(2)  # noqa: F821
        if rank == 1:
            works = [dist.isend(tensor, 3), dist.isend(tensor[:1], 3, group=odd)]  # noqa: F821
        else:
            works = [dist.irecv(tensor[:1], 1, group=odd), dist.irecv(tensor, 1)]  # noqa: F821
        for work in works:
            work.wait()
        dist.all_reduce(tensor, group=odd)  # noqa: F821

    with usable.trace() as trace:
        usable.run(twice)
    assert sorted((m.src, m.dst, len(m.group), m.num_bytes, m.matched) for m in trace.messages) == [
        (1, 3, 2, 4, True),
        (1, 3, 4, 8, True),
    ]
    assert [(c.op, sorted(c.group), c.complete) for c in trace.collectives if c.op == "all_reduce"] == [
        ("all_reduce", [1, 3], True)
    ]
    check_order(trace)


def test_immediate_batched_and_from_anybody(usable):
    """irecv with its wait, batch_isend_irecv, and the source of a recv from anybody."""

    def program(rank, world_size):
        tensor = torch.zeros(1)  # noqa: F821
        if rank == 0:
            sources = [dist.recv(tensor) for _ in range(3)]  # noqa: F821
            assert sorted(sources) == [1, 2, 3]
        else:
            dist.send(tensor, 0)  # noqa: F821
        partner = rank ^ 1
        given, got = (tensor, partner), (torch.zeros(1), partner)  # noqa: F821
        ops = [dist.P2POp(dist.isend, *given, tag=1), dist.P2POp(dist.irecv, *got, tag=1)]  # noqa: F821
        for work in dist.batch_isend_irecv(ops):  # noqa: F821
            work.wait()

    with usable.trace() as trace:
        usable.run(program)
    expected = [(r, 0, 0, 4, True) for r in (1, 2, 3)] + [(r, r ^ 1, 1, 4, True) for r in range(4)]
    assert ends(trace) == sorted(expected)
    assert [e.op for e in of(trace, 3, "wait")] == ["isend", "irecv"]
    assert [e.op for e in of(trace, 0, "recv")] == ["recv", "recv", "recv", "irecv"]
    check_order(trace)


def test_a_message_that_nobody_receives(usable):
    """A send without a recv is told, and so is a recv from an earlier cell that takes the place of the next one."""

    def lone(rank, world_size):
        if rank == 0:
            sys.modules["__main__"].kept = dist.isend(torch.zeros(5), 1, tag=6)  # noqa: F821

    with usable.trace() as trace:
        usable.run(lone)
    assert ends(trace) == [(0, 1, 6, 20, False)]
    assert trace.messages[0].send.ready == inf
    with usable.trace() as trace:
        usable.run(lambda rank, world_size: dist.recv(torch.zeros(5), 0, tag=6) if rank == 1 else None)  # noqa: F821
    assert ends(trace) == [(0, 1, 6, 20, False)]
    assert trace.messages[0].recv is not None
    usable.heal()


COLLECTIVES = {
    "all_reduce": 400,
    "all_gather": 400,
    "broadcast": 400,
    "reduce": 400,
    "gather": 400,
    "scatter": 1600,
    "reduce_scatter": 1600,
    "all_to_all": 1600,
    "barrier": 0,
    "all_gather_object": None,
    "monitored_barrier": 0,
}


def test_collectives(usable):
    """Each collective is one event a rank under the name that the program called, with the bytes that a rank gives."""

    def program(rank, world_size):
        one, four = torch.zeros(100), [torch.zeros(100) for _ in range(4)]  # noqa: F821
        at_root = four if rank == 0 else None
        dist.all_reduce(one)  # noqa: F821
        dist.all_gather(four, one)  # noqa: F821
        dist.broadcast(one, 0)  # noqa: F821
        dist.reduce(one, 0)  # noqa: F821
        dist.gather(one, at_root, 0)  # noqa: F821
        dist.scatter(one, at_root, 0)  # noqa: F821
        dist.reduce_scatter(one, four)  # noqa: F821
        dist.all_to_all([torch.zeros(100) for _ in range(4)], four)  # noqa: F821
        dist.barrier()  # noqa: F821
        dist.all_gather_object([None] * 4, rank)  # noqa: F821
        dist.monitored_barrier()  # noqa: F821

    with usable.trace() as trace:
        usable.run(program)
    ops = [collective.op for collective in trace.collectives]
    assert ops == [op for op in COLLECTIVES for _ in range(2 if op == "all_gather_object" else 1)]
    for collective in trace.collectives:
        assert (collective.complete, collective.group, len(collective.events)) == (True, (0, 1, 2, 3), 4)
        assert all(event.blocking for event in collective.events)
        root = next(event for event in collective.events if event.rank == 0)
        assert COLLECTIVES[collective.op] in (None, root.num_bytes)
        assert root.peer == (0 if collective.op in ("broadcast", "reduce", "gather", "scatter") else None)
    assert trace.messages == []
    check_order(trace)


def test_waiting_is_told_apart(usable):
    """The ranks that come early wait until the last one has come; a recv waits until its send has begun."""

    def late(rank, world_size):
        dist.barrier()  # noqa: F821
        if rank == 3:
            x = torch.ones(400, 400)  # noqa: F821
            for _ in range(10):
                x = x @ x / 400
        dist.all_reduce(torch.zeros(1))  # noqa: F821
        if rank == 0:
            dist.recv(torch.zeros(1), 3)  # noqa: F821
        if rank == 3:
            for _ in range(10):
                x = x @ x / 400
            dist.send(torch.zeros(1), 0)  # noqa: F821

    with usable.trace() as trace:
        usable.run(late)
    _, collective = trace.collectives
    last = max(collective.events, key=lambda event: event.start)
    assert last.waiting == 0
    for event in collective.events:
        assert event.waiting == pytest.approx(last.start - event.start)
    (message,) = trace.messages
    early = message.send.start - message.recv.start
    assert message.recv.waiting == pytest.approx(max(0.0, early))
    assert message.send.waiting == pytest.approx(max(0.0, -early))
    assert of(trace, 3, "compute")


def ddp_step(rank, world_size):
    import torch

    torch.manual_seed(0)
    layers = [torch.nn.Linear(300, 300) for _ in range(4)]
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers), bucket_cap_mb=0.3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        with torch.profiler.record_function(f"step {step}"):
            optimizer.zero_grad()
            model(torch.ones(16, 300)).sum().backward()
            optimizer.step()
    return sum(p.numel() for p in model.parameters()) * 4


def test_training_with_ddp(usable):
    """Forward, backward and optimizer are seen, and DDP's buckets, which C++ sends, with their group and bytes."""
    with usable.trace() as trace:
        (size, *_) = usable.run(ddp_step)
    check_order(trace)
    for rank in range(4):
        ranges = of(trace, rank, "range")
        assert [event.op for event in ranges] == ["step 0", "step 1", "step 2"]
        step = ranges[2]
        inside = [e for e in trace.events if e.rank == rank and step.start <= e.start < step.end and e.kind != "range"]
        kinds = list(dict.fromkeys(e.kind for e in inside if e.kind in ("forward", "backward", "optimizer")))
        assert [kind for kind in kinds if kind != "optimizer"] == ["forward", "backward"]
        assert any(e.kind == "optimizer" for e in inside)
        buckets = [e for e in inside if e.op == "all_reduce" and e.kind == "collective"]
        assert len(buckets) == 4
        assert sum(e.num_bytes for e in buckets) == size
        backward = [e for e in inside if e.kind == "backward"]
        assert all(backward[0].start <= e.start <= backward[-1].end for e in buckets)
        assert {e.group for e in buckets} == {(0, 1, 2, 3)}
    assert all(c.complete for c in trace.collectives)


def test_calls_on_other_threads(usable):
    """A hook's callbacks run on a thread of gloo's: what they call counts, and is nothing that the main thread did."""

    def program(rank, world_size):
        from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

        torch.manual_seed(0)  # noqa: F821
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(100, 80))  # noqa: F821
        state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=2)
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        for _ in range(3):
            model(torch.ones(1, 100)).sum().backward()  # noqa: F821
        with ThreadPoolExecutor(1) as pool:
            pool.submit(dist.barrier).result()  # noqa: F821

    with usable.trace() as trace:
        usable.run(program)
    whole = 4 * (100 * 80 + 80)
    rest, thin_columns, thin_rows = 4 * 80, 4 * 80 * 2, 4 * 100 * 2
    reduced = [c for c in trace.collectives if c.op == "all_reduce"]
    expected = [whole, whole, rest, thin_columns, thin_rows]
    assert [{event.num_bytes for event in c.events} for c in reduced] == [{size} for size in expected]
    assert all(c.complete and len(c.events) == 4 for c in reduced)
    (barrier,) = [c for c in trace.collectives if c.op == "barrier"]
    for event in (*reduced[3].events, *reduced[4].events, *barrier.events):
        assert not event.blocking
        assert event.end > event.start
    check_order(trace)


def test_functional_collectives(usable):
    """Collectives that return new tensors are called by C++: they and the wait for them are seen all the same."""

    def program(rank, world_size):
        import torch.distributed._functional_collectives as functional

        pair = dist.new_group([0, 1])  # noqa: F821
        if rank < 2:
            result = functional.all_reduce(torch.ones(50), "sum", pair)  # noqa: F821
            assert functional.wait_tensor(result)[0].item() == 2

    with usable.trace() as trace:
        usable.run(program)
    (collective,) = [c for c in trace.collectives if c.op == "all_reduce"]
    assert (collective.group, collective.complete) == ((0, 1), True)
    for event in collective.events:
        assert (event.num_bytes, event.blocking) == (200, False)
        assert all(wait.end >= event.end for wait in of(trace, event.rank, "wait"))
    assert not any("functional" in event.op for event in trace.events)


def test_what_was_recorded_before_an_error_is_kept(usable):
    """The error passes through the with block, the trace is there, and shows who waited in vain."""

    def fail(rank, world_size):
        dist.barrier()  # noqa: F821
        if rank == 1:
            raise ValueError("on purpose")
        dist.recv(torch.zeros(1), 1)  # noqa: F821

    with pytest.raises(distlab.RankError, match="on purpose"), usable.trace() as trace:
        usable.run(fail)
    assert usable.last_trace is trace
    assert [c.op for c in trace.collectives] == ["barrier"]
    for rank in (0, 2, 3):
        (recv,) = of(trace, rank, "recv")
        assert (recv.failed, recv.peer, recv.ready) == (True, 1, inf)
    assert ends(trace) == [(1, rank, 0, 4, False) for rank in (0, 2, 3)]


def test_a_group_that_is_rebuilt_inside_of_a_trace(usable):
    """After heal() the new group's messages are matched, and the old one's are not taken for theirs."""

    def post(rank, world_size):
        if rank == 0:
            sys.modules["__main__"].kept = dist.irecv(torch.zeros(1), 1)  # noqa: F821

    with usable.trace() as trace:
        usable.run(post)
        usable.heal()
        usable.run(ring, 1)
    assert ends(trace) == sorted([(1, 0, 0, 4, False), *((r, (r + 1) % 4, 0, 400, True) for r in range(4))])


def test_a_trace_in_a_trace(usable):
    """A second one is refused, and the first goes on."""
    with usable.trace() as trace:
        refusal = r"^This cluster is being traced already\. End that trace first"
        with pytest.raises(distlab.ClusterError, match=refusal), usable.trace():
            pass
        usable.run(ring)
    assert len(trace.messages) == 12
    assert usable.last_trace is trace


def test_some_ranks_only(usable):
    """Ranks that are not traced record nothing; that a message goes to one of them is known, and not its other end."""
    with usable.trace(ranks=[0, 1]) as trace:
        usable.run(ring)
    assert {event.rank for event in trace.events} == {0, 1}
    found = {(m.src, m.dst): (m.matched, m.traced) for m in trace.messages}
    assert found == {(0, 1): (True, True), (1, 2): (False, False), (3, 0): (False, False)}
    assert trace.notes() == ["6 messages to or from ranks of which nothing is known."]
    refusal = "ranks must be a list of different ranks from 0 to 3"
    with pytest.raises(distlab.ArgumentError, match=refusal), usable.trace(ranks=[7]):
        pass


def state_of_torch(rank, world_size):
    from distlab.notes import NOTES

    enabled = torch._C._autograd._profiler_enabled(), torch.autograd.profiler._is_profiler_enabled  # noqa: F821
    update = torch.distributed.distributed_c10d._update_default_pg.__module__  # noqa: F821
    return NOTES.tracer is None, *enabled, update


def test_nothing_is_left_of_a_trace(usable):
    """Outside of a trace the ranks are as they were before: no profiler, nothing that notes."""
    clean = (True, False, False, "torch.distributed.distributed_c10d")
    assert usable.run(state_of_torch) == [clean] * 4
    with usable.trace():
        assert usable.run(state_of_torch)[0][:3] == (False, True, True)
    assert usable.run(state_of_torch) == [clean] * 4
    with pytest.raises(distlab.RankError), usable.trace():
        usable.run(lambda rank, world_size: 1 / 0)
    assert usable.run(state_of_torch) == [clean] * 4


def test_a_profiler_of_the_programs_own(usable):
    """A trace does not begin while one runs; one that the program starts ends the trace's, and the trace says so."""

    def begin(rank, world_size):
        sys.modules["__main__"].mine = torch.autograd.profiler.profile(use_kineto=True)  # noqa: F821
        sys.modules["__main__"].mine.__enter__()

    usable.run(begin, ranks=[2])
    refusal = r"^rank 2 cannot be traced: a profiler runs there already\."
    with pytest.raises(distlab.ClusterError, match=refusal), usable.trace():
        pass
    usable.run(lambda rank, world_size: mine.__exit__(None, None, None), ranks=[2])  # noqa: F821

    def own(rank, world_size):
        with torch.autograd.profiler.profile(use_kineto=True):  # noqa: F821
            torch.zeros(1)  # noqa: F821

    with usable.trace() as trace:
        usable.run(own, ranks=[1])
    assert trace.missing == {1: "what ran there used a profiler of its own, which ended the trace's"}
    with usable.trace() as trace:
        usable.run(ring)
    assert (trace.missing, len(trace.messages)) == ({}, 12)


def test_to_chrome(usable, tmp_path):
    """The file has what the ranks' profilers recorded, and what the trace made of it."""
    with usable.trace() as trace:
        usable.run(ring)
    items = json.loads(trace.to_chrome(tmp_path / "ring.json").read_text())["traceEvents"]
    assert {item["pid"] for item in items} == {0, 1, 2, 3}
    assert sum(item["name"] == "c10d::send" for item in items) == 12
    assert sum(item["ph"] == "s" for item in items) == 12
