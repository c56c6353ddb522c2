"""All-reduce without messages: ranks of one machine read each other's numbers from memory that they share.

Runs on every rank of the group. The memory is segment.py's, found by place.py.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable

import torch
import torch.distributed as dist

from distlab.algorithms.call import Peers, Words, all_reduce
from distlab.algorithms.place import place_of
from distlab.algorithms.segment import Segment
from distlab.errors import refuse


@all_reduce
def shared_memory(flat: torch.Tensor, combine: Callable[..., torch.Tensor], peers: Peers) -> None:
    """Each rank writes what others need into its slot of the shared memory, meets them, and reads from their slots.

    It needs every rank of the group on one machine. The first call in a group makes the memory.
    """
    place = place_of(peers.group)
    if place.segment is None:
        todo = 'Call ALL_REDUCE["best"](tensor), which sends messages there.'
        refuse("group", "one whose ranks share the memory of one machine", Words(f"one where {place.why}"), todo)
    try:
        agreed = reduce_in(place.segment, flat, combine)
    except BaseException:
        place.segment.leave()
        raise
    if not agreed:
        _refuse_different(flat, combine, peers)


def reduce_in(segment: Segment, flat: torch.Tensor, combine: Callable[..., torch.Tensor]) -> bool:
    """Reduce `flat` in place with the other ranks of the segment; False where they do not call for the same.

    Runs on: every rank of the segment.
    """
    call = zlib.crc32(_kind(flat, combine).encode())
    if flat.numel() * flat.element_size() <= segment.small:
        return _all_add_all(segment, flat, combine, call)
    return _each_adds_a_part(segment, flat, combine, call)


def _all_add_all(segment: Segment, flat: torch.Tensor, combine: Callable[..., torch.Tensor], call: int) -> bool:
    """One meeting: each rank writes its tensor, and adds up all of them, in the same order."""
    slots = segment.slots(flat.numel(), flat.dtype)
    slots[segment.rank].copy_(flat)
    if not segment.meet(call):
        return False
    combine(slots[0], slots[1], out=flat)
    for slot in slots[2:]:
        combine(flat, slot, out=flat)
    return True


def _each_adds_a_part(segment: Segment, flat: torch.Tensor, combine: Callable[..., torch.Tensor], call: int) -> bool:
    """Two meetings a piece that fits the slots: rank r adds up part r, and writes it for the others."""
    rank, n = segment.rank, len(segment.ranks)
    others = [(rank + i) % n for i in range(1, n)]
    cells = segment.cells(flat.dtype)
    for piece in flat.split(n * cells[0][0].numel()):
        parts = piece.tensor_split(n)
        for other in others:
            _fit(cells[rank][other], parts[other]).copy_(parts[other])
        if not segment.meet(call):
            return False
        for other in others:
            combine(parts[rank], _fit(cells[other][rank], parts[rank]), out=parts[rank])
        _fit(cells[rank][rank], parts[rank]).copy_(parts[rank])
        segment.meet(call)
        for other in others:
            parts[other].copy_(_fit(cells[other][other], parts[other]))
    return True


def _fit(cell: torch.Tensor, part: torch.Tensor) -> torch.Tensor:
    return cell[: part.numel()]


def _kind(flat: torch.Tensor, combine: Callable[..., torch.Tensor]) -> str:
    return f"{combine.__name__} of {flat.dtype} x {flat.numel()}"


def _refuse_different(flat: torch.Tensor, combine: Callable[..., torch.Tensor], peers: Peers) -> None:
    kinds: list[str] = [""] * peers.size
    dist.all_gather_object(kinds, _kind(flat, combine), group=peers.group)
    ranks = dist.get_process_group_ranks(peers.group)
    have = ", ".join(f"rank {rank}: {kind}" for rank, kind in zip(ranks, kinds, strict=True))
    refuse("tensor", "of the same type and size, with the same op, on every rank", Words(have), "Nothing was changed.")
