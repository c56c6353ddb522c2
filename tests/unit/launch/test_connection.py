"""What is received from fork servers."""

import socket

from distlab.launch.connection import Connection, Servers
from distlab.wire.codec import to_json
from distlab.wire.orders import EngineProcess


def connection(*lines):
    """A connection over which these were reported, and which has ended."""
    here, server = socket.socketpair()
    with server:
        server.sendall("\n".join(line if isinstance(line, str) else to_json(line) for line in (*lines, "")).encode())
    found = Connection(None, here, (0,), Servers((0, 0), lambda engine: None))
    found.thread.join(10)
    return found


def test_a_process_that_gets_the_number_of_a_dead_one_lives():
    """The system uses numbers of processes again; on a busy machine soon, and on two hosts at any time."""
    ended = EngineProcess(engine=0, pid=7, status=-9, log="last words")
    found = connection(EngineProcess(0, 7), ended, EngineProcess(1, 7))
    assert found.engines == {(0, 7): ended, (1, 7): EngineProcess(1, 7)}
    again = connection("a shell there may greet", EngineProcess(0, 7), ended, EngineProcess(0, 7))
    assert (again.engines, again.lost) == ({(0, 7): EngineProcess(0, 7)}, {0: "whose connection has ended"})
