"""All-reduce without processes: schedules and costs, arguments, and the shared memory with threads as ranks."""

import functools
import itertools
import math
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

from distlab.algorithms import ALL_REDUCE, choose, cost, holdings, schedule, segment, traffic
from distlab.algorithms.call import COMBINE, check_op, check_tensor
from distlab.algorithms.schedules import SCHEDULES
from distlab.algorithms.segment import Segment, bytes_for, slot_bytes
from distlab.algorithms.shared_memory import reduce_in
from distlab.errors import ArgumentError, ArgumentTypeError

NAMES = sorted(SCHEDULES)
SIZES = range(1, 10)


# --- schedules ---


@pytest.mark.parametrize("name", NAMES)
def test_every_schedule_adds_each_rank_once_everywhere(name):
    """Played with numbers whose digits count how often a rank was added, each rank ends with 11...1 in each chunk."""
    for n, k in itertools.product(SIZES, (1, 3)):
        plan = schedule(name, n, segments=k)
        own = [10**rank for rank in range(n)]
        state = [[own[rank]] * plan.num_chunks for rank in range(n)]
        for step in plan.steps:
            before = [list(chunks) for chunks in state]
            for m in step:
                for chunk in m.chunks:
                    carried = before[m.src][chunk] if m.origin is None else own[m.origin]
                    state[m.dst][chunk] = carried + (state[m.dst][chunk] if m.operation == "reduce" else 0)
        assert state == [[sum(own)] * plan.num_chunks] * n, (name, n, k)


@pytest.mark.parametrize("name", NAMES)
def test_a_message_carries_what_its_sender_had_before_the_step(name):
    """holdings() grows from each rank's own tensor to all ranks' in every chunk, and follows the messages."""
    for n in SIZES:
        plan = schedule(name, n)
        states = holdings(plan)
        everyone = frozenset(range(n))
        assert states[0] == [[frozenset({rank})] * plan.num_chunks for rank in range(n)]
        assert states[-1] == [[everyone] * plan.num_chunks] * n
        for (before, after), step in zip(itertools.pairwise(states), plan.steps, strict=True):
            touched = {(m.dst, chunk) for m in step for chunk in m.chunks}
            kept = itertools.product(range(n), range(plan.num_chunks))
            assert all(before[r][c] == after[r][c] for r, c in kept if (r, c) not in touched)


def test_the_ring_of_three_by_hand():
    """Three ranks: two steps of adding, two of copying; chunk 1 is complete on rank 0 first."""
    moves = [[(m.src, m.dst, m.chunks[0], m.operation) for m in step] for step in schedule("ring", 3).steps]
    assert moves == [
        [(0, 1, 0, "reduce"), (1, 2, 1, "reduce"), (2, 0, 2, "reduce")],
        [(0, 1, 2, "reduce"), (1, 2, 0, "reduce"), (2, 0, 1, "reduce")],
        [(0, 1, 1, "copy"), (1, 2, 2, "copy"), (2, 0, 0, "copy")],
        [(0, 1, 0, "copy"), (1, 2, 1, "copy"), (2, 0, 2, "copy")],
    ]
    assert holdings(schedule("ring", 3))[2][0] == [{0}, {0, 1, 2}, {0, 2}]


# --- costs ---


def critical_path(plan, num_bytes):
    """Messages, bytes sent and bytes added one after another, when the messages of a step travel at the same time."""
    longest = [max(len(m.chunks) for m in step) for step in plan.steps]
    adding = [any(m.operation == "reduce" for m in step) for step in plan.steps]
    share = num_bytes / plan.num_chunks
    added = sum(length for length, adds in zip(longest, adding, strict=True) if adds)
    return len(plan.steps), sum(longest) * share, added * share


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("shared memory", "pipelined ring")])
def test_the_cost_is_that_of_the_schedule(name):
    """alpha counts the steps, beta the bytes of their longest messages, gamma the bytes that are added."""
    for n in SIZES:
        num_bytes = 4 * 5040
        steps, sent, added = critical_path(schedule(name, n), num_bytes)
        assert cost(name, num_bytes, n, 1, 0) == steps
        assert cost(name, num_bytes, n, 0, 1) == pytest.approx(sent)
        assert cost(name, num_bytes, n, 0, 0, 1) == pytest.approx(added)


