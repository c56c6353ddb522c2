"""Programs for every rank that use one part of torch.distributed each, and return plain values.

`PROGRAMS` has every function here of (rank, world_size), each reduction with every op and dtype,
and three programs of the zoo. They run on any backend and give the same values on each; what a
backend leaves undefined is not returned. Tensors hold small whole numbers, so that sums are exact
in every dtype and in every order.
"""

import inspect
import math
import sys
import time

import torch
import torch.distributed as dist

from tests.cluster.zoo_of_pipelines import one_forward_one_backward
from tests.cluster.zoo_of_sharding import fsdp, placements_around

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
WHOLE = (torch.int64, torch.int32, torch.int8, torch.uint8)
COMPLEX = (torch.complex64, torch.complex128)
OPS = {
    "SUM": (*FLOATS, *WHOLE, *COMPLEX, torch.bool),
    "AVG": (*FLOATS, torch.complex64),
    "PRODUCT": (*FLOATS, *WHOLE, torch.bool),
    "MIN": (*FLOATS, *WHOLE, torch.bool),
    "MAX": (*FLOATS, *WHOLE, torch.bool),
    "BAND": (*WHOLE, torch.bool),
    "BOR": (*WHOLE, torch.bool),
    "BXOR": (*WHOLE, torch.bool),
}
MOVED = (*FLOATS, *WHOLE, *COMPLEX, torch.bool)


# their names before torch 2.13
all_gathered = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scattered_whole = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def mine(rank, dtype=torch.float32, shape=(2, 3)):
    """Numbers that differ from rank to rank: 1, 2, 3 and so on, turned by the rank."""
    numbers = torch.arange(1, 1 + math.prod(shape)).roll(rank).reshape(shape)
    return (numbers % 2 == 0) if dtype == torch.bool else numbers.to(dtype)


def each_op_and_dtype(call):
    """What `call(tensor, op)` leaves, by op and dtype."""

    def program(rank, world_size):
        return {
            f"{name} {dtype}": call(mine(rank, dtype), getattr(dist.ReduceOp, name)).tolist()
            for name, dtypes in OPS.items()
            for dtype in dtypes
        }

    return program


def all_reduced(tensor, op):
    dist.all_reduce(tensor, op)
    return tensor


def reduced(tensor, op):
    last = dist.get_world_size() - 1
    dist.reduce(tensor, last, op)
    return tensor if dist.get_rank() == last else tensor[:0]


def reduce_scattered(tensor, op):
    output = torch.empty_like(tensor)
    dist.reduce_scatter(output, [tensor.roll(other) for other in range(dist.get_world_size())], op)
    return output


def broadcast(rank, world_size):
    found = {}
    for dtype in MOVED:
        for src in range(world_size):
            tensor = mine(rank, dtype)
            dist.broadcast(tensor, src)
            found[f"{dtype} {src}"] = tensor.tolist()
    return found


def all_gather(rank, world_size):
    found = {}
    for dtype in MOVED:
        outputs = [torch.zeros(2, 3, dtype=dtype) for _ in range(world_size)]
        dist.all_gather(outputs, mine(rank, dtype))
        found[str(dtype)] = [output.tolist() for output in outputs]
    return found


def all_gather_single(rank, world_size):
    flat, joined = torch.empty(world_size * 6), torch.empty(world_size * 2, 3)
    all_gathered(flat, mine(rank).reshape(-1))
    all_gathered(joined, mine(rank))
    return flat.tolist(), joined.tolist()


def gather_and_scatter(rank, world_size):
    found = []
    for root in range(world_size):
        outputs = [torch.empty(2, 3) for _ in range(world_size)] if rank == root else None
        dist.gather(mine(rank), outputs, dst=root)
        back = torch.empty(2, 3)
        dist.scatter(back, [output * 2 for output in outputs] if rank == root else None, src=root)
        found.append(
            (None if outputs is None else [output.tolist() for output in outputs], back.tolist())
        )
    return found


