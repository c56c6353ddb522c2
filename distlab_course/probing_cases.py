"""The cases of a probe: a call of every function of torch.distributed, and what must come of it.

Runs on every rank. `probing.py` has each case tried by `try_case`, in a `run` of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial, reduce
from math import prod
from operator import and_, or_, xor
from statistics import fmean
from typing import Any

import torch
import torch.distributed as dist

DTYPES = [
    *("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "complex64"),
    *("int64", "int32", "int16", "int8", "uint8", "bool"),
]
# what all_reduce must give, by Python's own arithmetic
REDUCED: dict[str, Callable[[Iterable[Any]], Any]] = {
    "SUM": sum,
    "AVG": fmean,
    "PRODUCT": prod,
    "MIN": min,
    "MAX": max,
    "BAND": partial(reduce, and_),
    "BOR": partial(reduce, or_),
    "BXOR": partial(reduce, xor),
}
ROOT = 1  # the rank that gives, or gets, where one rank does
# their names before torch 2.13
all_gather_single = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter_single = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


class Setting:
    """What a case has on one rank: a group, and tensors of four elements to send and to receive.

    Attributes:
        values: by rank, what it has at first: its number plus one.
        mine: this rank's value, as a tensor.
        room: for what one rank sends.
        parts: for what all ranks send, a tensor for each.
        whole: the same in one tensor.
        for_all: what goes to all ranks, a tensor for each.
        total: the sum of what all ranks have at first.
        share: what this rank has of the sum of all ranks' `for_all`.
        own: this rank's value, as an object in a list.
        objects: for all ranks' objects.
    """

    def __init__(self, rank: int, world_size: int, group: Any, device: str):
        self.rank = rank
        self.n = world_size
        self.group = group
        self.device = device
        self.values = range(1, world_size + 1)
        self.mine = self.full(rank + 1)
        self.room = self.full(0)
        self.parts = [self.full(0) for _ in self.values]
        self.whole = self.full(0, size=4 * world_size)
        self.for_all = [self.full(value) for value in self.values]
        self.total = sum(self.values)
        self.share = world_size * (rank + 1)
        self.own: list[Any] = [rank + 1]
        self.objects: list[Any] = [None] * world_size

    def full(self, value: float, size: int = 4) -> torch.Tensor:
        """A tensor whose elements have one value."""
        return torch.full((size,), value, dtype=torch.float32, device=self.device)

    @property
    def is_root(self) -> bool:
        """Whether this rank is the one that gives, or gets."""
        return self.rank == ROOT

    def of_root(self, value: Any) -> Any:
        """A value that only the root passes to a call; the others pass None."""
        return value if self.is_root else None


def try_case(rank: int, world_size: int, case: str, backend: str, device: str) -> bool:
    """Call one case in a new group, and return whether this rank gets what it must."""
    at = Setting(rank, world_size, dist.new_group(backend=backend), device)
    try:
        if case in FUNCTIONS:
            right = FUNCTIONS[case](at)
        else:
            op, dtype = case.split()
            right = reduces(at, op, dtype)
        # a rank with nothing to do would close its connections while others still make theirs
        dist.barrier()
        return right
    finally:
        dist.destroy_process_group(at.group)


def is_built(rank: int, world_size: int, backend: str) -> bool:
    """Whether the torch of a rank has this backend."""
    return dist.is_backend_available(backend)


def reduces(at: Setting, op: str, name: str) -> bool:
    """Whether all_reduce with that op on that dtype gives what Python's arithmetic gives.

    The ranks have 1, 2, 3, 1, 2, 3 and so on; of bool, False, True, False and so on.
    """
    given: list[int] = [rank % 3 + 1 for rank in range(at.n)]
    if name == "bool":
        given = [rank % 2 == 1 for rank in range(at.n)]
    dtype = getattr(torch, name)
    mine = torch.full((4,), float(given[at.rank])).to(dtype).to(at.device)
    right = torch.full((4,), float(REDUCED[op](given))).to(dtype)
    dist.all_reduce(mine, getattr(dist.ReduceOp, op), at.group)
    return torch.allclose(mine.cpu().to(torch.complex64), right.to(torch.complex64), rtol=0.01)


def have(parts: Sequence[Any], values: Iterable[float]) -> bool:
    """Whether each tensor, or object, has the value at its place."""
    for part, value in zip(parts, values, strict=True):
        if not torch.as_tensor(part == value).all():
            return False
    return True


# --- messages ---


def pair(at: Setting, send: Callable[..., Any], receive: Callable[..., Any]) -> bool:
    """Rank 0 sends its value to rank 1; a call returns None, or a Work that is waited for."""
    work = None
    if at.rank == 0:
        work = send(at.mine, 1, group=at.group)
    elif at.rank == 1:
        work = receive(at.room, group=at.group)
    if isinstance(work, dist.Work):
        work.wait()
    return at.rank != 1 or have([at.room], [1])


def try_send(at: Setting) -> bool:
    return pair(at, dist.send, partial(dist.recv, src=0))


def try_isend(at: Setting) -> bool:
    return pair(at, dist.isend, partial(dist.irecv, src=0))


def try_recv_from_any(at: Setting) -> bool:
    return pair(at, dist.send, dist.recv)


def try_batch_isend_irecv(at: Setting) -> bool:
    """Each rank sends its value to the next rank."""
    next_rank = (at.rank + 1) % at.n
    prev_rank = (at.rank - 1) % at.n
    calls = [
        dist.P2POp(dist.isend, at.mine, next_rank, at.group),
        dist.P2POp(dist.irecv, at.room, prev_rank, at.group),
    ]
    for work in dist.batch_isend_irecv(calls):
        work.wait()
    return have([at.room], [prev_rank + 1])


# --- collectives on tensors ---


def try_broadcast(at: Setting) -> bool:
    dist.broadcast(at.mine, ROOT, at.group)
    return have([at.mine], [ROOT + 1])


def try_reduce(at: Setting) -> bool:
    dist.reduce(at.mine, ROOT, group=at.group)
    return not at.is_root or have([at.mine], [at.total])


def try_all_reduce(at: Setting) -> bool:
    dist.all_reduce(at.mine, group=at.group)
    return have([at.mine], [at.total])


def try_gather(at: Setting) -> bool:
    dist.gather(at.mine, at.of_root(at.parts), ROOT, at.group)
    return not at.is_root or have(at.parts, at.values)


def try_all_gather(at: Setting) -> bool:
    dist.all_gather(at.parts, at.mine, at.group)
    return have(at.parts, at.values)


def try_uneven_all_gather(at: Setting) -> bool:
    """all_gather of tensors whose sizes are the ranks' numbers plus one."""
    parts = [at.full(0, size) for size in at.values]
    mine = at.full(at.rank + 1, size=at.rank + 1)
    dist.all_gather(parts, mine, at.group)
    return have(parts, at.values)


