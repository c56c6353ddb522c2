"""What the probe calls: every function of torch.distributed that communicates, with a right answer for each.

Runs on the processes that the probe starts, called by trial.py; torch and the standard library only. A case is a
function of a `Place` that every rank calls; it returns whether this rank got what it should, and raises where torch
refuses. Names are those of the newest torch.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from distlab.probing.place import Place, holds

# --- point to point: rank 0 sends to rank 1 ---


def send_recv(at: Place) -> bool:
    tensor = at.mine
    if at.rank == 0:
        dist.send(tensor, dst=1)
    elif at.rank == 1:
        dist.recv(tensor, src=0)
    return at.rank != 1 or holds(tensor, 1)


def isend_irecv(at: Place) -> bool:
    tensor = at.mine
    if at.rank < 2:
        (dist.irecv(tensor, src=0) if at.rank else dist.isend(tensor, dst=1)).wait()
    return at.rank != 1 or holds(tensor, 1)


def recv_any_source(at: Place) -> bool:
    tensor = at.mine
    if at.rank == 0:
        dist.send(tensor, dst=1)
    elif at.rank == 1:
        return dist.recv(tensor) == 0 and holds(tensor, 1)
    return True


def tags(at: Place) -> bool:
    first, second = at.full(1), at.full(2)
    if at.rank == 0:
        for work in [dist.isend(first, dst=1, tag=1), dist.isend(second, dst=1, tag=2)]:
            work.wait()
    elif at.rank == 1:
        dist.recv(second, src=0, tag=2)
        dist.recv(first, src=0, tag=1)
    return holds(first, 1) and holds(second, 2)


def batch_isend_irecv(at: Place) -> bool:
    arrived = torch.zeros_like(at.mine)
    to_next = dist.P2POp(dist.isend, at.mine, (at.rank + 1) % at.size)
    from_previous = dist.P2POp(dist.irecv, arrived, (at.rank - 1) % at.size)
    for work in dist.batch_isend_irecv([to_next, from_previous]):
        work.wait()
    return holds(arrived, (at.rank - 1) % at.size + 1)


def send_object_list(at: Place) -> bool:
    objects: list[Any] = [{"from": 0}] if at.rank == 0 else [None]
    if at.rank == 0:
        dist.send_object_list(objects, dst=1)
    elif at.rank == 1:
        dist.recv_object_list(objects, src=0)
    return at.rank > 1 or objects == [{"from": 0}]


# --- collectives ---


def broadcast(at: Place) -> bool:
    tensor = at.mine
    dist.broadcast(tensor, src=1)
    return holds(tensor, 2)


def reduce(at: Place) -> bool:
    tensor = at.mine
    dist.reduce(tensor, dst=1)
    return at.rank != 1 or holds(tensor, at.total)


def all_reduce(at: Place) -> bool:
    tensor = at.mine
    dist.all_reduce(tensor)
    return holds(tensor, at.total)


def all_reduce_async(at: Place) -> bool:
    tensor = at.mine
    dist.all_reduce(tensor, async_op=True).wait()
    return holds(tensor, at.total)


def all_reduce_sparse(at: Place) -> bool:
    place = torch.tensor([[at.rank]], device=at.device)
    tensor = torch.sparse_coo_tensor(place, at.full(1, 1), (at.size,))
    dist.all_reduce(tensor)
    return holds(tensor.to_dense(), *[1] * at.size)


def all_reduce_coalesced(at: Place) -> bool:
    tensors = [at.mine, at.full(1)]
    dist.all_reduce_coalesced(tensors)
    return holds(tensors[0], at.total) and holds(tensors[1], at.size)


def gather(at: Place) -> bool:
    parts = [torch.zeros_like(at.mine) for _ in range(at.size)] if at.rank == 1 else None
    dist.gather(at.mine, parts, dst=1)
    return parts is None or all(holds(part, rank + 1) for rank, part in enumerate(parts))


def all_gather(at: Place) -> bool:
    parts = [torch.zeros_like(at.mine) for _ in range(at.size)]
    dist.all_gather(parts, at.mine)
    return all(holds(part, rank + 1) for rank, part in enumerate(parts))


def all_gather_uneven(at: Place) -> bool:
    parts = [at.full(0, rank + 1) for rank in range(at.size)]
    dist.all_gather(parts, at.full(at.rank + 1, at.rank + 1))
    return all(holds(part, rank + 1) for rank, part in enumerate(parts))


def all_gather_single(at: Place) -> bool:
    whole = at.full(0, 4 * at.size)
    newest("all_gather_single", "all_gather_into_tensor")(whole, at.mine)
    return holds(whole, *range(1, at.size + 1))


def all_gather_coalesced(at: Place) -> bool:
    lists = [[torch.zeros_like(at.mine)] for _ in range(at.size)]
    dist.all_gather_coalesced(lists, [at.mine])
    return all(holds(parts[0], rank + 1) for rank, parts in enumerate(lists))


def scatter(at: Place) -> bool:
    tensor = torch.zeros_like(at.mine)
    dist.scatter(tensor, [at.full(rank + 1) for rank in range(at.size)] if at.rank == 1 else None, src=1)
    return holds(tensor, at.rank + 1)


def reduce_scatter(at: Place) -> bool:
    tensor = torch.zeros_like(at.mine)
    dist.reduce_scatter(tensor, [at.full(rank + 1) for rank in range(at.size)])
    return holds(tensor, at.size * (at.rank + 1))


def reduce_scatter_single(at: Place) -> bool:
    tensor = torch.zeros_like(at.mine)
    whole = torch.cat([at.full(rank + 1) for rank in range(at.size)])
    newest("reduce_scatter_single", "reduce_scatter_tensor")(tensor, whole)
    return holds(tensor, at.size * (at.rank + 1))


def all_to_all(at: Place) -> bool:
    arrived = [torch.zeros_like(at.mine) for _ in range(at.size)]
    dist.all_to_all(arrived, [at.mine for _ in range(at.size)])
    return all(holds(part, rank + 1) for rank, part in enumerate(arrived))


def all_to_all_single(at: Place) -> bool:
    arrived = at.full(0, 4 * at.size)
    dist.all_to_all_single(arrived, at.full(at.rank + 1, 4 * at.size))
    return holds(arrived, *range(1, at.size + 1))


def all_to_all_uneven(at: Place) -> bool:
    sizes = [rank + 1 for rank in range(at.size)]  # rank r gets r + 1 numbers of each
    arrived = at.full(0, at.size * (at.rank + 1))
    dist.all_to_all_single(arrived, at.full(at.rank + 1, sum(sizes)), [at.rank + 1] * at.size, sizes)
    return holds(arrived, *range(1, at.size + 1))


def barrier(at: Place) -> bool:
    dist.barrier()
    return True


def monitored_barrier(at: Place) -> bool:
    dist.monitored_barrier(timeout=timedelta(seconds=at.seconds))
    return True


# --- objects and groups ---


def broadcast_object_list(at: Place) -> bool:
    objects = [{"from": at.rank}]
    dist.broadcast_object_list(objects, src=1)
    return objects == [{"from": 1}]


def gather_object(at: Place) -> bool:
    objects: list[Any] | None = [None] * at.size if at.rank == 1 else None
    dist.gather_object({"from": at.rank}, objects, dst=1)
    return objects is None or objects == [{"from": rank} for rank in range(at.size)]


def all_gather_object(at: Place) -> bool:
    objects: list[Any] = [None] * at.size
    dist.all_gather_object(objects, {"from": at.rank})
    return objects == [{"from": rank} for rank in range(at.size)]


def scatter_object_list(at: Place) -> bool:
    objects: list[Any] = [None]
    dist.scatter_object_list(objects, [{"for": rank} for rank in range(at.size)], src=0)
    return objects == [{"for": at.rank}]


def new_group(at: Place) -> bool:
    group = dist.new_group([0, 1], timeout=timedelta(seconds=at.seconds))
    tensor = at.full(1)
    if at.rank < 2:
        dist.all_reduce(tensor, group=group)
    return at.rank > 1 or holds(tensor, 2)


def split_group(at: Place) -> bool:
    if torch.accelerator.is_available():  # torch before 2.15 wants one that is bound, as by init_process_group
        accelerator = torch.accelerator.current_accelerator().type
        dist.group.WORLD.bound_device_id = torch.device(accelerator, at.rank % torch.accelerator.device_count())
        dist.all_reduce(at.full(1))  # NCCL splits a communicator that is there already
    group = dist.split_group(split_ranks=[[0, 1]], timeout=timedelta(seconds=at.seconds))
    tensor = at.full(1)
    if at.rank < 2:
        dist.all_reduce(tensor, group=group)
    return at.rank > 1 or holds(tensor, 2)


def newest(*names: str) -> Callable[..., Any]:
    """The first of these functions that this torch has; torch renames them now and then."""
    return next(getattr(dist, name) for name in names if hasattr(dist, name))


FUNCTIONS: dict[str, Callable[[Place], bool]] = {
    "send, recv": send_recv,
    "isend, irecv": isend_irecv,
    "recv from any source": recv_any_source,
    "send, recv with tags": tags,
    "batch_isend_irecv": batch_isend_irecv,
    "send_object_list": send_object_list,
    "broadcast": broadcast,
    "reduce": reduce,
    "all_reduce": all_reduce,
    "all_reduce async_op": all_reduce_async,
    "all_reduce sparse": all_reduce_sparse,
    "all_reduce_coalesced": all_reduce_coalesced,
    "gather": gather,
    "all_gather": all_gather,
    "all_gather uneven": all_gather_uneven,
    "all_gather_single": all_gather_single,
    "all_gather_coalesced": all_gather_coalesced,
    "scatter": scatter,
    "reduce_scatter": reduce_scatter,
    "reduce_scatter_single": reduce_scatter_single,
    "all_to_all": all_to_all,
    "all_to_all_single": all_to_all_single,
    "all_to_all_single uneven": all_to_all_uneven,
    "barrier": barrier,
    "monitored_barrier": monitored_barrier,
    "broadcast_object_list": broadcast_object_list,
    "gather_object": gather_object,
    "all_gather_object": all_gather_object,
    "scatter_object_list": scatter_object_list,
    "new_group": new_group,
    "split_group": split_group,
}
