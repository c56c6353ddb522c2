"""Every all-reduce on real ranks, against the same sum on one process, and what the shared memory leaves behind."""

import functools
import gc
import importlib
import itertools
import os
import signal
import threading
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

import distlab
from distlab.simulated import schedules
from distlab_course.algorithms import ALL_REDUCE
from distlab_course.algorithms.call import COMBINE
from tests.refused import raised

TYPES = ("float32", "float64", "bfloat16", "float16", "int64", "int32", "int8", "uint8", "bool", "complex64")
MORE_THAN_SLOTS = 600_001  # floats: shared memory takes them in pieces


# --- results ---


def wrong_results(rank, world_size, all_types, members=None):
    """Calls (algorithm, op, type, size) whose result is not that of a single process, and how many calls there were."""
    members = list(range(world_size)) if members is None else members
    group = dist.new_group(members)
    if rank not in members:
        return [], 0

    def tensor_of(member, dtype, size):
        generator = torch.Generator().manual_seed(1000 * size + member)
        return torch.randint(0, 3, (size,), generator=generator).to(dtype)

    few = [(dist.ReduceOp.PRODUCT, "int32"), (dist.ReduceOp.MIN, "float64"), (dist.ReduceOp.MAX, "bool")]
    pairs = itertools.product(COMBINE, TYPES) if all_types else few
    cells = [(op, dtype, 2 * world_size + 1) for op, dtype in pairs]
    cells += [
        (dist.ReduceOp.SUM, "float32", size) for size in (0, 1, world_size - 1, world_size, 1000, MORE_THAN_SLOTS)
    ]
    wrong, count = [], 0
    for op, dtype, size in cells:
        tensors = [tensor_of(member, getattr(torch, dtype), size) for member in members]
        if tensors[0].is_complex() and op in (dist.ReduceOp.MIN, dist.ReduceOp.MAX):
            continue
        right = functools.reduce(COMBINE[op], tensors)
        for name, fn in ALL_REDUCE.items():
            tensor = tensor_of(rank, getattr(torch, dtype), size)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(schedules, "SEGMENT_BYTES", 1 << 16)  # many are in flight
                fn(tensor, op, group)
            count += 1
            if not torch.equal(tensor, right):
                wrong.append((name, op.name, dtype, size))
    return wrong, count


@pytest.mark.parametrize("sized", [1, 2, 3, 6, 4], indirect=True)
def test_results_are_those_of_one_process(sized):
    """Every algorithm on kinds of sizes (none, one, fewer than ranks, uneven, more than a piece), ops and types.

    Three ranks, which are no power of two, try every op with every type; the others a few.
    """
    for wrong, count in sized.run(wrong_results, all_types=sized.n == 3):
        assert wrong == []
        assert count >= 9 * (44 if sized.n == 3 else 9)


def sums_of_floats(rank, world_size):
    """The sum of random floats by algorithm."""
    mine = torch.randn(1003, generator=torch.Generator().manual_seed(rank))
    results = {name: mine.clone() for name in ALL_REDUCE}
    for name, tensor in results.items():
        ALL_REDUCE[name](tensor)
    return results


@pytest.mark.parametrize("sized", [2, 3, 6, 4], indirect=True)
def test_all_ranks_get_the_same_bits(sized):
    """Rounding depends on the order of additions, and the order does not on the rank, but in the whole ring."""
    by_rank = sized.run(sums_of_floats)
    for name in ALL_REDUCE:
        same = all(torch.equal(results[name], by_rank[0][name]) for results in by_rank)
        assert same == (name != "whole ring" or sized.n == 2), name
        assert all(torch.allclose(results[name], by_rank[0]["naive"], atol=1e-5) for results in by_rank), name


# --- groups ---


def test_a_group_of_some_ranks(cluster):
    """In a group only its ranks take part, in an order of their own."""
    results = cluster.run(wrong_results, all_types=False, members=[3, 0, 2])
    assert [wrong for wrong, _ in results] == [[]] * 4


# --- shared memory ---


def mapped(rank, world_size):
    """How many segments of ours this rank has mapped, and which of them have a name; others may run on this machine."""
    gc.collect()  # an error that an earlier call raised may still refer to its group
    with open("/proc/self/maps") as lines:
        segments = [line.strip() for line in lines if "distlab-" in line]
    return len(segments), [segment for segment in segments if not segment.endswith("(deleted)")]


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="what a process has mapped stands in /proc")
def test_shared_memory_has_no_name_and_goes_with_the_group(cluster):
    """One segment a group, however often it is used; no file is left; a rebuilt group makes a new one."""
    for _ in range(2):
        cluster.heal()
        assert cluster.run(mapped) == [(0, [])] * 4
        cluster.run(all_reduce, 3)
        cluster.run(all_reduce, 1 << 20)
        assert cluster.run(mapped) == [(1, [])] * 4


