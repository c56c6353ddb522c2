"""What the launcher receives from its fork servers."""

import socket
import subprocess

import pytest

from distlab.launch import fork_server
from distlab.launch.connection import Connection
from distlab.launch.fork_launcher import ForkEngineSetLauncher
from distlab.wire.messages import from_json, to_json
from distlab.wire.orders import Alive, Ended, Forked, ServerPlan, SignalOrder, StoreAddress


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


def test_each_host_has_its_engines():
    """One connection to two hosts, as srun's, and a newer one to a host that was lost."""
    launcher = ForkEngineSetLauncher(host_of_engine=(0, 0, 1))
    forked = [Forked(host=0, engine=0, pid=5), Forked(host=0, engine=1, pid=6), Forked(host=1, engine=2, pid=5)]
    old = connection(StoreAddress(0, "10.0.0.1", 4000), *forked, hosts=(0, 1))
    launcher.use([old])
    assert (launcher.pids, launcher.store) == ({0: 5, 1: 6, 2: 5}, ("10.0.0.1", 4000))
    assert [launcher.why_lost(engine) for engine in range(3)] == ["whose connection has ended"] * 3
    here, server = socket.socketpair()
    with server:
        launcher.use([old, Connection(None, here, [1])])
        assert [bool(launcher.why_lost(engine)) for engine in range(3)] == [True, True, False]
        launcher.signal_engines([2], 15)
        assert from_json(server.recv(1000)) == SignalOrder(1, (2,), 15)


def test_a_host_that_falls_silent_is_lost(monkeypatch):
    """It gave signs of life; its engines are reported as ended, and those of the other host are not."""
    monkeypatch.setattr("distlab.launch.connection.SILENCE_SECONDS", 0.5)
    monkeypatch.setattr("distlab.launch.connection.BEAT_SECONDS", 0.05)
    here, server = socket.socketpair()
    found, ended = Connection(subprocess.Popen(["true"]), here, (0, 1)), []
    found.when_ended = ended.append
    with server:
        send(server, Forked(0, 0, 9), Forked(1, 1, 9), Alive(1))
        for _ in range(100):
            send(server, Alive(0))
            found.thread.join(0.02)
            if found.lost:
                break
        assert (list(found.lost), ended) == ([1], [1])
    found.thread.join(10)
    assert found.process.wait() == 0


@pytest.mark.parametrize("text", ["", "x", "Welcome to nodeA!\n"])
def test_a_connection_that_ends_is_lost(text):
    """Whatever was written last, also by a shell that greets."""
    here, server = socket.socketpair()
    with server:
        server.sendall(text.encode())
    found = Connection(None, here)
    found.thread.join(10)
    assert found.lost == {0: "whose connection has ended"}


def test_a_program_that_ends_at_once_is_a_lost_connection(tmp_path):
    """As srun with words that it refuses: it may have ended before the plan is sent."""
    plan = ServerPlan(("x" * 300_000,), {})
    found = Connection(*fork_server.start(["false"], plan, str(tmp_path / "log")))
    found.thread.join(10)
    assert (found.lost, found.process.wait()) == ({0: "whose connection has ended"}, 1)