def test_segments_cost_messages_and_save_adding():
    """128 MiB on 4 ranks are 16 segments a chunk: as many more messages, the same bytes, a sixteenth of the adding."""
    whole, cut = (
        [cost(name, 1 << 27, 4, *unit) for unit in ((1, 0), (0, 1), (0, 0, 1))] for name in ("ring", "pipelined ring")
    )
    assert cut == pytest.approx([16 * whole[0], whole[1], whole[2] / 16])
    steps, sent, _ = critical_path(schedule("pipelined ring", 4, segments=16), 1 << 27)
    assert [steps, sent] == pytest.approx(cut[:2])


def test_traffic_of_all_ranks_together():
    """All but recursive doubling, the whole ring and the lending of 2^k send 2(n - 1) buffers in all."""
    for name, messages, buffers in (
        ("naive", 6, 6),
        ("tree", 6, 6),
        ("ring", 24, 6),
        ("halving doubling", 16, 6),
        ("recursive doubling", 8, 8),
        ("whole ring", 12, 12),
    ):
        assert traffic(name, 4096, 4) == (messages, buffers * 4096)
    assert traffic("pipelined ring", 1 << 27, 4) == (24 * 16, 6 << 27)
    assert traffic("ring", 4096, 1) == (0, 0)


def test_one_rank_and_no_bytes_cost_nothing():
    """Nothing is sent then."""
    assert {cost(name, 4096, 1, 1, 1, 1) for name in NAMES} == {0}
    assert {cost(name, 0, 4, 1, 1, 1) for name in NAMES} == {0}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: schedule("best", 4),
            "name must be one of naive, whole ring, ring, pipelined ring, halving doubling, recursive doubling, tree, "
            "shared memory, got 'best'. Call schedule(\"ring\", 4).",
        ),
        (
            lambda: cost("ring", 8, 0, 1, 1),
            'world_size must be a whole number of 1 or more, got 0. Call schedule("ring", 4).',
        ),
        (
            lambda: traffic("ring", 8, True),
            'world_size must be a whole number of 1 or more, got True. Call schedule("ring", 4).',
        ),
        (
            lambda: schedule("ring", 4, segments=0),
            'segments must be a whole number of 1 or more, got 0. Call schedule("pipelined ring", 4, segments=2).',
        ),
    ],
)
def test_the_model_refuses(call, message):
    """Unknown names and impossible numbers are refused with the names and numbers that are possible."""
    with pytest.raises(ArgumentError) as caught:
        call()
    assert str(caught.value) == message


# --- the functions, before anything is sent ---


def test_the_table_has_nine_functions_that_explain_themselves():
    """Each is named and documented; help() shows its arguments, inspect.getsource its algorithm."""
    assert sorted(ALL_REDUCE) == sorted([*SCHEDULES, "best"])
    for fn in ALL_REDUCE.values():
        assert "Runs on: every rank of the group" in fn.__doc__
        assert "Raises:" in fn.__doc__
        assert fn.__module__.startswith("distlab.algorithms.")