def all_reduce(rank, world_size, numel):
    tensor = torch.ones(numel)
    ALL_REDUCE["shared memory"](tensor)
    assert tensor.eq(world_size).all()


def test_a_rank_that_never_comes_is_an_error_after_the_timeout(cluster):
    """It waits as long as a group that is given no timeout; the message has the rank's number in the world."""

    def alone(rank, world_size):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(dist.distributed_c10d, "default_pg_timeout", timedelta(seconds=3))
            group = dist.new_group([0, 2])
            if rank in (0, 2):
                ALL_REDUCE["best"](torch.ones(1), group=group)
        if rank == 2:
            began = time.monotonic()
            error = raised(RuntimeError, ALL_REDUCE["best"], torch.ones(1), group=group)
            return str(error), time.monotonic() - began

    message, seconds = cluster.run(alone)[2]
    assert message.startswith("Timed out waiting 3 s for rank 0 to come to an all_reduce through shared memory. ")
    assert 3 <= seconds < 13


def fails(rank, world_size, by_signal):
    """Rank 3 fails between two calls, while the others wait for it in the second one."""
    ALL_REDUCE["shared memory"](torch.ones(3))
    if rank == 3 and by_signal:
        os.kill(os.getpid(), signal.SIGKILL)
    if rank == 3:
        raise ValueError("no")
    ALL_REDUCE["shared memory"](torch.ones(3))


@pytest.mark.parametrize("by_signal", [False, True])
def test_a_rank_that_fails_frees_those_that_wait_in_shared_memory(cluster, by_signal):
    """They are freed at once, not after the timeout, the one that failed is the culprit, and the next group works."""
    began = time.monotonic()
    error = raised(distlab.RankDied if by_signal else distlab.RankError, cluster.run, fails, by_signal)
    assert error.failures[0].rank == 3
    assert time.monotonic() - began < 15
    cluster.run(all_reduce, 3)


def test_a_wait_in_shared_memory_can_be_interrupted(cluster):
    """The rank comes back with KeyboardInterrupt, and the next group works."""

    def interrupted(rank, world_size):
        ALL_REDUCE["shared memory"](torch.ones(3))
        if rank == 0:
            threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
            with pytest.raises(KeyboardInterrupt):
                ALL_REDUCE["shared memory"](torch.ones(3))
        dist.barrier()

    cluster.run(interrupted)
    cluster.heal()
    cluster.run(all_reduce, 3)


def test_ranks_that_cannot_share_memory_are_told_so_and_best_sends_messages(cluster):
    """One rank that cannot open the file, as on another machine: all refuse alike, `best` works, no file is left."""

    def apart(rank, world_size):
        module = importlib.import_module("distlab_course.algorithms.shared_memory")
        group = dist.new_group()
        with pytest.MonkeyPatch.context() as patch:
            if rank == 2:
                elsewhere = lambda path, mode: open(f"{path}-elsewhere", mode)  # noqa: E731, SIM115
                patch.setattr(module, "open", elsewhere, raising=False)
            error = raised(distlab.ArgumentError, ALL_REDUCE["shared memory"], torch.ones(3), group=group)
        tensors = [torch.full((numel,), float(rank)) for numel in (3, 100_000)]
        for tensor in tensors:
            ALL_REDUCE["best"](tensor, group=group)
        return str(error), [tensor.unique().tolist() for tensor in tensors]

    for message, values in cluster.run(apart):
        assert message.startswith("group must be one whose ranks share the memory of one machine, got one where rank 2")
        assert values == [[6.0], [6.0]]
    assert [names for _, names in cluster.run(mapped)] == [[]] * 4


def test_different_calls_are_refused_and_the_next_one_works(cluster):
    """A size, a type or an op that differs: every rank is told what each one called, and nothing has changed."""

    def differ(rank, world_size, odd):
        op = dist.ReduceOp.PRODUCT if odd == "op" and rank == 3 else dist.ReduceOp.SUM
        tensor = torch.ones({"size": 5, "slot": 1 << 20}.get(odd, 4) if rank == 3 else 4)
        error = raised(distlab.ArgumentError, ALL_REDUCE["shared memory"], tensor, op)
        assert tensor.eq(1).all()
        right = torch.ones(4)
        ALL_REDUCE["shared memory"](right)
        return str(error), right.tolist()

    for odd, kind in (("size", "add of torch.float32 x 5"), ("op", "mul of torch.float32 x 4"), ("slot", "x 1048576")):
        for message, right in cluster.run(differ, odd):
            assert message.startswith(
                "tensor must be of the same type and size, with the same op, on every rank, got "
                "rank 0: add of torch.float32 x 4, rank 1: add of torch.float32 x 4, "
            )
            assert message.endswith(f"{kind}. Nothing was changed.")
            assert right == [4.0] * 4
