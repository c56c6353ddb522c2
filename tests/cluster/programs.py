"""Random correct programs, whose results are fixed by a seed. Runs on every rank.

They are made of the functions whose names begin with "_".
"""

import inspect
import random
import time

import torch
import torch.distributed as dist


def correct_programs(rank, n, seeds, long_pause):
    """A few random calls for each seed, whose results are compared; the names of the calls.

    Args:
        seeds: the same on every rank. long_pause: seconds that one rank sleeps somewhere in every
            tenth program.
    """
    names = []
    for seed in seeds:
        shared, own = random.Random(seed), random.Random(seed * 100 + rank)
        steps = [shared.choice(STEPS) for _ in range(shared.randint(2, 5))]
        sleeper = shared.randrange(n), shared.randrange(len(steps))
        for number, step in enumerate(steps):
            time.sleep(own.random() * 0.02)
            if seed % 10 == 0 and (rank, number) == sleeper:
                time.sleep(long_pause)
            step(rank, n, shared)
        names += [step.__name__ for step in steps]
    return names


def _message(rank, n, shared):
    source, tag, count = shared.randrange(n), shared.randrange(4), shared.randint(1, 3)
    destination = (source + shared.randrange(1, n)) % n
    for k in range(count):  # unequal numbers of messages on the ranks are correct
        if rank == source:
            dist.send(torch.full((3,), float(k)), dst=destination, tag=tag)
        elif rank == destination:
            tensor = torch.empty(3)
            dist.recv(tensor, src=source, tag=tag)
            assert tensor.tolist() == [k] * 3


def _from_any(rank, n, shared):
    root = shared.randrange(n)
    if rank != root:
        dist.send(torch.tensor([float(rank)]), dst=root, tag=9)
    else:
        got = []
        for _ in range(n - 1):
            tensor = torch.empty(1)
            dist.recv(tensor, tag=9)
            got.append(tensor.item())
        assert sorted(got) == [r for r in range(n) if r != root]
    dist.barrier()  # the next messages of this kind are not taken for these


def _ring(rank, n, shared):
    got = torch.empty(2)
    works = [
        dist.irecv(got, src=(rank - 1) % n, tag=5),
        dist.isend(torch.full((2,), float(rank)), dst=(rank + 1) % n, tag=5),
    ]
    for work in reversed(works):
        work.wait()
    assert got.tolist() == [(rank - 1) % n] * 2


def _all_reduce(rank, n, shared):
    tensor = torch.full((shared.choice([1, 7, 100_000]),), float(rank))
    dist.all_reduce(tensor)
    assert tensor[0].item() == n * (n - 1) / 2


def _async_all_reduce(rank, n, shared):
    tensor = torch.full((5,), float(rank))
    work = dist.all_reduce(tensor, op=dist.ReduceOp.MAX, async_op=True)
    time.sleep(0.005 * rank)
    work.wait()
    assert tensor[0].item() == n - 1


def _broadcast(rank, n, shared):
    root = shared.randrange(n)
    tensor = torch.full((4,), float(rank))
    dist.broadcast(tensor, src=root)
    assert tensor.tolist() == [root] * 4


def _group(rank, n, shared):
    members = sorted(shared.sample(range(n), 2))
    group = dist.new_group(members)
    if rank in members:
        tensor = torch.tensor([float(rank)])
        dist.all_reduce(tensor, group=group)
        assert tensor.item() == sum(members)


STEPS = [
    one for name, one in [*globals().items()] if name.startswith("_") and inspect.isfunction(one)
]
