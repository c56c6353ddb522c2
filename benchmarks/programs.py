"""Programs that bring ranks up to their first all_reduce, each in its own way.

Run one with `python programs.py NAME RANKS`.

Each prints "ready" when every rank has the sum; then every rank prints "memory MB", its
proportional set size, and the program ends. startup.py measures the time from before Python starts
until the first of these lines.
"""

from __future__ import annotations

import sys
from collections.abc import Callable


def first_sum(rank: int, world_size: int) -> float:
    """The first all_reduce; the group exists."""
    import torch
    import torch.distributed as dist

    tensor = torch.tensor([float(rank)])
    dist.all_reduce(tensor)
    assert tensor.item() == sum(range(world_size))
    return tensor.item()


def sum_in_group() -> float:
    """The same for a function that is not told its rank."""
    import torch.distributed as dist

    return first_sum(dist.get_rank(), dist.get_world_size())


def memory(rank: int = 0, world_size: int = 0) -> float:
    """Proportional set size of this process in MB.

    It is its private pages, and its share of the shared ones.
    """
    import psutil

    return psutil.Process().memory_full_info().pss / 1e6


def sum_and_tell() -> None:
    """First all_reduce in the group that is there; then say so, and this rank's memory.

    It is measured while all ranks live.
    """
    import torch.distributed as dist

    sum_in_group()
    if dist.get_rank() == 0:
        print("ready", flush=True)
    dist.barrier()
    megabytes = memory()
    dist.barrier()
    sys.stdout.write(f"memory {megabytes:.1f}\n")
    sys.stdout.flush()


def join(rank: int, world_size: int, port: int, then: Callable[[], object]) -> None:
    """Build a gloo group at a port on loopback, and make a call in it."""
    import torch.distributed as dist

    dist.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world_size
    )
    then()


def free_port() -> int:
    """A port that nobody listens on."""
    import socket

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def tell_all(megabytes: list[float]) -> None:
    """Print what each rank takes."""
    for value in megabytes:
        print(f"memory {value:.1f}", flush=True)


def distlab(n: int) -> None:
    import distlab

    with distlab.Cluster(n) as cluster:
        cluster.run(first_sum)
        print("ready", flush=True)
        tell_all(cluster.run(memory))


def ipyparallel(n: int) -> None:
    import logging

    import ipyparallel

    port = free_port()
    with ipyparallel.Cluster(n=n, log_level=logging.ERROR) as client:
        client[:].use_cloudpickle()
        waiting = [client[i].apply_async(join, i, n, port, sum_in_group) for i in range(n)]
        for result in waiting:
            result.get()
        print("ready", flush=True)
        tell_all(client[:].apply_sync(memory))


def spawn(n: int) -> None:
    import torch.multiprocessing

    torch.multiprocessing.spawn(join, args=(n, free_port(), sum_and_tell), nprocs=n)


def worker(n: int) -> None:
    import torch.distributed as dist

    dist.init_process_group("gloo")
    sum_and_tell()


def debug_launcher(n: int) -> None:
    import accelerate

    accelerate.debug_launcher(sum_and_tell, num_processes=n)


def import_torch(n: int) -> None:
    import torch.distributed  # noqa: F401

    print("ready", flush=True)
    tell_all([memory()])


if __name__ == "__main__":
    ways = (distlab, ipyparallel, spawn, worker, debug_launcher, import_torch)
    {way.__name__: way for way in ways}[sys.argv[1]](int(sys.argv[2]))
