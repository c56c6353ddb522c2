"""A cluster whose ranks mpiexec starts on two hosts."""

import os
import sys

import torch
import torch.distributed as dist

import distlab
from tests.cluster.conftest import sum_of_ranks
from tests.network.programs import place
from tests.refused import raised


def sum_by_mpi(rank, world_size):
    """The sum of the ranks, by the backend over mpi4py."""
    from distlab_course import mpi_backend

    total = torch.full((1,), float(rank))
    dist.all_reduce(total, group=dist.new_group(backend=mpi_backend.NAME))
    return total.item()


def test_ranks_that_mpiexec_starts_on_hosts(mpi_hosts):
    """They are ranks of MPI, too, which sends between the hosts; gloo has an interface."""
    with distlab.Cluster(engines="mpi", hosts={"nodeA": 1, "nodeB": 2}, timeout=20) as cluster:
        assert [(where[0], *where[3:]) for where in cluster.run(place)] == [
            ("nodeA", "0", "1", "0", "eth0"),
            ("nodeB", "0", "2", "1", "eth0"),
            ("nodeB", "1", "2", "1", "eth0"),
        ]
        assert cluster.run(sum_of_ranks) == [3.0] * 3
        assert cluster.run(lambda rank, n: MPI.COMM_WORLD.Get_rank()) == [0, 1, 2]  # noqa: F821
        assert cluster.run(sum_by_mpi) == [3.0] * 3
        words = str(
            raised(distlab.RankDied, cluster.run, lambda rank, n: rank == 1 and os._exit(3))
        )
        assert "mpiexec has ended" in words


def python_and_interface(rank, world_size):
    return sys.executable, os.environ["GLOO_SOCKET_IFNAME"]


def test_another_python_and_interface_on_the_hosts(mpi_hosts, tmp_path):
    """As they are named for mpiexec, too."""
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    engines = distlab.Mpi(python=str(python), interface="eth0")
    with distlab.Cluster(engines=engines, hosts={"nodeA": 1, "nodeB": 1}, timeout=20) as cluster:
        assert cluster.run(python_and_interface) == [(sys.executable, "eth0")] * 2
        (mpiexec,) = cluster.ranks._processes.launcher.programs
        assert (str(python) in mpiexec.args, sys.executable in mpiexec.args) == (True, False)


def test_a_host_that_mpiexec_would_not_reach(mpi_hosts):
    """It is looked at first, because mpiexec does not say what is wrong."""
    words = str(
        raised(
            distlab.errors.HostError,
            distlab.Cluster,
            engines="mpi",
            hosts={"nodeA": 1, "closed": 1},
        )
    )
    assert words.startswith("1 of 2 hosts cannot be used:\n  closed: ssh: connect to host ")
