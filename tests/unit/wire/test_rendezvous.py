"""Ports and addresses of this machine."""

import errno
import socket

import pytest

from distlab.wire.rendezvous import free_ports


def test_ports_that_are_free_are_found_beside_those_that_are_not(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        own = taken.getsockname()[1]
        starts = iter([own, own - 1, 20_000])
        monkeypatch.setattr("random.Random.randrange", lambda *_: next(starts))
        assert free_ports(2) == [20_000, 20_001]


def test_an_address_of_another_machine_has_no_ports_here():
    """They were looked for without end."""
    with pytest.raises(OSError, match="assign requested address") as refused:
        free_ports(1, "203.0.113.1")
    assert refused.value.errno == errno.EADDRNOTAVAIL