def try_all_gather_single(at: Setting) -> bool:
    all_gather_single(at.whole, at.mine, at.group)
    return have(at.whole.chunk(at.n), at.values)


def try_scatter(at: Setting) -> bool:
    dist.scatter(at.room, at.of_root(at.for_all), ROOT, at.group)
    return have([at.room], [at.rank + 1])


def try_reduce_scatter(at: Setting) -> bool:
    dist.reduce_scatter(at.room, at.for_all, group=at.group)
    return have([at.room], [at.share])


def try_reduce_scatter_single(at: Setting) -> bool:
    reduce_scatter_single(at.room, torch.cat(at.for_all), group=at.group)
    return have([at.room], [at.share])


def try_all_to_all(at: Setting) -> bool:
    dist.all_to_all(at.parts, [at.mine] * at.n, at.group)
    return have(at.parts, at.values)


def try_all_to_all_single(at: Setting) -> bool:
    dist.all_to_all_single(at.whole, at.mine.repeat(at.n), group=at.group)
    return have(at.whole.chunk(at.n), at.values)


def try_barrier(at: Setting) -> bool:
    return dist.barrier(at.group) is None


def try_monitored_barrier(at: Setting) -> bool:
    return dist.monitored_barrier(at.group) is None


# --- collectives on objects ---


def try_broadcast_object_list(at: Setting) -> bool:
    dist.broadcast_object_list(at.own, ROOT, at.group)
    return have(at.own, [ROOT + 1])


def try_all_gather_object(at: Setting) -> bool:
    dist.all_gather_object(at.objects, at.own[0], at.group)
    return have(at.objects, at.values)


def try_gather_object(at: Setting) -> bool:
    dist.gather_object(at.own[0], at.of_root(at.objects), ROOT, at.group)
    return not at.is_root or have(at.objects, at.values)


def try_scatter_object_list(at: Setting) -> bool:
    dist.scatter_object_list(at.own, at.of_root(list(at.values)), ROOT, at.group)
    return have(at.own, [at.rank + 1])


# by its name, whether a function leaves on this rank what it must
FUNCTIONS: dict[str, Callable[[Setting], bool]] = {
    "send, recv": try_send,
    "isend, irecv": try_isend,
    "recv from any source": try_recv_from_any,
    "batch_isend_irecv": try_batch_isend_irecv,
    "broadcast": try_broadcast,
    "reduce": try_reduce,
    "all_reduce": try_all_reduce,
    "gather": try_gather,
    "all_gather": try_all_gather,
    "all_gather uneven": try_uneven_all_gather,
    "all_gather_single": try_all_gather_single,
    "scatter": try_scatter,
    "reduce_scatter": try_reduce_scatter,
    "reduce_scatter_single": try_reduce_scatter_single,
    "all_to_all": try_all_to_all,
    "all_to_all_single": try_all_to_all_single,
    "barrier": try_barrier,
    "monitored_barrier": try_monitored_barrier,
    "broadcast_object_list": try_broadcast_object_list,
    "all_gather_object": try_all_gather_object,
    "gather_object": try_gather_object,
    "scatter_object_list": try_scatter_object_list,
}
