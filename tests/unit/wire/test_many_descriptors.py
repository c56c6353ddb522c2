"""Every wait works with descriptors above 1023, which select.select cannot take.

A notebook with many files open, or a cluster of a thousand ranks, has them.
"""

import contextlib
import os
import resource
import socket
import threading
from pathlib import Path

import pytest

import distlab
from distlab.notebook.connection import Connection, Servers
from distlab.rank import watchdog
from distlab.wire.channel import ControlChannel, hello
from distlab.wire.codec import from_json, to_json
from distlab.wire.messages import Answer
from distlab.wire.orders import Alive, EngineProcess
from tests.processes import python

MOST = 1024  # of select.select


@pytest.fixture(scope="module")
def many():
    """Whatever is opened now has a descriptor above 1023."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 2 * MOST:
        pytest.skip("this process may not open as many files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2 * MOST), hard))
    with contextlib.ExitStack() as files:
        while files.enter_context(open(os.devnull)).fileno() < MOST:
            pass
        yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_the_control_channel(many):
    """A question is answered; the end of a connection is noticed."""
    with contextlib.closing(ControlChannel()) as channel:
        with socket.create_connection(channel.address[:2]) as end:
            assert min(end.fileno(), channel.listener.fileno()) > MOST
            end.sendall(hello(channel.address[2], 0))
            channel.meet([0], 10)
            assert channel.ends[0].fileno() > MOST
            end.sendall(to_json(Answer(1, clock=5)).encode() + b"\n")
            assert channel.ask([0], 10)[0].clock == 5
        while channel.ends:
            channel.receive(10)


def test_a_connection_to_fork_servers(many):
    """Reports and heartbeats are read."""
    here, server = socket.socketpair()
    with server:
        found = Connection(None, here, (0,), Servers((0, 0), lambda engine: None))
        found.start()
        assert here.fileno() > MOST
        server.sendall((to_json(Alive(0)) + "\n" + to_json(EngineProcess(0, 7)) + "\n").encode())
        assert from_json(server.makefile().readline()) == Alive(0)
    found.join(10)
    assert (found.engines, found.trouble) == ({(0, 7): EngineProcess(0, 7)}, "")


def test_a_watchdog(many):
    """It sees what arrives, and the end."""
    near, far = socket.socketpair()
    with near:
        arrivals = watchdog._watched(near)
        assert near.fileno() > MOST
        assert arrivals.poll(0) == []
        threading.Timer(0.05, far.close).start()
        assert arrivals.poll(10_000)


SERVER = """
import os, socket, threading
from distlab.launch.fork_server import Server
from distlab.wire.codec import from_json, to_json
from distlab.wire.orders import Alive
import resource
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (2048, hard))
files = [open(os.devnull) for _ in range(1100)]
here, there = socket.socketpair()
server = Server(os.dup(there.fileno()), os.dup(there.fileno()))
there.close()
lines = here.makefile()
def answer():
    print(from_json(lines.readline()))
    here.sendall(to_json(Alive(1)).encode() + b"\\n")
    here.shutdown(socket.SHUT_WR)
threading.Thread(target=answer).start()
server.serve(None, beats=True)
print("ended")
"""


def test_a_fork_server(many):
    """It beats, hears and ends."""
    done = python("-c", SERVER)
    assert (done.stdout, done.stderr) == ("Alive(host=0)\nended\n", "")


def test_nothing_else_uses_select():
    """But for a program of its own in the course, whose descriptors are small."""
    sources = Path(distlab.__file__).parent.rglob("*.py")
    assert [
        path.name for path in sources if "select.select(" in path.read_text(encoding="utf-8")
    ] == []
