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


def played(plan, own):
    """By rank and chunk, what a schedule makes of these numbers."""
    state = [[number] * plan.num_chunks for number in own]
    for step in plan.steps:
        before = [list(chunks) for chunks in state]
        for message in step:
            received = state[message.dst]
            for chunk in message.chunks:
                carried = before[message.src][chunk]
                if message.origin is not None:
                    carried = own[message.origin]
                if message.operation == "reduce":
                    received[chunk] += carried
                else:
                    received[chunk] = carried
    return state


@pytest.mark.parametrize("name", NAMES)
def test_every_schedule_adds_each_rank_once_everywhere(name):
    """Rank r begins with 10 to the power of r, so the digits count how often each was added.

    In the end each chunk of each rank is 11...1. In the same way `holdings` grow, in every chunk,
    from the rank's own tensor to those of all ranks.
    """
    for n in SIZES:
        plan = schedule(name, n)
        own = [10**rank for rank in range(n)]
        assert played(plan, own) == [[sum(own)] * plan.num_chunks] * n, (name, n)
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
    views = [Segment(memory, rank, range(n), 30.0) for rank in range(n)]
    with ThreadPoolExecutor(n) as threads:
        return list(threads.map(work, views))


def numbers_of(rank, size, seed):
    """Small whole numbers that a rank adds in one call."""
    generator = torch.Generator().manual_seed(1000 * seed + rank)
    return torch.randint(0, 3, (size,), generator=generator).to(torch.float32)


def sizes_around_the_slots(n):
    """Numbers of float32 elements below, at and above what the slots of n ranks hold."""
    large, small = slot_bytes(n)
    return [
        1,
        n - 1,
        small // 4,
        small // 4 + 1,
        large // 8,
        large // 4,
        large // 4 + n + 1,
        3 * large // 4,
    ]


class Meetings:
    """Lets one rank return from a meeting only when all others have come to the next one."""

    def __init__(self, n, slow):
        self._slow = slow
        self._others = [rank for rank in range(n) if rank != slow]
        self._entered = [0] * n
        self._change = threading.Condition()

    def enter(self, rank):
        """Note that a rank has come to a meeting, or will come to no more."""
        with self._change:
            self._entered[rank] += 1
            self._change.notify_all()

    def wait_for_the_others(self):
        """Wait until the other ranks have come to one meeting more."""
        with self._change:
            self._change.wait_for(self._are_ahead, 20)

    def _are_ahead(self):
        slow = self._entered[self._slow]
        return all(self._entered[rank] > slow for rank in self._others)


@pytest.mark.parametrize("slow", range(3))
def test_a_slow_rank_reads_what_was_meant_for_it(slow, short_slots):
    """One rank reads only when the others have written all that they can for the next meeting.

    Calls of sizes around every boundary follow each other, so that a write into what a slow rank
    has yet to read shows.
    """
    n = 3
    pairs = itertools.product(sizes_around_the_slots(n), repeat=2)
    sizes = list(itertools.chain.from_iterable(pairs))
    meetings = Meetings(n, slow)

    def work(view):
        original = view.meet

        def meet():
            meetings.enter(view.rank)
            original()
            if view.rank == slow:
                meetings.wait_for_the_others()

        view.meet = meet
        wrong = []
        for seed, size in enumerate(sizes):
            mine = numbers_of(view.rank, size, seed)
            reduce_in(view, mine, torch.add)
            right = sum(numbers_of(rank, size, seed) for rank in range(n))
            if not torch.equal(mine, right):
                wrong.append((seed, size))
        meetings.enter(view.rank)
        return wrong

    assert together(n, work) == [[]] * n


def test_a_rank_that_never_comes_is_an_error_after_the_timeout():
    """The message has its number in the world."""
    view = Segment(bytearray(bytes_for(2)), 0, [4, 7], 0.05)
    words = "Timed out waiting 0.05 s for rank 7 to come to an all_reduce through shared memory. "
    assert str(raised(RuntimeError, view.meet)).startswith(words)
