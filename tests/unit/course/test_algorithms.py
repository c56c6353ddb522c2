"""All-reduce without processes: schedules, arguments, shared memory with threads as ranks."""

import importlib
import itertools
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.distributed as dist

from distlab.simulated.schedules import ALGORITHMS
from distlab_course.algorithms import ALL_REDUCE, holdings, schedule
from distlab_course.algorithms.shared_memory import Segment, bytes_for, reduce_in, slot_bytes
from tests.refused import raised, refused

NAMES = sorted(ALGORITHMS)
SIZES = range(1, 10)
NOT_A_MEMBER = dist.GroupMember.NON_GROUP_MEMBER


# --- schedules ---


@pytest.mark.parametrize("name", NAMES)
def test_every_schedule_adds_each_rank_once_everywhere(name):
    """Played with numbers that count how often a rank was added, each rank ends with 11...1.

    The digits count, and each chunk ends so.

    So `holdings` grow from one's own tensor in every chunk to all.
    """
    for n in SIZES:
        plan = schedule(name, n)
        own = [10**rank for rank in range(n)]
        state = [[own[rank]] * plan.num_chunks for rank in range(n)]
        for step in plan.steps:
            before = [list(chunks) for chunks in state]
            for m in step:
                for chunk in m.chunks:
                    carried = before[m.src][chunk] if m.origin is None else own[m.origin]
                    state[m.dst][chunk] = carried + (
                        state[m.dst][chunk] if m.operation == "reduce" else 0
                    )
        assert state == [[sum(own)] * plan.num_chunks] * n, (name, n)
        states = holdings(plan)
        assert len(states) == len(plan.steps) + 1
        assert states[0] == [[{rank}] * plan.num_chunks for rank in range(n)]
        assert states[-1] == [[set(range(n))] * plan.num_chunks] * n


# --- the functions, before anything is sent ---


RING = ALL_REDUCE["ring"]
REFUSED = {
    "name must be one of 'naive', 'whole ring', 'ring', ": lambda: schedule("best", 4),
    "op must be dist.ReduceOp.SUM, PRODUCT, MIN or MAX, got 'sum'. ": lambda: RING(
        torch.ones(2), "sum"
    ),
    "tensor must be a torch.Tensor, got [1.0]. ": lambda: RING([1.0]),
    "tensor must be dense, on the CPU and contiguous, ": lambda: RING(torch.ones(2, 3).t()),
    "group must be a process group that this rank is in, got -100. ": lambda: RING(
        torch.ones(2), group=NOT_A_MEMBER
    ),
}


@pytest.mark.parametrize(("message", "call"), REFUSED.items())
def test_bad_arguments_are_refused_in_words(message, call):
    """The rule and what was given, before anything is sent."""
    assert str(refused(call)).startswith(message)


# --- shared memory, threads as ranks ---


@pytest.fixture
def short_slots(monkeypatch):
    """Slots of 4 kB and 512 B, so that small tensors fill them."""
    # the package has a function so named
    module = importlib.import_module("distlab_course.algorithms.shared_memory")
    monkeypatch.setattr(module, "LARGE_SLOT_BYTES", 1 << 12)
    monkeypatch.setattr(module, "SMALL_SLOT_BYTES", 1 << 9)


def together(n, work):
    """work(view) on n threads with one memory; what each returned."""
    memory = bytearray(bytes_for(n))
    with ThreadPoolExecutor(n) as threads:
        return list(threads.map(lambda rank: work(Segment(memory, rank, range(n), 30.0)), range(n)))


def number_of(rank, size, dtype, seed):
    generator = torch.Generator().manual_seed(1000 * seed + rank)
    return torch.randint(0, 3, (size,), generator=generator).to(dtype)


@pytest.mark.parametrize("slow", range(3))
def test_a_slow_rank_reads_what_was_meant_for_it(slow, short_slots):
    """One rank reads only when the others have written all that they can for the next meeting.

    Calls of sizes around every boundary follow each other, so that a write into what a slow rank
    has yet to read shows.
    """
    n = 3
    large, small = slot_bytes(n)
    numels = [
        1,
        n - 1,
        small // 4,
        small // 4 + 1,
        large // 8,
        large // 4,
        large // 4 + n + 1,
        3 * large // 4,
    ]
    calls = [numel for pair in itertools.product(numels, repeat=2) for numel in pair]
    entered = [0] * n
    change = threading.Condition()

    def work(view):
        original = view.meet

        def meet():
            with change:
                entered[view.rank] += 1
                change.notify_all()
            original()
            if view.rank == slow:
                others = [rank for rank in range(n) if rank != slow]
                with change:
                    change.wait_for(
                        lambda: all(entered[rank] > entered[slow] for rank in others), 20
                    )

        view.meet = meet
        wrong = []
        for seed, numel in enumerate(calls):
            mine = number_of(view.rank, numel, torch.float32, seed)
            reduce_in(view, mine, torch.add)
            if not torch.equal(
                mine, sum(number_of(rank, numel, torch.float32, seed) for rank in range(n))
            ):
                wrong.append((seed, numel))
        with change:
            entered[view.rank] += 1
            change.notify_all()
        return wrong

    assert together(n, work) == [[]] * n


def test_a_rank_that_never_comes_is_an_error_after_the_timeout():
    """The message has its number in the world."""
    view = Segment(bytearray(bytes_for(2)), 0, [4, 7], 0.05)
    words = "Timed out waiting 0.05 s for rank 7 to come to an all_reduce through shared memory. "
    assert str(raised(RuntimeError, view.meet)).startswith(words)
