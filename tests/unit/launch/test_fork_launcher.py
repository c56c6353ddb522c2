"""What the launcher hears from its fork servers."""

import json
import socket
import subprocess

import pytest

from distlab.launch import fork_server
from distlab.launch.fork_connection import Connection
from distlab.launch.fork_launcher import ForkEngineSetLauncher


def connection(*events, hosts=(0,)):
    """A connection over which these events came, and which has ended."""
    here, server = socket.socketpair()
    with server:
        server.sendall("".join(json.dumps(event) + "\n" for event in events).encode())
    found = Connection(None, here, hosts)
    found.thread.join(10)
    return found


def test_a_process_that_gets_the_number_of_a_dead_one_lives():
    """Numbers of processes come again; on a busy machine soon, and on two hosts at any time."""
    ended = {"ended": 0, "pid": 7, "status": -9, "said": "last words"}
    heard = connection({"forked": 0, "pid": 7}, ended, {"forked": 1, "pid": 7})
    assert (heard.pids, heard.exit_codes, heard.said) == ({0: 7, 1: 7}, {(0, 7): -9}, {0: "last words"})


def test_each_host_has_its_engines():
    """One connection to two hosts, as srun's, and a newer one to a host that was lost."""
    launcher = ForkEngineSetLauncher(homes=(0, 0, 1))
    forked = [
        {"host": 0, "forked": 0, "pid": 5},
        {"host": 0, "forked": 1, "pid": 6},
        {"host": 1, "forked": 2, "pid": 5},
    ]
    old = connection({"host": 0, "store": ["10.0.0.1", 4000]}, *forked, hosts=(0, 1))
    launcher.use([old])
    assert (launcher.pids, launcher.store) == ({0: 5, 1: 6, 2: 5}, ("10.0.0.1", 4000))
    assert [launcher.why_lost(engine) for engine in range(3)] == ["whose connection has ended"] * 3
    here, server = socket.socketpair()
    with server:
        launcher.use([old, Connection(None, here, [1])])
        assert [bool(launcher.why_lost(engine)) for engine in range(3)] == [True, True, False]
        launcher.signal_engines([2], 15)
        assert json.loads(server.recv(1000)) == {"host": 1, "ids": [2], "signal": 15}


def test_a_host_that_falls_silent_is_lost(monkeypatch):
    """It gave signs of life; its engines are told of as ended, and those of the other host are not."""
    monkeypatch.setattr("distlab.launch.fork_connection.SILENCE_SECONDS", 0.2)
    monkeypatch.setattr("distlab.launch.fork_connection.BEAT_SECONDS", 0.05)
    here, server = socket.socketpair()
    found, ended = Connection(subprocess.Popen(["true"]), here, (0, 1)), []
    found.when_ended = ended.append
    with server:
        for host in (0, 1):
            server.sendall(json.dumps({"host": host, "forked": host, "pid": 9}).encode() + b"\n")
        for _ in range(10):
            server.sendall(b'{"host": 0, "beat": 1}\n')
            if not found.lost:
                server.sendall(b'{"host": 1, "beat": 1}\n' if _ == 0 else b"")
            found.thread.join(0.05)
        assert (list(found.lost), ended) == ([1], [1])
    found.thread.join(10)
    assert found.process.wait() == 0


@pytest.mark.parametrize("text", ["", "x"])
def test_a_connection_that_ends_is_lost(text):
    """Whatever was said last."""
    here, server = socket.socketpair()
    with server:
        server.sendall(text.encode())
    found = Connection(None, here)
    found.thread.join(10)
    assert found.lost == {0: "whose connection has ended"}


def test_a_program_that_ends_at_once_is_a_lost_connection(tmp_path):
    """As srun with words that it refuses: it may be gone before the plan is sent."""
    plan = {"arguments": [], "stay": True, "environment": {}, "more": "x" * 300_000}
    found = Connection(*fork_server.start(["false"], plan, str(tmp_path / "log")))
    found.thread.join(10)
    assert (found.lost, found.process.wait()) == ({0: "whose connection has ended"}, 1)
