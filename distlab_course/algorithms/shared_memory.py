"""All-reduce without messages: ranks of one machine read each other's numbers from shared memory.

Runs on every rank of the group. The first call in a group finds out whether its ranks are on one
machine, and makes the memory; for that they talk to each other.

Each rank has a slot, which it alone writes and others read, and a count. To meet, each writes how
often it has arrived, and waits until all have. Waiting begins with sched_yield, which costs a
microsecond and leaves the core to ranks that work, and goes on with short sleeps.

The memory is a file without a name from the moment on when every rank has mapped it; it is freed
with the last rank.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import os
import socket
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

import distlab
from distlab_course.algorithms.call import Combine, all_reduce

# on Linux a file system in memory, which no other machine sees as it may see a temporary folder
MEMORY_FOLDER = "/dev/shm" if sys.platform == "linux" else tempfile.gettempdir()
# each rank's count, of 64 bits, has a cache line, which no other rank writes
LINE_BYTES = 64
COUNTS_IN_LINE = 8
# of a rank's slots; those of up to MANY ranks fit a CPU's cache
LARGE_SLOT_BYTES = 1 << 21
SMALL_SLOT_BYTES = 1 << 18
MANY = 8
YIELDING_SECONDS = 1e-3

_give_way = getattr(os, "sched_yield", lambda: time.sleep(0))


@all_reduce
def shared_memory(flat: torch.Tensor, combine: Combine, group: Any) -> None:
    """Each rank writes what others need into its slot of the memory, and then reads their slots.

    It needs every rank of the group on one machine. The first call in a group makes the memory.
    """
    segment = segment_of(group)
    if isinstance(segment, str):
        raise distlab.ArgumentError(
            "group must be one whose ranks share the memory of one machine, got one where "
            f'{segment}. Call ALL_REDUCE["best"](tensor), which sends messages there.'
        )
    reduce_in(segment, flat, combine)


def reduce_in(segment: Segment, flat: torch.Tensor, combine: Combine) -> None:
    """Reduce `flat` in place with the other ranks of the segment.

    Runs on: every rank of the segment.
    """
    if flat.nbytes <= segment.small:
        _all_add_all(segment, flat, combine)
    else:
        _each_adds_a_part(segment, flat, combine)


def _all_add_all(segment: Segment, flat: torch.Tensor, combine: Combine) -> None:
    """One meeting: each rank writes its tensor, and adds up all of them, in the same order."""
    slots = segment.slots(flat.numel(), flat.dtype)
    slots[segment.rank].copy_(flat)
    segment.meet()
    combine(slots[0], slots[1], out=flat)
    for slot in slots[2:]:
        combine(flat, slot, out=flat)


def _each_adds_a_part(segment: Segment, flat: torch.Tensor, combine: Combine) -> None:
    """Rank r adds up part r, and writes it for the others: two meetings for what fits the slots."""
    rank = segment.rank
    n = len(segment.ranks)
    others = [(rank + i) % n for i in range(1, n)]
    cells = segment.cells(flat.dtype)
    for piece in flat.split(n * cells[0][0].numel()):
        parts = piece.tensor_split(n)
        mine = parts[rank]
        # this rank's numbers of the others' parts, for them to add
        for other in others:
            _fit(cells[rank][other], parts[other]).copy_(parts[other])
        segment.meet()
        # the others' numbers of its own part; the sum is for all
        for other in others:
            combine(mine, _fit(cells[other][rank], mine), out=mine)
        _fit(cells[rank][rank], mine).copy_(mine)
        segment.meet()
        # the sums of the other parts
        for other in others:
            parts[other].copy_(_fit(cells[other][other], parts[other]))


def _fit(cell: torch.Tensor, part: torch.Tensor) -> torch.Tensor:
    """As much of a cell as a part needs."""
    return cell[: part.numel()]


# by group; a segment is freed with its group
_SEGMENTS: weakref.WeakKeyDictionary[Any, Segment | str] = weakref.WeakKeyDictionary()


def segment_of(group: Any) -> Segment | str:
    """The memory of a group, or why its ranks cannot share any; the first call finds out.

    Runs on: every rank of the group (a rank that skips the first call hangs the rest until the
    timeout).
    """
    if group not in _SEGMENTS:
        _SEGMENTS[group] = _find(group)
    return _SEGMENTS[group]


def _find(group: Any) -> Segment | str:
    """Rank 0 makes a file, every rank maps it, and all of them exchange whether that worked."""
    ranks = dist.get_process_group_ranks(group)
    num_bytes = bytes_for(len(ranks))
    me = f"rank {ranks[group.rank()]} on {socket.gethostname()}"
    path = None  # of the file
    memory = None
    why = ""  # this rank cannot share memory
    with contextlib.ExitStack() as until_mapped:
        if group.rank() == 0:
            try:
                path = until_mapped.enter_context(_file_of_zeros(num_bytes))
            except OSError as error:
                why = f"{me} cannot make a file for {num_bytes} bytes: {error}"
        path = _given_by_rank_0(path, group)
        if path is not None:
            try:
                with open(path, "r+b") as file:
                    memory = mmap.mmap(file.fileno(), num_bytes)
            except OSError as error:
                why = f"{me} cannot open the file of rank {ranks[0]}: {error}"
        reasons = [""] * len(ranks)
        dist.all_gather_object(reasons, why, group=group)
    for reason in reasons:
        if reason:
            return reason
    timeout = distributed_c10d.default_pg_timeout.total_seconds()
    return Segment(memory, group.rank(), ranks, timeout)


@contextlib.contextmanager
def _file_of_zeros(num_bytes: int) -> Iterator[str]:
    """The path of a file of so many bytes, which is there only meanwhile."""
    with tempfile.NamedTemporaryFile(prefix="distlab-", dir=MEMORY_FOLDER) as file:
        # in full: memory that the system cannot give is an error here, and would end the process
        # later
        file.write(bytes(num_bytes))
        file.flush()
        yield file.name


def _given_by_rank_0(path: str | None, group: Any) -> str | None:
    """The path that rank 0 gives. Runs on: every rank of the group."""
    given = [path]
    dist.broadcast_object_list(given, group=group, group_src=0)
    return given[0]


class Segment:
    """One rank's view of the shared memory of a group.

    Args:
        memory: writable bytes, the same for all ranks, zero at first, `bytes_for(size)` long.
        rank: this rank's place in `ranks`.
        ranks: the group's ranks by their numbers in the world, for messages.
        timeout: seconds to wait for a rank.
    """

    def __init__(self, memory: Any, rank: int, ranks: Sequence[int], timeout: float):
        self.rank = rank
        self.ranks = list(ranks)
        self.timeout = timeout
        self.large, self.small = slot_bytes(len(ranks))
        header = len(ranks) * LINE_BYTES
        self._arrived = memoryview(memory)[:header].cast("q")[::COUNTS_IN_LINE]
        numbers = torch.frombuffer(memory, dtype=torch.uint8, offset=header)
        slots = numbers.view(len(ranks), -1)
        self._large, self._small = slots.split((self.large, 2 * self.small), dim=1)
        self._meetings = 0
        self._order = threading.Lock()

    def slots(self, numel: int, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
        """A small slot of each rank, as `numel` elements.

        Before and after each meeting it is another one of two.
        """
        begin = (self._meetings % 2) * self.small
        end = begin + numel * dtype.itemsize
        return self._small[:, begin:end].view(dtype).unbind()

    def cells(self, dtype: torch.dtype) -> list[tuple[torch.Tensor, ...]]:
        """The large slot of each rank, in a cell for each rank: cells(dtype)[owner][rank]."""
        n = len(self.ranks)
        cells = self._large.view(dtype).unflatten(1, (n, -1))
        return [slot.unbind() for slot in cells.unbind()]

    def meet(self) -> None:
        """Wait until every rank has come here; what each wrote before, all can read then.

        Raises:
            RuntimeError: a rank did not come within the timeout.
        """
        self._meetings += 1
        self._fence()
        self._arrived[self.rank] = self._meetings
        for place in range(len(self.ranks)):
            if self._arrived[place] < self._meetings:
                self._wait(place)
        self._fence()

    def _wait(self, place: int) -> None:
        """Wait for one rank: at first by giving way to others, later with short sleeps."""
        began = time.perf_counter()
        while (
            self._arrived[place] < self._meetings and time.perf_counter() - began < YIELDING_SECONDS
        ):
            _give_way()
        if self._arrived[place] >= self._meetings:
            return
        with distlab.waiting("through shared memory", [self.ranks[place]]) as wait:
            while self._arrived[place] < self._meetings:
                waited = time.perf_counter() - began
                if waited > self.timeout:
                    raise RuntimeError(
                        f"Timed out waiting {self.timeout:g} s for rank {self.ranks[place]} to "
                        "come to an all_reduce through shared memory. Build the process group anew "
                        "before the next one."
                    )
                wait.check()
                time.sleep(min(waited / 20, 1e-3))

    def _fence(self) -> None:
        """Let no read or write pass from before to after, or back.

        None moves down past the release of a lock, or up past the acquiring of one, so two locks in
        a row stop both. x86 keeps this order by itself where it matters here, Arm does not.
        """
        for _ in range(2):
            with self._order:
                pass


def slot_bytes(size: int) -> tuple[int, int]:
    """Bytes of a rank's large slot, and of each small one, in a group of `size` ranks."""
    share = math.ceil(size / MANY)
    cell = _in_lines(LARGE_SLOT_BYTES // share // size)
    return cell * size, _in_lines(SMALL_SLOT_BYTES // share)


def _in_lines(num_bytes: int) -> int:
    """As many bytes in whole cache lines, at least one."""
    return max(LINE_BYTES, num_bytes // LINE_BYTES * LINE_BYTES)


def bytes_for(size: int) -> int:
    """Bytes of the memory of a group of `size` ranks."""
    large, small = slot_bytes(size)
    return size * (LINE_BYTES + large + 2 * small)
