"""Hosts that this machine makes itself, for tests that need several, and the count of what they must not leave."""

import os
from pathlib import Path

import pytest

import distlab
from distlab.launch import practice_hosts
from distlab.launch.reaper import owner_of_this_process
from tests.processes import wait_until_gone


def networks_left(owner: str = "") -> list[str]:
    """What is there of practice hosts that a process made: folders, namespaces, links, mounts; this one by default."""
    owner = owner or owner_of_this_process()
    numbers = [folder.name.partition("-")[0] for folder in practice_hosts.NETWORKS.glob(f"*-{owner}")]
    places = [*os.listdir("/sys/class/net"), *(path.name for path in practice_hosts.NAMESPACES.glob("*"))]
    places += Path("/proc/self/mounts").read_text().split()
    return [place for place in places for number in numbers if f"distlab{number}" in place] + numbers


@pytest.fixture(autouse=True, scope="module")
def no_network_left():
    """After the tests of a module, no practice host of this process is left."""
    yield
    assert wait_until_gone(networks_left) == []


@pytest.fixture
def hosts(no_network_left):
    """Two hosts, each a network namespace."""
    with distlab.practice_hosts({"nodeA": 2, "nodeB": 2}) as made:
        if made.kind != "network namespaces":
            pytest.skip(f"network namespaces cannot be made here: {made._why}")
        yield made
