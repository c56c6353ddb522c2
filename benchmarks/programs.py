"""Programs that bring ranks up to their first all_reduce, each in its own way; run as `python programs.py NAME RANKS`.

Each prints "ready" when every rank has the sum, and then ends. startup.py measures the time from before Python starts
until that line.
"""

from __future__ import annotations

import sys


def first_sum(rank: int, world_size: int) -> float:
    """The first all_reduce; the group exists."""
    import torch
    import torch.distributed as dist

    tensor = torch.tensor([float(rank)])
    dist.all_reduce(tensor)
    assert tensor.item() == sum(range(world_size))
    return tensor.item()


def join_and_sum(rank: int, world_size: int, port: int) -> None:
    """Build a gloo group at a port on loopback, then the first all_reduce."""
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world_size)
    first_sum(rank, world_size)


def sum_in_group() -> None:
    """The first all_reduce in a group that the launcher has built."""
    import torch.distributed as dist

    first_sum(dist.get_rank(), dist.get_world_size())


def free_port() -> int:
    """A port that nobody listens on."""
    import socket

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def distlab(n: int) -> None:
    import distlab

    with distlab.Cluster(n) as cluster:
        cluster.run(first_sum)
        print("ready", flush=True)


def ipyparallel(n: int) -> None:
    import logging

    import ipyparallel

    port = free_port()
    with ipyparallel.Cluster(n=n, log_level=logging.ERROR) as client:
        client[:].use_cloudpickle()
        waiting = [client[i].apply_async(join_and_sum, i, n, port) for i in range(n)]
        for result in waiting:
            result.get()
        print("ready", flush=True)


def spawn(n: int) -> None:
    import torch.multiprocessing

    torch.multiprocessing.spawn(join_and_sum, args=(n, free_port()), nprocs=n)
    print("ready", flush=True)


def worker(n: int) -> None:
    import torch.distributed as dist

    dist.init_process_group("gloo")
    sum_in_group()
    dist.barrier()
    if dist.get_rank() == 0:
        print("ready", flush=True)


def debug_launcher(n: int) -> None:
    import accelerate

    accelerate.debug_launcher(sum_in_group, num_processes=n)
    print("ready", flush=True)


def import_torch(n: int) -> None:
    import torch.distributed  # noqa: F401

    print("ready", flush=True)


if __name__ == "__main__":
    {f.__name__: f for f in (distlab, ipyparallel, spawn, worker, debug_launcher, import_torch)}[sys.argv[1]](
        int(sys.argv[2])
    )