@pytest.mark.parametrize(
    ("tensor", "op", "message"),
    [
        ([1.0], "SUM", "tensor must be a torch.Tensor, got [1.0]. Call fn(torch.ones(4))."),
        (
            torch.ones(2).to_sparse(),
            "SUM",
            "tensor must be a dense tensor on the CPU, got a torch.sparse_coo tensor on cpu. "
            "Call c = tensor.to_dense().cpu(), then fn(c).",
        ),
        (
            torch.ones(2, device="meta"),
            "SUM",
            "tensor must be a dense tensor on the CPU, got a torch.strided tensor on meta. "
            "Call c = tensor.to_dense().cpu(), then fn(c).",
        ),
        (
            torch.ones(2, 3).t(),
            "SUM",
            "tensor must be contiguous, its elements one after another in memory, "
            "got shape (3, 2) with strides (1, 3). "
            "Call c = tensor.clone(memory_format=torch.contiguous_format), then fn(c), then tensor.copy_(c).",
        ),
        (
            torch.ones(2),
            "BAND",
            "op must be one that torch.float32 has, got BAND. Convert the tensor, or choose another op.",
        ),
        (
            torch.ones(2, dtype=torch.complex64),
            "MAX",
            "op must be one that torch.complex64 has, got MAX. Convert the tensor, or choose another op.",
        ),
        (
            torch.ones(2, dtype=torch.int64),
            "AVG",
            "op must be one that torch.int64 has, got AVG. "
            "Call fn(tensor) for the sum, then divide it as you want it rounded.",
        ),
    ],
)
def test_bad_arguments_are_refused_in_words(tensor, op, message):
    """The rule, what was given, and what to call instead, before the group is even looked at."""
    with pytest.raises(ArgumentError) as caught:
        ALL_REDUCE["ring"](tensor, getattr(dist.ReduceOp, op))
    assert str(caught.value) == message


def test_an_op_that_is_none_is_refused():
    """A name instead of a ReduceOp lists the ops that there are."""
    with pytest.raises(ArgumentTypeError) as caught:
        ALL_REDUCE["tree"](torch.ones(2), "sum")
    assert str(caught.value) == (
        "op must be a dist.ReduceOp out of SUM, AVG, PRODUCT, MIN, MAX, BAND, BOR, BXOR, got 'sum'. "
        "Call fn(tensor, dist.ReduceOp.SUM)."
    )


def test_without_a_process_group_it_says_what_to_call():
    """Outside of a group there is nobody to reduce with."""
    with pytest.raises(ArgumentError) as caught:
        ALL_REDUCE["naive"](torch.ones(2))
    assert str(caught.value) == (
        "group must be a process group that exists, got None. Call dist.init_process_group, or start a Cluster, first."
    )


def test_a_rank_outside_of_the_group_is_told_so():
    """new_group gives a rank that is not in the group a number in its place."""
    with pytest.raises(ArgumentError) as caught:
        ALL_REDUCE["ring"](torch.ones(2), group=dist.GroupMember.NON_GROUP_MEMBER)
    assert str(caught.value) == (
        "group must be a process group that this rank is in, got -100. Make the call only on ranks of the group."
    )


def test_ops_are_torchs_own():
    """An op given as dist.ReduceOp(...) is the op; views that conjugate are refused as non-contiguous ones are."""
    assert check_op(torch.ones(1), dist.ReduceOp(dist.ReduceOp.MAX)) is torch.maximum
    assert check_tensor(torch.ones(3)[1:]) is not None
    with pytest.raises(ArgumentError, match=r"^tensor must be contiguous"):
        check_tensor(torch.ones(2, dtype=torch.complex64).conj())


def test_the_choice():
    """Shared memory on one machine; elsewhere the size decides, and whether ranks take turns on the cores."""
    assert {choose(num_bytes, True, crowded) for num_bytes in (4, 1 << 26) for crowded in (True, False)} == {
        "shared memory"
    }
    assert choose(1 << 10, False, False) == "recursive doubling"
    assert choose(1 << 10, False, True) == "tree"
    assert {choose(1 << 26, False, crowded) for crowded in (True, False)} == {"pipelined ring"}


# --- shared memory, threads as ranks ---


@pytest.fixture
def short_slots(monkeypatch):
    """Slots of 4 kB and 512 B, so that small tensors fill them."""
    monkeypatch.setattr(segment, "LARGE_BYTES", 1 << 12)
    monkeypatch.setattr(segment, "SMALL_BYTES", 1 << 9)


def together(n, work, memory=None, timeout=30.0, lives=lambda place: True):
    """work(view) on n threads with one memory; what each returned, or the error that it raised."""
    memory = bytearray(bytes_for(n)) if memory is None else memory

    def on_thread(rank):
        try:
            return work(Segment(memory, rank, range(n), timeout, lives))
        except Exception as error:
            return error

    with ThreadPoolExecutor(n) as threads:
        return list(threads.map(on_thread, range(n)))


