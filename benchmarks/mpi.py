"""One all_reduce of 4 MB on ranks that mpiexec started: torch.distributed over mpi4py beside mpi4py itself, and gloo.

All work on the same float32 buffer; the slowest rank's time counts. The two on MPI take turns, each turn in another
order, and gloo comes after them: its call leaves caches colder than theirs. MPI's barrier comes before each call, so
that none waits for ranks that are still in another's. They are measured in a script under mpiexec, where the backend
stands alone, and in a cluster, which also notes each call of torch.distributed. What the backend costs is Python that
runs just after four megabytes went through the caches: 0.2 ms of each rank, of which a core here has two.
"""

from __future__ import annotations

import json
import subprocess
import sys

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
        ITSELF: lambda: world.Allreduce(MPI.IN_PLACE, buffer),
        "all_reduce on gloo": lambda: dist.all_reduce(tensor, group=gloo),
    }
    *on_mpi, on_gloo = calls
    seconds: dict[str, list[float]] = {name: [] for name in (on_gloo, *on_mpi)}
    for turning in (on_mpi, [on_gloo]):
        for turn in range(repeat + 2):
            for name in random.Random(turn).sample(turning, len(turning)):
                world.Barrier()
                began = time.perf_counter()
                calls[name]()
                slowest = world.allreduce(time.perf_counter() - began, MPI.MAX)
                if turn >= 2:  # the first ones make connections
                    seconds[name].append(slowest)
    dist.destroy_process_group(gloo)
    return seconds


def tell_as_script() -> None:
    """The same on a rank that has only mpiexec; rank 0 prints the seconds."""
    import torch.distributed as dist

    from distlab_course import mpi_backend

    dist.init_process_group(mpi_backend.NAME)
    rank = dist.get_rank()
    seconds = seconds_on_rank(rank, dist.get_world_size(), *map(int, sys.argv[1:]))
    dist.destroy_process_group()
    if rank == 0:
        print(json.dumps(seconds))


def measure(n: int, repeat: int) -> dict[str, dict[str, list[float]]]:
    """Two tables: the contestants on `n` ranks, in a script and in a cluster."""
    import distlab
    from distlab.launch import mpiexec

    numel = MEGABYTES * 250_000
    script = [sys.executable, "-m", "benchmarks.mpi", str(numel), str(repeat)]
    command = [mpiexec.find(), *mpiexec.arguments(), "-n", str(n), *script]
    told = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300).stdout
    with distlab.Cluster(n, engines="mpi", backend="distlab_course.mpi_backend", timeout=120) as cluster:
        in_cluster = cluster.run(seconds_on_rank, numel, repeat)[0]
    title = f"all_reduce of {MEGABYTES} MB on {n} ranks of mpiexec"
    return {f"{title}, a script": json.loads(told.splitlines()[-1]), f"{title}, a cluster": in_cluster}


if __name__ == "__main__":
    tell_as_script()
