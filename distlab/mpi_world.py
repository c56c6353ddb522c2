"""The processes that one mpiexec started: what they find in the environment, and a communicator for a group of them.

Runs on every rank, called by mpi_backend.py; torch and mpi4py only.
"""

from __future__ import annotations

import os
import socket
import zlib
from datetime import timedelta

import torch.distributed as dist
from mpi4py import MPI

from distlab.mpi_progress import progress
from distlab.mpi_tensors import NAME, refuse


def fill_environment() -> None:
    """Under mpiexec, what torchrun would set, told by MPI, where nobody has set it; nothing where RANK is set."""
    started = MPI.COMM_WORLD.size > 1 or any(name.startswith(("PMI_", "PMIX_", "OMPI_")) for name in os.environ)
    if started and "RANK" not in os.environ:
        os.environ.update(_environment(MPI.COMM_WORLD) | os.environ)


def _environment(world: MPI.Comm) -> dict[str, str]:
    host = world.Split_type(MPI.COMM_TYPE_SHARED)
    address = "127.0.0.1" if host.size == world.size else socket.gethostname()
    with socket.socket() as free:
        free.bind(("", 0))
        address, port = world.bcast((address, free.getsockname()[1]))
    names = {"RANK": world.rank, "WORLD_SIZE": world.size, "LOCAL_RANK": host.rank, "LOCAL_WORLD_SIZE": host.size}
    host.Free()
    return {**{name: str(value) for name, value in names.items()}, "MASTER_ADDR": address, "MASTER_PORT": str(port)}


def communicator(store: dist.Store, rank: int, size: int, timeout: timedelta) -> MPI.Intracomm:
    """A new communicator of the processes that are the group's ranks, in the group's order.

    Every member writes its number in MPI's world into the store and waits for the others', with the store's time
    limit, so that MPI's own call, which has none, begins when all are there.
    """
    world = MPI.COMM_WORLD
    keys = [f"{NAME}/{other}" for other in range(size)]
    store.set(keys[rank], str(world.rank))
    store.wait(keys, timeout)
    members = [int(store.get(key)) for key in keys]
    if len(set(members)) < size:
        what = f"{NAME} needs {size} processes that one mpiexec started, and MPI knows {world.size} here"
        refuse(f"{what}. Start them with: mpiexec -n {size} python script.py")
    tag = zlib.crc32(repr(members).encode()) & 0x7FFF  # apart from other groups that are being made now
    group = world.group.Incl(members)
    comm = world.Create_group(group, tag)
    group.Free()
    return comm


def free(comm: MPI.Intracomm, broken: list[str]) -> None:
    """When a group is gone: MPI has room for some 2000 communicators."""
    progress().leave(broken)
    if not MPI.Is_finalized() and not progress().holds(broken):
        comm.Free()
