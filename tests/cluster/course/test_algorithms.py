"""Every all-reduce against the sum on one process, and what shared memory leaves behind."""

import functools
import gc
import importlib
import itertools
import os

import pytest
import torch
import torch.distributed as dist

import distlab
from distlab.simulated import schedules
from distlab_course.algorithms import ALL_REDUCE
from distlab_course.algorithms.call import COMBINE
from tests.refused import raised

TYPES = (
    "float32",
    "float64",
    "bfloat16",
    "float16",
    "int64",
    "int32",
    "int8",
    "uint8",
    "bool",
    "complex64",
)
MORE_THAN_SLOTS = 600_001  # floats: shared memory takes them in pieces


# --- results ---


def calls_to_try(world_size, all_types):
    """(op, type, size): every op with every type or a few of them, and a sum of every size."""
    if all_types:
        ops_and_types = itertools.product(COMBINE, TYPES)
    else:
        ops_and_types = [
            (dist.ReduceOp.PRODUCT, "int32"),
            (dist.ReduceOp.MIN, "float64"),
            (dist.ReduceOp.MAX, "bool"),
        ]
    calls = []
    for op, dtype in ops_and_types:
        has_no_order = dtype.startswith("complex")
        if has_no_order and op in (dist.ReduceOp.MIN, dist.ReduceOp.MAX):
            continue
        calls.append((op, dtype, 2 * world_size + 1))
    for size in (0, 1, world_size - 1, world_size, 1000, MORE_THAN_SLOTS):
        calls.append((dist.ReduceOp.SUM, "float32", size))
    return calls


def tensor_of(member, dtype, size):
    """Small whole numbers, other ones on each rank."""
    generator = torch.Generator().manual_seed(1000 * size + member)
    numbers = torch.randint(0, 3, (size,), generator=generator)
    return numbers.to(getattr(torch, dtype))


def wrong_results(rank, world_size, all_types, members=None):
    """Calls (algorithm, op, type, size) whose result is not that of a single process."""
    if members is None:
        members = list(range(world_size))
    group = dist.new_group(members)
    if rank not in members:
        return []
    wrong = []
    for op, dtype, size in calls_to_try(world_size, all_types):
        tensors = [tensor_of(member, dtype, size) for member in members]
        right = functools.reduce(COMBINE[op], tensors)
        for name, fn in ALL_REDUCE.items():
            tensor = tensor_of(rank, dtype, size)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(schedules, "SEGMENT_BYTES", 1 << 16)  # many are in flight
                fn(tensor, op, group)
            if not torch.equal(tensor, right):
                wrong.append((name, op.name, dtype, size))
    return wrong


@pytest.mark.parametrize("sized", [1, 2, 3, 6, 4], indirect=True)
def test_results_are_those_of_one_process(sized):
    """Every algorithm on every kind of size, from none to more than a piece, op and type.

    Three ranks, which are no power of two, try every op with every type; the others a few.
    """
    assert sized.run(wrong_results, all_types=sized.n == 3) == [[]] * sized.n


def sums_of_floats(rank, world_size):
    """The sum of random floats by algorithm."""
    mine = torch.randn(1003, generator=torch.Generator().manual_seed(rank))
    results = {name: mine.clone() for name in ALL_REDUCE}
    for name, tensor in results.items():
        ALL_REDUCE[name](tensor)
    return results


@pytest.mark.parametrize("sized", [2, 3, 6, 4], indirect=True)
def test_all_ranks_get_the_same_bits(sized):
    """Rounding depends on the order of additions, which is the same on every rank."""
    by_rank = sized.run(sums_of_floats)
    for name in ALL_REDUCE:
        same = all(torch.equal(results[name], by_rank[0][name]) for results in by_rank)
        # in the whole ring each rank adds in another order; two numbers have the same sum in both
        differ = name == "whole ring" and sized.n > 2
        assert same != differ, name


# --- groups ---


def test_a_group_of_some_ranks(cluster):
    """In a group only its ranks take part, in an order of their own."""
    assert cluster.run(wrong_results, all_types=False, members=[3, 0, 2]) == [[]] * 4


# --- shared memory ---


def mapped(rank, world_size):
    """How many segments of ours this rank has mapped, and which of them have a name."""
    gc.collect()  # an error that an earlier call raised may still refer to its group
    with open("/proc/self/maps") as lines:
        segments = [line.strip() for line in lines if "distlab-" in line]
    named = [segment for segment in segments if not segment.endswith("(deleted)")]
    return len(segments), named


@pytest.mark.skipif(
    not os.path.isdir("/proc/self"), reason="what a process has mapped stands in /proc"
)
def test_shared_memory_has_no_name_and_goes_with_the_group(cluster):
    """A group has one segment, and no file is left; a rebuilt group makes a new one."""
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


def test_ranks_that_cannot_share_memory_are_told_so_and_best_sends_messages(cluster):
    """If one rank cannot open the file, all refuse, `best` works, and no file is left."""

    def open_elsewhere(path, mode):
        return open(f"{path}-elsewhere", mode)

    def apart(rank, world_size):
        module = importlib.import_module("distlab_course.algorithms.shared_memory")
        group = dist.new_group()
        with pytest.MonkeyPatch.context() as patch:
            if rank == 2:
                patch.setattr(module, "open", open_elsewhere, raising=False)
            error = raised(
                distlab.ArgumentError, ALL_REDUCE["shared memory"], torch.ones(3), group=group
            )
        tensors = [torch.full((numel,), float(rank)) for numel in (3, 100_000)]
        for tensor in tensors:
            ALL_REDUCE["best"](tensor, group=group)
        return str(error), [tensor.unique().tolist() for tensor in tensors]

    for message, values in cluster.run(apart):
        assert message.startswith(
            "group must be one whose ranks share the memory of one machine, got one where rank 2"
        )
        assert values == [[6.0], [6.0]]
    assert [names for _, names in cluster.run(mapped)] == [[]] * 4
