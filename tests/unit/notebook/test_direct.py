"""Calls to ranks without ipyparallel: replies, exceptions, and ranks that end."""

import operator
import os
import socket
import subprocess
import sys
import time

import pytest

from distlab.compat.ipyparallel import Replies, engines_with_work
from distlab.notebook.direct import CallFailed, DirectClient
from distlab.wire import direct


@pytest.fixture
def client():
    made = DirectClient()
    made.start()
    yield made
    made.close()
    assert made.ids == []


@pytest.fixture
def ranks(client):
    """Two ranks in processes of their own; torch is not needed for a call."""
    code = "from distlab.rank.serving import serve; serve(%d)"
    environment = {**os.environ, **client.variables}
    processes = [
        subprocess.Popen([sys.executable, "-c", code % rank], env=environment) for rank in (0, 1)
    ]
    deadline = time.monotonic() + 60
    while client.ids != [0, 1] and time.monotonic() < deadline:
        time.sleep(0.01)
    yield processes
    for process in processes:
        process.kill()
        process.wait()


def test_ranks_call_what_they_are_sent(client, ranks):
    sent = Replies(client.direct_view("all").apply_async(operator.add, 1, 2), [0, 1])
    assert sent.result.wait(60)
    assert sent.so_far() == {0: 3, 1: 3}
    assert sent.result.get() == [3, 3]
    memory = memoryview(b"abc")
    assert client.direct_view([1]).apply_async(bytes.upper, memory.obj).get() == [b"ABC"]
    assert client.direct_view([1]).apply_async(len, [memory, 1]).get() == [2]
    assert engines_with_work(client) == set()


def test_what_a_call_raises_comes_back_in_words(client, ranks):
    result = client.direct_view([0]).apply_async(operator.truediv, 1, 0)
    (error,) = result.get(return_exceptions=True)
    assert isinstance(error, CallFailed)
    assert (error.ename, error.evalue) == ("ZeroDivisionError", "division by zero")


def test_a_rank_that_ends_fails_what_it_was_sent(client, ranks):
    result = client.direct_view([0, 1]).apply_async(time.sleep, 60)
    assert not result.wait(0.1)
    assert engines_with_work(client) == {0, 1}
    for process in ranks:
        process.kill()
    assert result.wait(60)
    assert client.ids == []
    (error, _) = result.get(return_exceptions=True)
    assert str(error) == "EngineError: rank 0 has ended"
    with pytest.raises(KeyError):
        client.direct_view([0]).apply_async(len, ())


def test_a_stranger_is_not_taken_in_and_one_that_says_nothing_keeps_nobody(client, ranks):
    port, _ = client.variables[direct.VARIABLE].split(":")
    address = ("127.0.0.1", int(port))
    with socket.create_connection(address), socket.create_connection(address) as stranger:
        stranger.sendall(b"0 abc 0123456789\n")
        stranger.settimeout(60)
        assert stranger.recv(1) == b""
        assert client.direct_view([0]).apply_async(len, ()).get() == [0]
    assert client.ids == [0, 1]
