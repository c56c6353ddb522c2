"""What the launcher receives from its fork servers."""

import socket

import pytest

from distlab.launch.connection import Connection
from distlab.wire.messages import to_json
from distlab.wire.orders import Ended, Forked


def send(server, *reports):
    server.sendall("".join(to_json(report) + "\n" for report in reports).encode())


def connection(*reports, hosts=(0,)):
    """A connection over which these were reported, and which has ended."""
    here, server = socket.socketpair()
    with server:
        send(server, *reports)
    found = Connection(None, here, hosts)
    found.thread.join(10)
    return found


def test_a_process_that_gets_the_number_of_a_dead_one_lives():
    """The system uses numbers of processes again; on a busy machine soon, and on two hosts at any time."""
    ended = Ended(0, engine=0, pid=7, status=-9, log="last words")
    found = connection(Forked(0, 0, 7), ended, Forked(0, 1, 7))
    assert (found.pids, found.ended) == ({0: 7, 1: 7}, {(0, 7): ended})
    assert connection(Forked(0, 0, 7), ended, Forked(0, 0, 7)).ended == {}


@pytest.mark.parametrize("text", ["", "x", "Welcome to nodeA!\n"])
def test_a_connection_that_ends_is_lost(text):
    """Whatever was written last, also by a shell that greets."""
    here, server = socket.socketpair()
    with server:
        server.sendall(text.encode())
    found = Connection(None, here)
    found.thread.join(10)
    assert found.lost == {0: "whose connection has ended"}
