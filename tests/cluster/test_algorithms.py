"""Every all-reduce on real ranks, against the same sum on one process, and what the shared memory leaves behind."""

import os
import signal
import time

import pytest
import torch

import distlab
from distlab.algorithms import ALL_REDUCE, schedule, traffic

P2P = [name for name in ALL_REDUCE if name not in ("shared memory", "best")]


# --- results ---


def wrong_results(rank, world_size, big, all_types, group_ranks=None):
    """Calls (algorithm, op, type, size) whose result is not that of a single process, and how many calls there were."""
    import functools

    import torch
    import torch.distributed as dist

    from distlab.algorithms import ALL_REDUCE
    from distlab.algorithms.call import COMBINE, check_op
    from distlab.errors import ArgumentError

    members = list(range(world_size)) if group_ranks is None else group_ranks
    group = None if group_ranks is None else dist.new_group(group_ranks)
    if rank not in members:
        return [], 0

    def tensor_of(member, dtype, size):
        generator = torch.Generator().manual_seed(1000 * size + member)
        return torch.randint(0, 3, (size,), generator=generator).to(dtype)

    def expected(op, dtype, size):
        tensors = [tensor_of(member, dtype, size) for member in members]
        total = functools.reduce(COMBINE[op], tensors)
        return total / len(members) if op == dist.ReduceOp.AVG else total

    names = ["float32", "float64", "bfloat16", "float16", "int64", "int32", "int8", "uint8", "bool", "complex64"]
    pairs = [(op, getattr(torch, name)) for op in COMBINE for name in names]
    if not all_types:
        pairs = [
            (dist.ReduceOp.PRODUCT, torch.int32),
            (dist.ReduceOp.AVG, torch.float64),
            (dist.ReduceOp.MAX, torch.bool),
        ]
    cells = [(op, dtype, 2 * world_size + 1) for op, dtype in pairs]
    cells += [(dist.ReduceOp.SUM, torch.float32, size) for size in (0, 1, world_size - 1, world_size, 1000, big)]
    wrong, count = [], 0
    for op, dtype, size in cells:
        mine = tensor_of(rank, dtype, size)
        try:
            check_op(mine, op)
        except ArgumentError:
            continue
        right = expected(op, dtype, size)
        for name, fn in ALL_REDUCE.items():
            tensor = mine.clone()
            fn(tensor, op, group)
            count += 1
            if not torch.equal(tensor, right):
                wrong.append((name, op.name, str(dtype), size))
    return wrong, count


@pytest.fixture(scope="module", params=[1, 2, 3, 4, 5, 8])
def sized(request, nothing_left):
    """A cluster of each size in turn; it replaces the one before, which is quicker than a start."""
    return distlab.Cluster(request.param, timeout=60)


@pytest.fixture(scope="module", autouse=True)
def stopped(nothing_left):
    """The last cluster ends with the module."""
    yield
    if distlab.Cluster.current is not None:
        distlab.Cluster.current.stop()


def test_results_are_those_of_one_process(sized):
    """Every algorithm on kinds of sizes (none, one, fewer than ranks, uneven, more than a piece), ops and types.

    Three ranks, which are no power of two, try every op with every type; the others a few.
    """
    n = sized.n
    big = (300_001 if n < 8 else 100_001) * n
    for wrong, count in sized.run(wrong_results, big=big, all_types=n == 3):
        assert wrong == []
        assert count >= 9 * (60 if n == 3 else 9)


def sums_of_floats(rank, world_size):
    """The sum of random floats, as the integers that their bits are, by algorithm."""
    import torch

    from distlab.algorithms import ALL_REDUCE

    mine = torch.randn(1003, generator=torch.Generator().manual_seed(rank))
    results = {name: mine.clone() for name in ALL_REDUCE}
    for name, tensor in results.items():
        ALL_REDUCE[name](tensor)
    return {name: tensor.view(torch.int32) for name, tensor in results.items()}


def test_all_ranks_get_the_same_bits(sized):
    """Rounding depends on the order of additions, and the order does not on the rank, but in the whole ring."""
    by_rank = sized.run(sums_of_floats)
    for name in ALL_REDUCE:
        same = all(torch.equal(results[name], by_rank[0][name]) for results in by_rank)
        assert same == (name != "whole ring" or sized.n < 3), name
        close = [
            torch.allclose(r[name].view(torch.float32), by_rank[0]["naive"].view(torch.float32), atol=1e-5)
            for r in by_rank
        ]
        assert all(close), name


