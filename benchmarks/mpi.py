"""One all_reduce of 4 MB on ranks that mpiexec started.

torch.distributed over mpi4py stands beside mpi4py itself, and gloo.

All work on the same float32 buffer; the slowest rank's time counts. The two on MPI take turns, and
gloo comes after them: its call leaves caches colder than theirs. MPI's barrier comes before each
call, so that none waits for ranks that are still in another's. They are measured in a script under
mpiexec, where the backend stands alone, and in a cluster, which also notes each call of
torch.distributed. What the backend costs is Python that runs just after four megabytes went through
the caches: 0.2 ms of each rank, of which a core here has two.
"""

from __future__ import annotations

import json
import subprocess
import sys
from functools import partial

from benchmarks.harness import Found, slowest_in_turns

MEGABYTES = 4


def seconds_on_rank(rank: int, world_size: int, numel: int, repeat: int) -> Found:
    """Seconds of `repeat` calls of each contestant on float32 tensors of `numel` elements."""
    import torch
    import torch.distributed as dist
    from mpi4py import MPI

    tensor = torch.zeros(numel)
    gloo = dist.new_group(backend="gloo")
    world = MPI.COMM_WORLD
    on_mpi = {
        "all_reduce on mpi4py": partial(dist.all_reduce, tensor),
        "mpi4py's Allreduce": partial(world.Allreduce, MPI.IN_PLACE, tensor.numpy()),
    }
    on_gloo = {"all_reduce on gloo": partial(dist.all_reduce, tensor, group=gloo)}
    # the first ones make connections
    options = {"warm_up": 2, "barrier": world.Barrier, "group": gloo}
    first = slowest_in_turns(on_mpi, repeat, **options)
    then = slowest_in_turns(on_gloo, repeat, **options)
    dist.destroy_process_group(gloo)
    return {**then, **first}


def print_as_script() -> None:
    """The same on a rank that has only mpiexec; rank 0 prints the seconds."""
    import torch.distributed as dist

    from distlab_course import mpi_backend

    dist.init_process_group(mpi_backend.NAME)
    rank = dist.get_rank()
    seconds = seconds_on_rank(rank, dist.get_world_size(), *map(int, sys.argv[1:]))
    dist.destroy_process_group()
    if rank == 0:
        print(json.dumps(seconds))


def measure(n: int, repeat: int) -> dict[str, Found]:
    """Two tables: the contestants on `n` ranks, in a script and in a cluster."""
    import distlab
    from distlab.notebook import mpiexec

    numel = MEGABYTES * 250_000
    script = [sys.executable, "-m", "benchmarks.mpi", str(numel), str(repeat)]
    command = [mpiexec.find_mpiexec(), *mpiexec.arguments(), "-n", str(n), *script]
    printed = subprocess.run(
        command, check=True, capture_output=True, text=True, timeout=300
    ).stdout
    with distlab.Cluster(
        n, engines="mpi", backend="distlab_course.mpi_backend", timeout=120
    ) as cluster:
        in_cluster = cluster.run(seconds_on_rank, numel, repeat)[0]
    title = f"all_reduce of {MEGABYTES} MB on {n} ranks of mpiexec"
    return {
        f"{title}, a script": json.loads(printed.splitlines()[-1]),
        f"{title}, a cluster": in_cluster,
    }


if __name__ == "__main__":
    print_as_script()
