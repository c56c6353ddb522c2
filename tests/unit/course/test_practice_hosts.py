"""Practice hosts without network namespaces: what is refused, and the addresses of loopback."""

import socket
import sys

import pytest

import distlab
from distlab_course import practice
from tests.refused import refused

EXAMPLE = 'Call practice_hosts({"nodeA": 2, "nodeB": 2}).'


@pytest.fixture
def hosts(monkeypatch, tmp_path):
    """Two hosts, as they are where namespaces cannot be made."""
    monkeypatch.setattr(practice, "NETWORKS", tmp_path / "run" / "distlab")
    with practice.practice_hosts({"nodeA": 2, "nodeB": 1}) as made:
        yield made


@pytest.mark.parametrize(
    ("hosts", "words"),
    [
        (
            ["nodeA"],
            f"hosts must be a mapping of host names to numbers of ranks, got ['nodeA']. {EXAMPLE}",
        ),
        ({"../x": 1}, f"name of a host must be letters, digits and hyphens, got '../x'. {EXAMPLE}"),
        ({"nodeA": 0}, f"hosts['nodeA'] must be a whole number of 1 or more, got 0. {EXAMPLE}"),
    ],
)
def test_hosts_that_cannot_be_made(hosts, words):
    """The first fault is named with its rule and an example."""
    assert str(refused(practice.practice_hosts, hosts)) == words


def test_loopback_addresses(hosts):
    """Each host has one, where loopback has several; the commands run here."""
    several = sys.platform == "linux"
    addresses = ["127.0.0.2", "127.0.0.3"] if several else ["127.0.0.1", "127.0.0.1"]
    assert [hosts.address(name) for name in hosts] == addresses
    assert (hosts.kind, hosts.here, hosts.command("nodeA")) == (
        "loopback addresses",
        "127.0.0.1",
        [],
    )
    socket.create_server((hosts.address("nodeB"), 0)).close()


@pytest.mark.parametrize("call", ["cut", "repair", "shape"])
def test_loopback_has_no_cables(hosts, call):
    """The error says why, and what takes their place."""
    error = refused(getattr(hosts, call), "nodeA", kind=distlab.ClusterError)
    assert str(error).startswith(
        "Loopback addresses have no links to shape or cut, and network namespaces, "
    )
    assert str(error).endswith(
        "; distlab.Network describes slow links for Cluster(n, network=...)."
    )
    assert (
        str(refused(getattr(hosts, call), "nodeC"))
        == "name must be one of 'nodeA', 'nodeB', got 'nodeC'."
    )
