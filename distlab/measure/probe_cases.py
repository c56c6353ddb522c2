"""What the probe calls: every function of torch.distributed that communicates, with a right answer for each.

Runs on the ranks of the probe's own cluster, called by probe.py in the notebook; torch and the standard library only. A
case is a function of a `Place` that every rank calls, which raises where torch refuses, and a second one that tells
whether this rank got what it should. Names are those of the newest torch.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from distlab.compat.torch import premultiplied_sum
from distlab.measure.probe_result import BACKENDS, REDUCTIONS, Column, Outcome

CALL_SECONDS = 60.0  # that a call waits for its peers before it raises; a case has less


class Place:
    """Where a case runs, and what it moves: each rank begins with its number plus one, four times."""

    def __init__(self, rank: int, size: int, device: str):
        self.rank, self.size, self.device = rank, size, device
        self.values = range(1, size + 1)  # what the ranks begin with
        self.mine = self.full(rank + 1)
        self.all = [self.full(value) for value in self.values]
        # room for what arrives: from one rank, from every rank, and the same in one piece
        self.room, self.parts, self.whole = self.full(0), [self.full(0) for _ in self.values], self.full(0, 4 * size)
        self.named = [{"rank": number} for number in range(size)]  # by rank, the object that it begins with
        self.name, self.objects = self.named[rank], [None] * size  # this rank's, and room for all

    def full(self, value: float, length: int = 4) -> torch.Tensor:
        return torch.full((length,), value, dtype=torch.float32, device=self.device)

    def if_one(self, value: Any) -> Any:
        """What only rank 1 gives, the root."""
        return value if self.rank == 1 else None


Check = Callable[[Place], bool]
Case = tuple[Callable[[Place], Any], Check]


# --- what the notebook asks for ---


def missing(rank: int, world_size: int, columns: Sequence[Column]) -> dict[Column, Outcome]:
    """The columns that cannot be tried here, each with the reason.

    Runs on: a rank.
    """
    found = {}
    for column in columns:
        if not dist.is_backend_available(column.backend):
            known = column.backend in BACKENDS
            why = "this torch was built without it" if known else "no module has registered it"
            found[column] = Outcome("not built", why)
        elif column.device == "cuda" and not torch.cuda.is_available():
            found[column] = Outcome("no device", "there is no GPU that this torch can use")
    return found


def try_case(rank: int, world_size: int, column: Column, case: Case, path: str) -> bool:
    """Call one case on a group of the column's backend; whether this rank got what it should.

    Runs on: every rank.

    Args:
        path: of a new file where ranks can meet.
    """
    if column.device == "cuda":
        torch.cuda.set_device(rank % torch.cuda.device_count())
    if dist.get_backend() != column.backend:  # the cluster's own group is gloo's
        dist.destroy_process_group()
        where = {"store": dist.FileStore(path, world_size), "rank": rank, "world_size": world_size}
        dist.init_process_group(column.backend, timeout=timedelta(seconds=CALL_SECONDS), **where)
    (call, check), at = case, Place(rank, world_size, column.device)
    call(at)
    right = check(at)
    if column.device == "cuda":
        torch.cuda.synchronize()
    return right


# --- how a case looks at what it got ---


def holds(tensor: torch.Tensor, *values: float) -> bool:
    """Whether a tensor is made of equal parts of these values."""
    parts = tensor.cpu().tensor_split(len(values))
    return all(bool((part == value).all()) for part, value in zip(parts, values, strict=True))


def summed(at: Place) -> bool:
    return holds(at.mine, sum(at.values))


def gathered(at: Place) -> bool:
    return all(holds(part, value) for part, value in zip(at.parts, at.values, strict=True))


def in_one_piece(at: Place) -> bool:
    return holds(at.whole, *at.values)


def shared_out(at: Place) -> bool:
    """This rank has the sum of what each rank had for it."""
    return holds(at.room, at.size * (at.rank + 1))


def told(at: Place) -> bool:
    return at.objects == at.named


def summed_by_two(at: Place) -> bool:
    """Ranks 0 and 1 added up theirs."""
    return at.rank > 1 or holds(at.mine, 3)


def on_one(check: Check) -> Check:
    """Only rank 1 gets something."""
    return lambda at: at.rank != 1 or check(at)


came = on_one(lambda at: holds(at.room, 1))
both_came = on_one(lambda at: holds(at.parts[0], 1) and holds(at.parts[1], 2))


# --- calls of more than a line ---


def message(send: Callable[..., Any], receive: Callable[..., Any], src: int | None = 0) -> Callable[[Place], None]:
    """Rank 0 sends its numbers to rank 1."""

    def send_or_receive(at: Place) -> None:
        work = None
        if at.rank == 0:
            work = send(at.mine, dst=1)
        elif at.rank == 1:
            work = receive(at.room, src=src)
        if isinstance(work, dist.Work):
            work.wait()

    return send_or_receive


def tags(at: Place) -> None:
    """Two messages, received in the other order."""
    if at.rank == 0:
        for work in [dist.isend(at.full(tag), dst=1, tag=tag) for tag in (1, 2)]:
            work.wait()
    elif at.rank == 1:
        for tag in (2, 1):
            dist.recv(at.parts[tag - 1], src=0, tag=tag)


def batch_isend_irecv(at: Place) -> None:
    to_next = dist.P2POp(dist.isend, at.mine, (at.rank + 1) % at.size)
    for work in dist.batch_isend_irecv([to_next, dist.P2POp(dist.irecv, at.room, (at.rank - 1) % at.size)]):
        work.wait()


def send_object_list(at: Place) -> None:
    if at.rank == 0:
        dist.send_object_list(at.named, dst=1)
    elif at.rank == 1:
        dist.recv_object_list(at.objects, src=0)


def all_reduce_sparse(at: Place) -> None:
    tensor = torch.sparse_coo_tensor(torch.tensor([[at.rank]], device=at.device), at.full(1, 1), (at.size,))
    dist.all_reduce(tensor)
    at.whole = tensor.to_dense()


def all_gather_uneven(at: Place) -> None:
    at.parts = [at.full(0, length) for length in at.values]
    dist.all_gather(at.parts, at.full(at.rank + 1, at.rank + 1))


def all_to_all_uneven(at: Place) -> None:
    own = at.rank + 1  # rank r gets r + 1 numbers of each
    at.whole = at.full(0, at.size * own)
    dist.all_to_all_single(at.whole, at.full(own, sum(at.values)), [own] * at.size, list(at.values))


def broadcast_object_list(at: Place) -> None:
    at.objects = [at.name]
    dist.broadcast_object_list(at.objects, src=1)


def split_group(at: Place) -> None:
    if torch.accelerator.is_available():  # torch before 2.15 wants one that is bound, as by init_process_group
        accelerator = torch.accelerator.current_accelerator().type
        dist.group.WORLD.bound_device_id = torch.device(accelerator, at.rank % torch.accelerator.device_count())
        dist.all_reduce(at.full(1))  # NCCL splits a communicator that is there already
    sum_of_two(at, dist.split_group(split_ranks=[[0, 1]]))


def sum_of_two(at: Place, group: Any) -> None:
    if at.rank < 2:
        dist.all_reduce(at.mine, group=group)


# --- all_reduce with every ReduceOp and dtype ---

FACTOR = 2.0  # of PREMUL_SUM
# what every rank must end with, by Python's own arithmetic; a bool ends as True for every number but 0
EXPECTED: dict[str, Callable[[Sequence[Any]], Any]] = {
    "SUM": sum,
    "AVG": lambda given: sum(given) / len(given),
    "PRODUCT": math.prod,
    "MIN": min,
    "MAX": max,
    "BAND": functools.partial(functools.reduce, operator.and_),
    "BOR": functools.partial(functools.reduce, operator.or_),
    "BXOR": functools.partial(functools.reduce, operator.xor),
    "PREMUL_SUM": lambda given: FACTOR * sum(given),
}


def reduce_with(op: str, name: str, at: Place) -> None:
    """all_reduce with that op on tensors of the dtype of that name.

    The ranks begin with 1, 2, 3, 1, 2, 3 and so on, which every dtype holds; for bool with False, True, False.
    """
    dtype = getattr(torch, name)
    given = [rank % 2 == 1 if dtype == torch.bool else rank % 3 + 1 for rank in range(at.size)]
    at.mine = torch.full((4,), float(given[at.rank])).to(dtype).to(at.device)
    dist.all_reduce(at.mine, premultiplied_sum(FACTOR) if op == "PREMUL_SUM" else getattr(dist.ReduceOp, op))
    at.whole = torch.full((4,), float(EXPECTED[op](given))).to(dtype)  # that it must be


def reduced(at: Place) -> bool:
    return bool(torch.allclose(at.mine.cpu().to(torch.complex64), at.whole.to(torch.complex64), rtol=0.01))


# --- all of them, in the order in which they are shown ---


def newest(*names: str) -> Callable[..., Any]:
    """The first of these functions that this torch has; torch renames them now and then."""
    return next(getattr(dist, name) for name in names if hasattr(dist, name))


all_gather_single = newest("all_gather_single", "all_gather_into_tensor")
reduce_scatter_single = newest("reduce_scatter_single", "reduce_scatter_tensor")

CASES: dict[str, Case] = {
    "send, recv": (message(dist.send, dist.recv), came),
    "isend, irecv": (message(dist.isend, dist.irecv), came),
    "recv from any source": (message(dist.send, dist.recv, src=None), came),
    "send, recv with tags": (tags, both_came),
    "batch_isend_irecv": (batch_isend_irecv, lambda at: holds(at.room, (at.rank - 1) % at.size + 1)),
    "send_object_list": (send_object_list, on_one(told)),
    "broadcast": (lambda at: dist.broadcast(at.mine, src=1), lambda at: holds(at.mine, 2)),
    "reduce": (lambda at: dist.reduce(at.mine, dst=1), on_one(summed)),
    "all_reduce": (lambda at: dist.all_reduce(at.mine), summed),
    "all_reduce async_op": (lambda at: dist.all_reduce(at.mine, async_op=True).wait(), summed),
    "all_reduce sparse": (all_reduce_sparse, lambda at: holds(at.whole, *[1] * at.size)),
    "all_reduce_coalesced": (lambda at: dist.all_reduce_coalesced([at.mine, at.full(1)]), summed),
    "gather": (lambda at: dist.gather(at.mine, at.if_one(at.parts), dst=1), on_one(gathered)),
    "all_gather": (lambda at: dist.all_gather(at.parts, at.mine), gathered),
    "all_gather uneven": (all_gather_uneven, gathered),
    "all_gather_single": (lambda at: all_gather_single(at.whole, at.mine), in_one_piece),
    "all_gather_coalesced": (lambda at: dist.all_gather_coalesced([[part] for part in at.parts], [at.mine]), gathered),
    "scatter": (lambda at: dist.scatter(at.room, at.if_one(at.all), src=1), lambda at: holds(at.room, at.rank + 1)),
    "reduce_scatter": (lambda at: dist.reduce_scatter(at.room, at.all), shared_out),
    "reduce_scatter_single": (lambda at: reduce_scatter_single(at.room, torch.cat(at.all)), shared_out),
    "all_to_all": (lambda at: dist.all_to_all(at.parts, [at.mine] * at.size), gathered),
    "all_to_all_single": (lambda at: dist.all_to_all_single(at.whole, at.full(at.rank + 1, 4 * at.size)), in_one_piece),
    "all_to_all_single uneven": (all_to_all_uneven, in_one_piece),
    "barrier": (lambda at: dist.barrier(), lambda at: True),
    "monitored_barrier": (lambda at: dist.monitored_barrier(), lambda at: True),
    "broadcast_object_list": (broadcast_object_list, lambda at: at.objects == [at.named[1]]),
    "gather_object": (lambda at: dist.gather_object(at.name, at.if_one(at.objects), dst=1), on_one(told)),
    "all_gather_object": (lambda at: dist.all_gather_object(at.objects, at.name), told),
    "scatter_object_list": (
        lambda at: dist.scatter_object_list(at.objects, at.named, src=0),
        lambda at: at.objects[0] == at.name,
    ),
    "new_group": (lambda at: sum_of_two(at, dist.new_group([0, 1])), summed_by_two),
    "split_group": (split_group, summed_by_two),
    **{name: (functools.partial(reduce_with, *what), reduced) for name, what in REDUCTIONS.items()},
}