def messages_of(rank, world_size, name, numel, segment_bytes):
    """What one all-reduce really sends and receives: (peer, first element or None for a buffer of its own, count)."""
    import torch
    import torch.distributed as dist

    from distlab.algorithms import ALL_REDUCE, rings

    tensor = torch.ones(numel)
    begin, end = tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes
    sent, received = [], []

    def noting(notes, original):
        def call(group, tensors, peer, tag):
            address = tensors[0].data_ptr()
            notes.append((peer, (address - begin) // 4 if begin <= address < end else None, tensors[0].numel()))
            return original(group, tensors, peer, tag)

        return call

    originals = dist.ProcessGroup.send, dist.ProcessGroup.recv, rings.SEGMENT_BYTES
    dist.ProcessGroup.send, dist.ProcessGroup.recv = noting(sent, originals[0]), noting(received, originals[1])
    rings.SEGMENT_BYTES = segment_bytes
    try:
        ALL_REDUCE[name](tensor)
    finally:
        dist.ProcessGroup.send, dist.ProcessGroup.recv, rings.SEGMENT_BYTES = originals
    return sent, received


@pytest.mark.parametrize("name", P2P)
def test_the_messages_are_those_of_the_schedule(sized, name):
    """Each rank sends and receives what the schedule says, in its order, from and into the chunks that it says."""
    n, numel, k = sized.n, 1680, 2 if name == "pipelined ring" else 1
    plan = schedule(name, n, segments=k)
    length = numel // plan.num_chunks
    real = sized.run(messages_of, name, numel, 4 * length)
    steps = [message for step in plan.steps for message in step]
    for rank, (sent, received) in enumerate(real):
        planned = [
            (m.dst, None if m.origin is not None else m.chunks[0] * length, len(m.chunks) * length)
            for m in steps
            if m.src == rank
        ]
        assert sent == planned
        planned = [
            (m.src, m.chunks[0] * length if m.operation == "copy" else None, len(m.chunks) * length)
            for m in steps
            if m.dst == rank
        ]
        assert received == planned
    messages, num_bytes = sum(len(sent) for sent, _ in real), 4 * sum(row[2] for sent, _ in real for row in sent)
    if name != "pipelined ring":
        assert (messages, num_bytes) == traffic(name, 4 * numel, n)


# --- groups ---


def test_groups_of_some_ranks(cluster):
    """In a group only its ranks take part, in an order of their own; the others are refused."""
    for members in ([1, 3], [3, 0, 2]):
        results = cluster.run(wrong_results, big=400_001, all_types=False, group_ranks=members)
        assert [wrong for wrong, _ in results] == [[]] * 4
        assert [count > 0 for _, count in results] == [rank in members for rank in range(4)]


# --- shared memory ---


def mapped(rank, world_size):
    """How many segments of ours this rank has mapped, and the names that are left of them."""
    import os

    with open("/proc/self/maps") as lines:
        count = sum("distlab-" in line for line in lines)
    return count, [name for name in os.listdir("/dev/shm") if name.startswith("distlab-")]


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="what a process has mapped stands in /proc")
def test_shared_memory_has_no_name_and_goes_with_the_group(cluster):
    """One segment a group, however often it is used; no file is left; a rebuilt group makes a new one."""
    cluster.heal()
    cluster.run(all_reduce, 3)
    assert cluster.run(mapped) == [(1, [])] * 4
    cluster.run(all_reduce, 1 << 20)
    assert cluster.run(mapped) == [(1, [])] * 4
    cluster.heal()
    assert cluster.run(mapped) == [(0, [])] * 4
    cluster.run(all_reduce, 3)
    assert cluster.run(mapped) == [(1, [])] * 4


def all_reduce(rank, world_size, numel):
    import torch

    from distlab.algorithms import ALL_REDUCE

    tensor = torch.ones(numel)
    ALL_REDUCE["shared memory"](tensor)
    assert tensor.eq(world_size).all()


def alone_in_a_group(rank, world_size):
    """What rank 1 of a group with half a second of patience is told when rank 0 does not come."""
    import datetime
    import time

    import torch
    import torch.distributed as dist

    from distlab.algorithms import ALL_REDUCE

    group = dist.new_group([0, 2], timeout=datetime.timedelta(seconds=3))
    if rank in (0, 2):
        ALL_REDUCE["best"](torch.ones(1), group=group)
    if rank == 2:
        began = time.monotonic()
        with pytest.raises(RuntimeError) as caught:
            ALL_REDUCE["best"](torch.ones(1), group=group)
        return str(caught.value), time.monotonic() - began


def test_a_rank_that_never_comes_is_an_error_after_the_timeout(cluster):
    """The group's own timeout counts, and the message has the rank's number in the world."""
    message, seconds = cluster.run(alone_in_a_group)[2]
    assert message.startswith("Timed out waiting 3 s for rank 0 to come to an all_reduce through shared memory.")
    assert 3 <= seconds < 13


def test_a_rank_that_raises_frees_those_that_wait_in_shared_memory(cluster):
    """They are freed at once, not after the timeout, and the one that raised is the culprit."""

    def fails(rank, world_size):
        from distlab.algorithms import ALL_REDUCE

        tensor = torch.ones(3)
        ALL_REDUCE["shared memory"](tensor)
        if rank == 1:
            raise ValueError("no")
        ALL_REDUCE["shared memory"](tensor)

    began = time.monotonic()
    with pytest.raises(distlab.RankError) as caught:
        cluster.run(fails)
    assert caught.value.rank == 1
    assert str(caught.value).startswith("rank 1 raised ValueError: no")
    assert time.monotonic() - began < 15
    cluster.run(all_reduce, 3)


def test_a_wait_in_shared_memory_can_be_interrupted(cluster):
    """The rank comes back with KeyboardInterrupt; the others are told that it left, and the next group works."""

    def interrupted(rank, world_size):
        import os
        import threading

        from distlab import sentinel
        from distlab.algorithms import ALL_REDUCE

        tensor = torch.ones(3)
        ALL_REDUCE["shared memory"](tensor)
        if rank == 0:
            threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
            with pytest.raises(KeyboardInterrupt):
                ALL_REDUCE["shared memory"](tensor)
            sentinel.settle()  # it has seen the signal, too, and does not take it for one to the barrier
        dist.barrier()  # noqa: F821
        with pytest.raises(RuntimeError, match=r"^Rank 0 left an all_reduce through shared memory half-way"):
            ALL_REDUCE["shared memory"](tensor)

    cluster.run(interrupted)
    cluster.heal()
    cluster.run(all_reduce, 3)


def test_a_rank_that_dies_is_named_by_those_that_wait_for_it(cluster):
    """They do not wait for the timeout, and the next group works with the rank's successor."""

    def dies(rank, world_size):
        import __main__
        from distlab.algorithms import ALL_REDUCE

        tensor = torch.ones(3)
        ALL_REDUCE["shared memory"](tensor)
        if rank == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            ALL_REDUCE["shared memory"](tensor)
        except RuntimeError as error:
            __main__.told = str(error)

    began = time.monotonic()
    with pytest.raises(distlab.RankDied):
        cluster.run(dies)
    assert time.monotonic() - began < 15
    assert "The process of rank 3 ended" in "".join(cluster.pull("told", ranks=[0, 1, 2]))
    cluster.run(all_reduce, 3)


def test_ranks_that_cannot_share_memory_are_told_so_and_best_sends_messages(cluster):
    """One rank that cannot open the file, as on another machine: all refuse alike, `best` works, no file is left."""

    def apart(rank, world_size):
        from distlab.algorithms import ALL_REDUCE, place
        from distlab.errors import ArgumentError

        original = place._map
        if rank == 2:
            place._map = lambda path, *rest: original(f"{path}-elsewhere", *rest)
        group = dist.new_group()  # noqa: F821
        try:
            with pytest.raises(ArgumentError) as caught:
                ALL_REDUCE["shared memory"](torch.ones(3), group=group)
            values = []
            for numel in (3, 100_000):
                tensor = torch.full((numel,), float(rank))
                ALL_REDUCE["best"](tensor, group=group)
                values.append(tensor.unique().tolist())
        finally:
            place._map = original
        return str(caught.value), values

    for message, values in cluster.run(apart):
        assert message.startswith(
            "group must be one whose ranks share the memory of one machine, got one where rank 2 on "
        )
        assert "cannot open the file of rank 0: [Errno 2] No such file or directory" in message
        assert message.endswith('Call ALL_REDUCE["best"](tensor), which sends messages there.')
        assert values == [[6.0], [6.0]]
    assert [names for _, names in cluster.run(mapped)] == [[]] * 4


def test_different_calls_are_refused_and_the_next_one_works(cluster):
    """A size, a type or an op that differs: every rank is told what each one called, and nothing has changed."""

    def differ(rank, world_size):
        from distlab.algorithms import ALL_REDUCE
        from distlab.errors import ArgumentError

        tensor = torch.ones(5 if rank == 3 else 4)
        with pytest.raises(ArgumentError) as caught:
            ALL_REDUCE["shared memory"](tensor)
        assert tensor.eq(1).all()
        right = torch.ones(4)
        ALL_REDUCE["shared memory"](right)
        return str(caught.value), right.tolist()

    expected = (
        "tensor must be of the same type and size, with the same op, on every rank, got "
        "rank 0: add of torch.float32 x 4, rank 1: add of torch.float32 x 4, rank 2: add of torch.float32 x 4, "
        "rank 3: add of torch.float32 x 5. Nothing was changed."
    )
    assert cluster.run(differ) == [(expected, [4.0] * 4)] * 4