def number_of(rank, size, dtype, seed):
    generator = torch.Generator().manual_seed(1000 * seed + rank)
    return torch.randint(0, 3, (size,), generator=generator).to(dtype)


@pytest.mark.parametrize("slow", range(3))
def test_a_slow_rank_reads_what_was_meant_for_it(slow, short_slots):
    """One rank looks at the memory only when the others have written all that they can for the next meeting.

    Calls of sizes around every boundary follow each other, so that a write into what a slow rank has yet to read shows.
    """
    n = 3
    large, small = slot_bytes(n)
    numels = [1, n - 1, small // 4, small // 4 + 1, large // 8, large // 4, large // 4 + n + 1, 3 * large // 4]
    calls = [numel for pair in itertools.product(numels, repeat=2) for numel in pair]
    entered, change = [0] * n, threading.Condition()

    def work(view):
        original = view.meet

        def meet(call):
            with change:
                entered[view.rank] += 1
                change.notify_all()
            agreed = original(call)
            if view.rank == slow:
                others = [rank for rank in range(n) if rank != slow]
                with change:
                    change.wait_for(lambda: all(entered[rank] > entered[slow] for rank in others), 20)
            return agreed

        view.meet = meet
        wrong = []
        for seed, numel in enumerate(calls):
            mine = number_of(view.rank, numel, torch.float32, seed)
            reduce_in(view, mine, torch.add)
            if not torch.equal(mine, sum(number_of(rank, numel, torch.float32, seed) for rank in range(n))):
                wrong.append((seed, numel))
        with change:
            entered[view.rank] += 1
            change.notify_all()
        return wrong

    assert together(n, work) == [[]] * n


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int8, torch.bool, torch.complex128], ids=str)
def test_types_and_ops_in_shared_memory(dtype, short_slots):
    """Every op that torch has for the type, in the small and the large slots, is the op on one process."""
    n, numels = 3, (7, slot_bytes(3)[1] // dtype.itemsize + 1)
    ops = [combine for op, combine in COMBINE.items() if not _refused(dtype, op)]

    def work(view):
        for seed, (combine, numel) in enumerate(itertools.product(ops, numels)):
            mine = number_of(view.rank, numel, dtype, seed)
            assert reduce_in(view, mine, combine)
            assert torch.equal(mine, functools.reduce(combine, (number_of(r, numel, dtype, seed) for r in range(n))))
        return len(ops)

    assert together(n, work) == [len(ops)] * n


def _refused(dtype, op):
    try:
        check_op(torch.zeros(1).to(dtype), op)
    except ArgumentError:
        return True
    return False


class Touched(TorchDispatchMode):
    """The copies and additions of a thread: (operation, addresses that it reads, address that it writes, bytes)."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = (kwargs or {}).get("out", args[0])
        read = [t.data_ptr() for t in args[:2] if isinstance(t, torch.Tensor)]
        if func in (torch.ops.aten.copy_.default, torch.ops.aten.add.out):
            operation = "copy" if func is torch.ops.aten.copy_.default else "reduce"
            self.seen.append((operation, read[1:] if operation == "copy" else read, out.data_ptr(), out.nbytes))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("n", [2, 3, 4, 5])
def test_shared_memory_does_what_its_schedule_says(n, short_slots):
    """Which cells of other ranks each rank adds and copies, from the addresses that torch's operations get."""
    numel = slot_bytes(n)[0] // 4

    def work(view):
        mine, cells = torch.ones(numel), view.cells(torch.float32)
        owners = {cell.data_ptr(): (owner, part) for owner, row in enumerate(cells) for part, cell in enumerate(row)}
        with Touched() as touched:
            reduce_in(view, mine, torch.add)
        moves = [
            (op, *owners[a])
            for op, read, _, _ in touched.seen
            for a in read
            if owners.get(a, (view.rank,))[0] != view.rank
        ]
        num_bytes = [sum(row[3] for row in touched.seen if row[0] == op) for op in ("copy", "reduce")]
        return moves, num_bytes

    for rank, (moves, num_bytes) in enumerate(together(n, work)):
        plan = [
            (m.operation, m.src, *m.chunks)
            for step in schedule("shared memory", n).steps
            for m in step
            if m.dst == rank
        ]
        assert sorted(moves) == sorted(plan)
        assert num_bytes[0] == pytest.approx(cost("shared memory", 4 * numel, n, 0, 1))
        assert num_bytes[1] == pytest.approx(cost("shared memory", 4 * numel, n, 0, 0, 1))


@pytest.mark.parametrize("n", [2, 4])
def test_shared_memory_costs_what_it_meets_and_copies(n, short_slots):
    """Meetings by alpha, bytes copied by beta, bytes added by gamma: small, a full slot, three slots and a bit."""
    large, small = slot_bytes(n)
    for num_bytes in (64, small, large, 3 * large + 4 * n):

        def work(view, num_bytes=num_bytes):
            meet, met = view.meet, []
            view.meet = lambda call: met.append(call) or meet(call)
            with Touched() as touched:
                reduce_in(view, torch.ones(num_bytes // 4), torch.add)
            return [len(met), *(sum(row[3] for row in touched.seen if row[0] == op) for op in ("copy", "reduce"))]

        predicted = [cost("shared memory", num_bytes, n, *unit) for unit in ((1, 0), (0, 1), (0, 0, 1))]
        assert together(n, work) == [pytest.approx(predicted)] * n


def test_ranks_that_call_for_different_things_change_nothing_and_go_on():
    """Another size or type on one rank is seen by all, before any of them writes; the next call works."""

    def work(view):
        odd = torch.ones(5 if view.rank else 6)
        assert not reduce_in(view, odd, torch.add)
        assert odd.sum() == odd.numel()
        assert not reduce_in(view, torch.ones(4), (torch.add, torch.mul, torch.add)[view.rank])
        wide = torch.ones(1 << 20) if view.rank == 2 else torch.ones(4)
        assert not reduce_in(view, wide, torch.add)
        same = torch.ones(4)
        assert reduce_in(view, same, torch.add)
        return same.tolist()

    assert together(3, work) == [[3.0] * 4] * 3


def test_a_rank_that_never_comes_is_named_after_the_timeout():
    """Nobody waits for ever."""
    memory = bytearray(bytes_for(3))
    view = Segment(memory, 0, [4, 5, 6], 0.05, lambda place: True)
    with pytest.raises(RuntimeError) as caught:
        view.meet()
    assert str(caught.value) == (
        "Timed out waiting 0.05 s for rank 5 to come to an all_reduce through shared memory. "
        "Build the process group anew before the next one."
    )


def test_a_rank_whose_process_has_ended_is_named_at_once():
    """A lock that nobody holds any more says so long before the timeout."""
    view = Segment(bytearray(bytes_for(2)), 0, [0, 1], math.inf, lambda place: False)
    with pytest.raises(RuntimeError) as caught:
        view.meet()
    assert str(caught.value) == (
        "The process of rank 1 ended before it came to an all_reduce through shared memory. "
        "Build the process group anew."
    )


def test_a_rank_that_leaves_half_way_frees_the_others_and_is_named():
    """Who waits, who comes later, and the rank itself at its next call all learn of it, long before the timeout."""
    gone = threading.Event()

    def work(view):
        if view.rank == 1:
            view.leave()
            gone.set()
        if view.rank == 2:
            gone.wait(10)
        view.meet()

    errors = together(3, work, timeout=60)
    message = (
        "Rank 1 left an all_reduce through shared memory half-way, by an error or an interrupt. "
        "Build the process group anew."
    )
    assert [str(error) for error in errors] == [message] * 3


def test_the_memory_stays_small():
    """More ranks than 8 share what 8 have; each slot and cell is a whole number of cache lines, and at least one."""
    assert bytes_for(4) < 11 << 20
    for n in (*SIZES, 16, 31, 64, 200, 1000):
        large, small = slot_bytes(n)
        assert bytes_for(n) <= (24 << 20) + n * n * 64
        assert large % (64 * n) == small % 64 == 0
        assert min(large // n, small) >= 64
