"""One all_reduce of 4 MB on ranks that mpiexec started: torch.distributed over mpi4py beside mpi4py itself, and gloo.

All three work on the same float32 buffer, in turns, each turn in another order; the slowest rank's time counts. MPI's
barrier comes before each, so that none of them waits for ranks that are still in another's call.
"""

from __future__ import annotations

MEGABYTES = 4
ITSELF = "mpi4py's Allreduce"


def seconds_on_rank(rank: int, world_size: int, numel: int, repeat: int) -> dict[str, list[float]]:
    """Seconds of a call of each contestant on float32 tensors of `numel` elements, `repeat` times."""
    import random
    import time

    import torch
    import torch.distributed as dist
    from mpi4py import MPI

    tensor, gloo, world = torch.zeros(numel), dist.new_group(backend="gloo"), MPI.COMM_WORLD
    buffer = tensor.numpy()
    calls = {
        "all_reduce on mpi4py": lambda: dist.all_reduce(tensor),
        "all_reduce on gloo": lambda: dist.all_reduce(tensor, group=gloo),
        ITSELF: lambda: world.Allreduce(MPI.IN_PLACE, buffer),
    }
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(repeat + 2):
        for name in random.Random(turn).sample(list(calls), len(calls)):
            world.Barrier()
            began = time.perf_counter()
            calls[name]()
            slowest = world.allreduce(time.perf_counter() - began, MPI.MAX)
            if turn >= 2:  # the first ones make connections
                seconds[name].append(slowest)
    dist.destroy_process_group(gloo)
    return seconds


def measure(n: int, repeat: int) -> dict[str, dict[str, list[float]]]:
    """A table: the contestants on `n` ranks."""
    import distlab

    with distlab.Cluster(n, engines="mpi", backend="mpi4py", timeout=120) as cluster:
        seconds = cluster.run(seconds_on_rank, MEGABYTES * 250_000, repeat)[0]
    return {f"all_reduce of {MEGABYTES} MB on {n} ranks of mpiexec": seconds}
