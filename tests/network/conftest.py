"""Hosts that this machine makes itself, and the count of what they must not leave."""

import os
from pathlib import Path

import pytest

from distlab.notebook import mpiexec
from distlab_course import practice
from tests.network import daemons
from tests.processes import wait_until_gone


def networks_left(owner: int = 0) -> list[str]:
    """What is there of a process's practice hosts: folders, namespaces, links, mounts."""
    owners = practice.NETWORKS.glob("*/owner")
    numbers = [path.parent.name for path in owners if path.read_text() == str(owner or os.getpid())]
    places = [*os.listdir("/sys/class/net"), *(path.name for path in practice.NAMESPACES.glob("*"))]
    places += Path("/proc/self/mounts").read_text().split()
    return [
        place for place in places for number in numbers if f"distlab{number}" in place
    ] + numbers


@pytest.fixture(autouse=True, scope="module")
def no_network_left():
    """After the tests of a module, no practice host of this process is left."""
    yield
    assert wait_until_gone(networks_left) == []


@pytest.fixture
def hosts(no_network_left):
    """Two hosts, each a network namespace."""
    with daemons.namespaces(nodeA=2, nodeB=2) as made:
        yield made


@pytest.fixture(scope="module")
def environment():
    """The environment of this process, for the tests of a module."""
    with pytest.MonkeyPatch.context() as patch:
        yield patch


@pytest.fixture(scope="module")
def ssh_hosts(no_network_left, environment, tmp_path_factory):
    """Two hosts that `ssh nodeA` and `ssh nodeB` reach, with 4 ranks each, and bad ones."""
    with daemons.ssh_hosts(tmp_path_factory.mktemp("ssh")) as made:
        environment.setenv("PATH", str(made.programs), prepend=os.pathsep)
        yield made


@pytest.fixture(scope="module")
def mpi_hosts(ssh_hosts, environment):
    """The same, where PyPI's mpiexec starts processes through ssh."""
    if not mpiexec.find_mpiexec():
        pytest.skip(f"mpiexec is not installed here: {mpiexec.INSTALL}")
    environment.setenv("HYDRA_LAUNCHER", "ssh")
    environment.setenv("HYDRA_LAUNCHER_EXEC", str(ssh_hosts.programs / "ssh"))
    return ssh_hosts


@pytest.fixture(scope="module")
def slurm(no_network_left, environment, tmp_path_factory):
    """A Slurm with nodes nodeA and nodeB, and the partitions debug and down."""
    folder = tmp_path_factory.mktemp("slurm")
    with daemons.slurm(folder) as made:
        environment.setenv("SLURM_CONF", str(folder / "slurm.conf"))
        yield made
