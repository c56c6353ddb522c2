"""A cluster whose ranks mpiexec starts on two hosts."""

import os

import distlab
from tests.cluster.conftest import sum_of_ranks
from tests.network.programs import place
from tests.refused import raised


def test_ranks_that_mpiexec_starts_on_hosts(mpi_hosts):
    """They are ranks of MPI, too, and gloo has an interface; nothing is lost by a mistake."""
    with distlab.Cluster(engines="mpi", hosts={"nodeA": 1, "nodeB": 2}, timeout=20) as cluster:
        assert [(where[0], *where[3:]) for where in cluster.run(place)] == [
            ("nodeA", "0", "1", "0", "eth0"),
            ("nodeB", "0", "2", "1", "eth0"),
            ("nodeB", "1", "2", "1", "eth0"),
        ]
        assert cluster.run(sum_of_ranks) == [3.0] * 3
        assert cluster.run(lambda rank, n: MPI.COMM_WORLD.Get_rank()) == [0, 1, 2]  # noqa: F821
        words = str(raised(distlab.RankDied, cluster.run, lambda rank, n: rank == 1 and os._exit(3)))
        assert "mpiexec has ended" in words


def test_mpi_itself_between_the_hosts(mpi_hosts):
    """The backend over mpi4py."""
    where = {"engines": "mpi", "hosts": {"nodeA": 2, "nodeB": 1}}
    with distlab.Cluster(**where, backend="distlab_course.mpi_backend", timeout=20) as cluster:
        assert cluster.run(sum_of_ranks) == [3.0] * 3


def test_a_host_that_mpiexec_would_not_reach(mpi_hosts):
    """It is looked at first, because mpiexec does not say what is wrong."""
    words = str(raised(distlab.HostError, distlab.Cluster, engines="mpi", hosts={"nodeA": 1, "closed": 1}))
    assert words.startswith("1 of 2 hosts cannot be used:\n  closed: ssh: connect to host ")