def reduce_scatter_single(rank, world_size):
    output, average = torch.empty(2), torch.empty(2, dtype=torch.bfloat16)
    reduce_scattered_whole(output, mine(rank, shape=(2 * world_size,)))
    reduce_scattered_whole(
        average, mine(rank, torch.bfloat16, (2 * world_size,)), dist.ReduceOp.AVG
    )
    return output.tolist(), average.tolist()


def all_to_all(rank, world_size):
    outputs = [torch.empty(3, dtype=torch.int64) for _ in range(world_size)]
    dist.all_to_all(outputs, [torch.full((3,), 10 * rank + other) for other in range(world_size)])
    even, rows = torch.empty(world_size, 2), torch.arange(2.0 * world_size).reshape(world_size, 2)
    dist.all_to_all_single(even, rows + 100 * rank)
    uneven = torch.empty(world_size * (rank + 1))
    sent = torch.cat([torch.full((other + 1,), 10.0 * rank + other) for other in range(world_size)])
    splits = [other + 1 for other in range(world_size)]
    dist.all_to_all_single(uneven, sent, [rank + 1] * world_size, splits)
    return [output.tolist() for output in outputs], even.tolist(), uneven.tolist()


def layouts(rank, world_size):
    """Transposed and expanded tensors; not slices with gaps, which gloo gets wrong."""
    total = mine(rank, shape=(3, 4)).t()
    dist.all_reduce(total)
    outputs = [torch.empty(3, 4).t() for _ in range(world_size)]
    dist.all_gather(outputs, mine(rank, shape=(4, 3)))
    shared = torch.empty(4, 3).t()
    dist.reduce_scatter(shared, [mine(rank, shape=(4, 3)).t() for _ in range(world_size)])
    exchanged = [torch.empty(4) for _ in range(world_size)]
    dist.all_to_all(exchanged, [torch.full((1,), 1.0 + rank).expand(4) for _ in range(world_size)])
    return [tensor.tolist() for tensor in (total, shared, *outputs, *exchanged)]


def coalesced(rank, world_size):
    from torch.distributed.distributed_c10d import _coalescing_manager

    first, second = mine(rank), mine(rank, shape=(4,))
    dist.all_reduce_coalesced([first, second])
    with _coalescing_manager():
        dist.all_reduce(first)
        dist.all_reduce(second)
    output = torch.empty(world_size * 4)
    with _coalescing_manager(async_ops=True) as manager:
        all_gathered(output, second)
    manager.wait()
    return [tensor.tolist() for tensor in (first, second, output)]


def tags(rank, world_size):
    """Messages that are received in another order than they were sent."""
    if rank == 0:
        works = [dist.isend(torch.tensor([float(tag)]), 1, tag=tag) for tag in (7, 9)]
        return [work.wait() is not None for work in works]
    if rank == 1:
        nine, seven = torch.zeros(1), torch.zeros(1)
        dist.recv(nine, 0, tag=9)
        dist.recv(seven, 0, tag=7)
        return nine.item(), seven.item()
    return None


def ring_of_messages(rank, world_size):
    """Every dtype once around, with isend and irecv."""
    after, before, found = (rank + 1) % world_size, (rank - 1) % world_size, {}
    for dtype in MOVED:
        if dtype not in COMPLEX:  # torch sends no complex messages
            box = torch.empty(2, 3, dtype=dtype)
            works = [dist.isend(mine(rank, dtype), after), dist.irecv(box, before)]
            for work in works:
                work.wait()
            found[str(dtype)] = box.tolist()
    return found


def objects(rank, world_size):
    gathered, given, broadcast, received = [None] * world_size, [None], [rank, "words"], [None]
    dist.all_gather_object(gathered, {"rank": rank})
    dist.scatter_object_list(given, [f"for {other}" for other in range(world_size)], src=0)
    dist.broadcast_object_list(broadcast, src=world_size - 1)
    if rank == 0:
        dist.send_object_list(["hello"], 1)
    elif rank == 1:
        dist.recv_object_list(received, 0)
    return gathered, given, broadcast, received


