"""The exercises of lab 31: what carries the ranks' tensors."""

import torch
import torch.distributed as dist
from torch import nn

from distlab.checking import exercise, gathered, question
from distlab_course.exercises.initialization import new_store, with_store


@question("31")
def both_devices(answer):
    """Which `backend` for a program that adds up gradients on GPUs with NCCL, and counts samples on
    the CPU with gloo?

    Give the string for `init_process_group(backend=...)`.

    Title: 1.1 Both devices
    Hint: It names a backend for each device, with a comma between them.

    Why: torch looks at each tensor's device: with "cpu:gloo,cuda:nccl", NCCL gets those on a GPU
    and gloo the others.
    """
    if ":" not in str(answer):
        return f"{answer!r} does not say which device each backend serves."
    pairs = str(answer).replace(" ", "").split(",")
    if sorted(pairs) != ["cpu:gloo", "cuda:nccl"]:
        return (
            'NCCL is for tensors on a GPU, which torch calls "cuda"; '
            'gloo serves those on the "cpu" here.'
        )
    return True


def _try_two_gathers(gather):
    """What two calls give, on tensors of different shapes and dtypes."""
    rank = dist.get_rank()
    n = dist.get_world_size()
    store = new_store()
    first = gather(store, rank, n, "call 0", torch.arange(3) + 10 * rank)
    second = gather(store, rank, n, "call 1", torch.full((2, 2), rank + 0.5))
    return [first, second]


@with_store("31", trial=_try_two_gathers)
def gather_by_store(store, rank, world_size, call, tensor):
    """Return a list of the tensors of all ranks, in the order of the ranks, with nothing but
    `store` to carry them.

    All ranks' tensors have the same shape and dtype; `call` is a string that is different for each
    call.

    Title: 5.1 Gather through a store
    Hint: A tensor is bytes: `store.set(key, tensor.numpy().tobytes())`, and
    `torch.frombuffer(bytearray(store.get(key)), dtype=tensor.dtype)` is the way back.
    Hint: The key needs the call and the rank: `f"{call}/{rank}"`. `get` waits until the key is
    there.
    Hint: Bytes have no shape: `.reshape(tensor.shape)` at the end.
    """
    return gathered(tensor)


def _try_own_backend(make):
    """What `make`'s group makes of a broadcast and an all-reduce, a maximum, and a training."""
    name = f"own{len(dist.Backend.backend_list)}"  # which was not registered before
    dist.Backend.register_backend(name, make, devices=["cpu"])
    group = dist.new_group(backend=name)
    tensor = torch.tensor([dist.get_rank() + 1.0])
    _wait("broadcast", dist.broadcast(tensor, src=0, group=group, async_op=True))
    _wait("all_reduce", dist.all_reduce(tensor, group=group, async_op=True))
    words = f"after broadcast and all_reduce: {tensor.item():g}"
    return words, _maximum_in(group), _weights_trained_in(group)


def _wait(name, work):
    """Wait for a Work; anything else is refused, because DDP would call its methods in C++."""
    if not isinstance(work, dist.Work):
        raise TypeError(f"{name} on this group must return a Work, got {work!r}")
    work.wait()


def _maximum_in(group):
    """The largest rank + 1, which is the number of ranks; also where MAX is refused.

    That is also right, because only a wrong maximum is a mistake.
    """
    highest = torch.tensor([dist.get_rank() + 1.0])
    try:
        dist.all_reduce(highest, dist.ReduceOp.MAX, group)
    except Exception:
        return torch.tensor([float(dist.get_world_size())])
    return highest


def _weights_trained_in(group):
    """The weights after two steps with DDP on this group."""
    rank = dist.get_rank()
    torch.manual_seed(rank)  # DDP has to give all ranks the weights of rank 0
    ddp = nn.parallel.DistributedDataParallel(nn.Linear(3, 2), process_group=group)
    for step in range(2):
        ddp.zero_grad()
        images = torch.full((4, 3), 1.0 + rank + step)
        ddp(images).square().mean().backward()
        for parameter in ddp.parameters():
            parameter.data -= 0.1 * parameter.grad
    return nn.utils.parameters_to_vector(ddp.parameters()).detach()


@with_store("31", trial=_try_own_backend, seconds=60)
def own_backend(store, rank, size, timeout):
    """Return a process group, of a class of your own, on which DistributedDataParallel can train.

    The class derives from `dist.ProcessGroup`; its methods `broadcast(tensors, opts)`,
    `allreduce(tensors, opts)` and `allgather(outputs, inputs, opts)` carry the tensors through
    `store`, and return a finished Work. An op that `allreduce` does not know must raise.

    Title: 5.2 DDP over a store
    Hint: Begin with `gather_by_store`, as a method that counts the calls: no key may be used twice.
    Hint: All three follow from it: `broadcast` takes the tensor of `opts.rootRank`, `allreduce`
    adds them all up.
    Hint: The result belongs in the tensor that was passed in: `tensors[0].copy_(...)`.
    Hint: `opts.reduceOp` compares with `dist.ReduceOp.SUM`; a maximum that becomes a sum is a
    silent error.
    """
    return dist.ProcessGroupGloo(store, rank, size, timeout)


# bytes of an all-reduce, and for each rank in turn the seconds that it took
MEASURED = (
    (10**9, (0.02, 0.04, 0.01, 0.03)),
    (8 * 10**9, (0.5, 0.25, 0.25, 0.5)),
    (10**6, (1e-4, 1e-4, 1e-4, 8e-4)),
)


def _seconds_of_rank(rank, n, case):
    """The bytes of an all-reduce, and how long it took by this rank's clock."""
    num_bytes, seconds = case
    return num_bytes, seconds[rank]


@exercise("31", cases=MEASURED, worlds=(1, 2, 3), given=_seconds_of_rank)
def bus_bandwidth(num_bytes, seconds):
    """Return, on every rank, the bus bandwidth in GB/s of an all-reduce of `num_bytes` bytes, by
    the time of the slowest rank.

    `seconds` is the time that this rank has measured.

    Title: 6.1 The bus bandwidth
    Hint: `dist.all_reduce(slowest, op=dist.ReduceOp.MAX)` leaves the largest of the ranks' numbers
    on every rank.
    Hint: The algorithm bandwidth is `num_bytes / seconds / 1e9`, and the ring of n ranks sends 2 (n
    - 1) / n times as much.
    Stuck: Does every rank take part in the exchange?
    """
    n = dist.get_world_size()
    slowest = max(gathered(seconds))
    return num_bytes / slowest / 1e9 * 2 * (n - 1) / n
