"""Memory that all ranks of a group have mapped, and the flags by which they meet in it; used by shared_memory.py.

Runs on every rank of a group on one machine. Each rank has a slot, which it alone writes and others read, and a line of
flags. To meet, each writes how often it has arrived, and waits until all have. Waiting begins with sched_yield, which
costs a microsecond and leaves the core to ranks that work, and goes on with short sleeps.

The memory is a file whose name is gone when every rank has mapped it. It ends with the last of them, however they end.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

# flags of a rank, 64 bits each, a cache line that no other rank writes: the number of its meetings, or BROKEN, and from
# CALLED on, in two places by turns, what it calls
LINE, CALLED, BROKEN = 8, 1, -1
LARGE_BYTES, SMALL_BYTES = 1 << 21, 1 << 18  # of a rank's slots; those of up to MANY ranks fit a CPU's cache
MANY = 8
SPIN_SECONDS = 1e-3

_give_way = getattr(os, "sched_yield", lambda: time.sleep(0))


class Segment:
    """One rank's view of the shared memory of a group.

    Args:
        memory: writable bytes, the same for all ranks, zero at first, `bytes_for(size)` long.
        rank: this rank's place in `ranks`. ranks: the group's ranks by their numbers in the world, for messages.
        timeout: seconds to wait for a rank. lives: whether the process of the rank at a place is there.
    """

    def __init__(self, memory: Any, rank: int, ranks: Sequence[int], timeout: float, lives: Callable[[int], bool]):
        header = len(ranks) * LINE * 8
        self.rank, self.ranks, self.timeout, self._lives = rank, list(ranks), timeout, lives
        self.large, self.small = slot_bytes(len(ranks))
        self._flags = memoryview(memory)[:header].cast("q")
        slots = torch.frombuffer(memory, dtype=torch.uint8, offset=header).view(len(ranks), -1)
        self._large, self._small = slots.split((self.large, 2 * self.small), dim=1)
        self._mine = rank * LINE
        self._meetings = 0
        self._order = threading.Lock()

    @property
    def turn(self) -> int:
        """0 and 1 by turns, from meeting to meeting."""
        return self._meetings & 1

    def slots(self, numel: int, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
        """A small slot of each rank, as `numel` elements; another one before and after each meeting."""
        begin = self.turn * self.small
        return self._small[:, begin : begin + numel * dtype.itemsize].view(dtype).unbind()

    def cells(self, dtype: torch.dtype) -> list[tuple[torch.Tensor, ...]]:
        """The large slot of each rank, in as many cells as there are ranks: cells(dtype)[owner][rank]."""
        n = len(self.ranks)
        return [slot.unbind() for slot in self._large.view(dtype).unflatten(1, (n, -1)).unbind()]

    def meet(self, call: int = 0) -> bool:
        """Wait until every rank has come here; what each wrote before, all can read then.

        Args:
            call: a number for what this rank calls.

        Returns:
            whether it is the same number on every rank.

        Raises:
            RuntimeError: a rank did not come within the timeout, has died, or left an earlier call half-way.
        """
        where = CALLED + self.turn
        if self._flags[self._mine] == BROKEN:
            raise RuntimeError(self._left(self.rank))
        self._meetings += 1
        self._flags[self._mine + where] = call
        self._fence()
        self._flags[self._mine] = self._meetings
        for place in range(len(self.ranks)):
            if self._flags[place * LINE] < self._meetings:
                self._wait(place)
        self._fence()
        return all(self._flags[place * LINE + where] == call for place in range(len(self.ranks)))

    def leave(self) -> None:
        """Tell the others that this rank does not finish the call that it is in, so that none waits for it."""
        self._flags[self._mine] = BROKEN

    def _wait(self, place: int) -> None:
        began = time.perf_counter()
        while (arrived := self._flags[place * LINE]) < self._meetings:
            if arrived == BROKEN:
                raise RuntimeError(self._left(place))
            waited = time.perf_counter() - began
            if waited < SPIN_SECONDS:
                _give_way()
                continue
            if waited > self.timeout:
                raise RuntimeError(
                    f"Timed out waiting {self.timeout:g} s for rank {self.ranks[place]} to come to an all_reduce "
                    "through shared memory. Build the process group anew before the next one."
                )
            if not self._lives(place):
                raise RuntimeError(
                    f"The process of rank {self.ranks[place]} ended before it came to an all_reduce through shared "
                    "memory. Build the process group anew."
                )
            time.sleep(min(waited / 20, 1e-3))

    def _left(self, place: int) -> str:
        return (
            f"Rank {self.ranks[place]} left an all_reduce through shared memory half-way, by an error or an interrupt. "
            "Build the process group anew."
        )

    def _fence(self) -> None:
        """Let no read or write pass from before to after, or back.

        None moves down past the release of a lock, or up past the acquiring of one, so two locks in a row stop both.
        x86 keeps this order by itself where it matters here, Arm does not.
        """
        for _ in range(2):
            with self._order:
                pass


def slot_bytes(size: int) -> tuple[int, int]:
    """Bytes of a rank's large slot, and of each of its two small ones, in a group of `size` ranks."""
    share = -(-size // MANY)
    return max(64, LARGE_BYTES // share // size // 64 * 64) * size, max(64, SMALL_BYTES // share // 64 * 64)


def bytes_for(size: int) -> int:
    """Bytes of the memory of a group of `size` ranks."""
    large, small = slot_bytes(size)
    return size * (LINE * 8 + large + 2 * small)