def asynchronous(rank, world_size):
    """Works that are waited for in another order, polled, and followed by what `then` is given."""
    tensors = [torch.full((1000,), float(rank + i)) for i in range(8)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    for work in reversed(works):
        work.wait()
    polled = torch.tensor([float(rank)])
    work = dist.all_reduce(polled, async_op=True)
    while not work.is_completed():
        pass
    chained = dist.all_reduce(torch.tensor([float(rank)]), async_op=True).get_future()
    doubled = chained.then(lambda future: future.value()[0] * 2).wait()
    dist.barrier()
    return [tensor[0].item() for tensor in tensors], polled.item(), doubled.item()


def a_work_that_is_dropped(rank, world_size):
    """An all_reduce that nobody keeps ends, and a tensor that is being sent is held."""
    box, total = torch.zeros(100_000), torch.ones(100_000)
    received = dist.irecv(box, (rank - 1) % world_size)
    sent = dist.isend(torch.full((100_000,), float(rank)), (rank + 1) % world_size)
    dist.all_reduce(total, async_op=True)
    dist.barrier()
    received.wait()
    sent.wait()
    until = time.monotonic() + 20
    while total.min() < world_size and time.monotonic() < until:
        time.sleep(0.001)
    return box[-1].item(), total.min().item()


def subgroups(rank, world_size):
    """Even and odd ranks; a group of one."""
    even, odd = (dist.new_group(list(range(first, world_size, 2))) for first in (0, 1))
    alone = [dist.new_group([other]) for other in range(world_size)][rank]
    group = odd if rank % 2 else even
    members = dist.get_process_group_ranks(group)
    total, single, news, after = (torch.tensor([float(rank)]) for _ in range(4))
    dist.all_reduce(total, group=group)
    dist.all_reduce(single, group=alone)
    dist.broadcast(news, src=members[-1], group=group)
    if len(members) > 1 and rank == members[0]:
        dist.send(torch.tensor([5.0]), members[1], group=group)
    elif len(members) > 1 and rank == members[1]:
        dist.recv(news, members[0], group=group)
    dist.destroy_process_group(group)
    dist.destroy_process_group(alone)
    dist.all_reduce(after)  # the world goes on
    return [tensor.item() for tensor in (total, single, news, after)], members


def uneven_inputs(rank, world_size):
    """Each rank has one batch more than the one before; C++ alone waits for their number."""
    from torch.nn.parallel import DistributedDataParallel

    torch.manual_seed(0)
    net = DistributedDataParallel(torch.nn.Linear(2, 1).double())
    gradients = []
    with net.join(divide_by_initial_world_size=False):
        for step in range(1 + rank):
            net.zero_grad()
            net((torch.ones(1, 2) * (step + rank)).double()).sum().backward()
            gradients.append(net.module.weight.grad.tolist())
    return gradients


class CountingInside(torch.nn.Module):
    """A layer that adds up many small tensors over the ranks on its way."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 1).double()

    def forward(self, x):
        for _ in range(40):
            dist.all_reduce(torch.ones(1))
        return self.layer(x)


def joined_inputs_and_many_small_sums(rank, world_size):
    """What C++ alone waits for is the oldest of more small collectives than anything remembers."""
    from torch.nn.parallel import DistributedDataParallel

    torch.manual_seed(0)
    net = DistributedDataParallel(CountingInside())
    with net.join(divide_by_initial_world_size=False):
        net(torch.full((1, 2), float(rank)).double()).sum().backward()
    return net.module.layer.weight.grad.tolist()


def is_program(one):
    return inspect.isfunction(one) and [*inspect.signature(one).parameters] == [
        "rank",
        "world_size",
    ]


PROGRAMS = dict(inspect.getmembers(sys.modules[__name__], is_program))
PROGRAMS |= {
    call.__name__: each_op_and_dtype(call) for call in (all_reduced, reduced, reduce_scattered)
}
PROGRAMS |= {
    program.__name__: program for program in (fsdp, one_forward_one_backward, placements_around)
}
