"""Where torch's caching allocator would put each block of a GPU's memory, and how much it reserves.

Called by memory.py, in the process of a rank that is recorded; plain Python, without torch.

What is modelled, by c10/cuda/CUDACachingAllocator.cpp of torch 2.6:

- A size is rounded up to 512 bytes.
- Each stream has two pools, for blocks of at most 1 MiB and for larger ones. What was freed in one
  is not used in another.
- A new block takes the smallest free block that it fits into, of these the first in memory. What is
  left over becomes a free block, if it is large enough. A freed block merges with free neighbours.
- If none is large enough, the allocator reserves a segment of 2 MiB, 20 MiB, or, from 10 MiB on, of
  the block's size rounded up to 2 MiB.
- With `expandable_segments:True` a pool is one segment that grows at its end, by pages of 2 MiB or
  20 MiB, and a block may begin in what is free there.

Nothing is given back: on a GPU that happens only when it has no memory left.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Mapping
from typing import NamedTuple

from distlab_predict.nodes import Stream

MEBIBYTE = 1 << 20
ROUNDED = 512  # bytes, to a multiple of which sizes are rounded up
MOST_SMALL = MEBIBYTE  # of a block in a pool of small ones
SMALL_SEGMENT = 2 * MEBIBYTE
LARGE_SEGMENT = 20 * MEBIBYTE
OWN_SEGMENT = 10 * MEBIBYTE  # from this size on, a segment is as large as its block
SEGMENT_ROUNDED = 2 * MEBIBYTE  # to a multiple of which such a segment is rounded up


def is_expandable(environment: Mapping[str, str]) -> bool:
    """Whether a program's environment asks for expandable segments.

    Args:
        environment: variables; PYTORCH_ALLOC_CONF counts before PYTORCH_CUDA_ALLOC_CONF.
    """
    settings = environment.get("PYTORCH_ALLOC_CONF") or environment.get("PYTORCH_CUDA_ALLOC_CONF")
    for setting in (settings or "").split(","):
        name, _, value = setting.partition(":")
        if name.strip() == "expandable_segments":
            return value.strip().lower() == "true"
    return False


def rounded(size: int, unit: int = ROUNDED) -> int:
    """A number of bytes, rounded up to a multiple of a unit."""
    return -(-size // unit) * unit


class Block:
    """A part of a segment, in use or free.

    Attributes:
        address: of its first byte; no two segments of a pool touch.
        size: in bytes.
        is_free: whether a new block may be here.
        before, after: its neighbours in the segment.
    """

    __slots__ = ("address", "after", "before", "is_free", "size")

    def __init__(self, address: int, size: int, before: Block | None, after: Block | None):
        self.address = address
        self.size = size
        self.is_free = True
        self.before = before
        self.after = after


class Pool:
    """The small, or the large, blocks of a stream.

    Args:
        is_small: whether it is for small ones.
        is_expandable: whether all of it is one segment that grows.

    Attributes:
        reserved: bytes of its segments.
        held: bytes of segments with a block in use; of an expandable one, of these blocks.
    """

    def __init__(self, is_small: bool, is_expandable: bool):
        self.reserved = 0
        self.held = 0
        self._is_small = is_small
        self._is_expandable = is_expandable
        self._sizes: list[tuple[int, int]] = []  # of free blocks, with their addresses
        self._free: dict[int, Block] = {}  # free blocks, by their addresses
        self._last: Block | None = None  # of the expandable segment
        self._end = 0  # the first address after all segments

    def take(self, size: int) -> Block:
        """Put a block somewhere; its size is rounded already."""
        block = self._best_fit(size)
        if block is None and self._is_expandable:
            block = self._expanded(size)
        elif block is None:
            block = self._new_segment(size)
        if not self._is_expandable and _is_segment(block):
            self.held += block.size
        self._split(block, size)
        block.is_free = False
        if self._is_expandable:
            self.held += block.size
        return block

    def give_back(self, block: Block) -> None:
        """Make a block free, as one with its free neighbours."""
        if self._is_expandable:
            self.held -= block.size
        before = block.before
        if before is not None and before.is_free:
            self._forget(before)
            self._merge(before, block)
            block = before
        after = block.after
        if after is not None and after.is_free:
            self._forget(after)
            self._merge(block, after)
        self._remember(block)
        if not self._is_expandable and _is_segment(block):
            self.held -= block.size

    # --- finding a place ---

    def _best_fit(self, size: int) -> Block | None:
        """Take the smallest free block that is large enough.

        The end of an expandable segment counts as the largest of all, because it could grow.
        """
        place = bisect_left(self._sizes, (size, 0))
        if place == len(self._sizes):
            return None
        block = self._free[self._sizes[place][1]]
        if block is self._last and place + 1 < len(self._sizes):
            block = self._free[self._sizes[place + 1][1]]
        self._forget(block)
        return block

    def _new_segment(self, size: int) -> Block:
        """Reserve a segment for a block."""
        if self._is_small:
            size = SMALL_SEGMENT
        elif size < OWN_SEGMENT:
            size = LARGE_SEGMENT
        else:
            size = rounded(size, SEGMENT_ROUNDED)
        return self._reserve(size, None)

    def _expanded(self, size: int) -> Block:
        """Reserve pages at the end of the expandable segment, behind what is free there."""
        last = self._last
        missing = size
        if last is not None and last.is_free:
            missing -= last.size
        page = SMALL_SEGMENT if self._is_small else LARGE_SEGMENT
        block = self._reserve(rounded(missing, page), last)
        self._last = block
        if last is not None and last.is_free:
            self._forget(last)
            self._merge(last, block)
            return last
        return block

    def _reserve(self, size: int, before: Block | None) -> Block:
        """A block of memory that is new, after another one in its segment."""
        block = Block(self._end, size, before, None)
        if before is not None:
            before.after = block
        self._end += size
        self.reserved += size
        return block

    # --- blocks ---

    def _split(self, block: Block, size: int) -> None:
        """Cut a block to its size, if what is left over is worth it."""
        left = block.size - size
        least = ROUNDED
        if not self._is_small and not self._is_expandable:
            least = MOST_SMALL + 1
        if left < least:
            return
        rest = Block(block.address + size, left, block, block.after)
        if rest.after is not None:
            rest.after.before = rest
        block.after = rest
        block.size = size
        if block is self._last:
            self._last = rest
        self._remember(rest)

    def _merge(self, block: Block, after: Block) -> None:
        """Make a block and the one after it one."""
        block.size += after.size
        block.after = after.after
        if block.after is not None:
            block.after.before = block
        if after is self._last:
            self._last = block

    def _remember(self, block: Block) -> None:
        """Have a block be one of the free ones."""
        block.is_free = True
        self._free[block.address] = block
        insort(self._sizes, (block.size, block.address))

    def _forget(self, block: Block) -> None:
        """Have a block be none of the free ones."""
        del self._free[block.address]
        del self._sizes[bisect_left(self._sizes, (block.size, block.address))]


def _is_segment(block: Block) -> bool:
    """Whether a block is a whole segment."""
    return block.before is None and block.after is None


class Place(NamedTuple):
    """Where a storage is: a block of a pool."""

    pool: Pool
    block: Block


class Allocator:
    """The memory of a GPU, as torch's caching allocator shares it out.

    Args:
        is_expandable: whether its segments grow.

    Attributes:
        reserved: bytes of all segments; it never shrinks.
        held: bytes that it could not give back now: segments with a block in use, or, where they
            are expandable, these blocks.
    """

    def __init__(self, is_expandable: bool):
        self.reserved = 0
        self.held = 0
        self._is_expandable = is_expandable
        self._pools: dict[tuple[Stream, bool], Pool] = {}
        self._places: dict[int, Place] = {}  # of storages, by their numbers

    def take(self, number: int, stream: Stream, size: int) -> None:
        """Give a storage memory.

        Args:
            number: of the storage.
            stream: on which it is made.
            size: in bytes; none is reserved for 0.
        """
        if size == 0:
            return
        size = rounded(size)
        key = stream, size <= MOST_SMALL
        pool = self._pools.get(key)
        if pool is None:
            pool = Pool(size <= MOST_SMALL, self._is_expandable)
            self._pools[key] = pool
        reserved = pool.reserved
        held = pool.held
        block = pool.take(size)
        self._places[number] = Place(pool, block)
        self.reserved += pool.reserved - reserved
        self.held += pool.held - held

    def give_back(self, number: int) -> None:
        """Take a storage's memory back, if it has any."""
        place = self._places.pop(number, None)
        if place is None:
            return
        held = place.pool.held
        place.pool.give_back(place.block)
        self.held += place.pool.held - held
