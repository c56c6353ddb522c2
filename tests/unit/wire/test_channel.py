"""The control channel on loopback: which connections count, which answers are awaited."""

import contextlib
import socket
import threading
import time

import pytest

from distlab.wire.channel import HELLO_BYTES, ControlChannel, hello
from distlab.wire.codec import from_json, to_json
from distlab.wire.messages import STATUS, TYPED, VARIABLES, Answer, Query

LONG = 10.0  # seconds for a rank that will answer


OPENED = contextlib.ExitStack()  # the ranks' ends of the connections, which each test closes


@pytest.fixture
def channel():
    with OPENED, contextlib.closing(ControlChannel()) as channel:
        yield channel


def connect(channel, first):
    end = OPENED.enter_context(socket.create_connection(channel.address[:2], timeout=LONG))
    end.sendall(first)
    return end


def watchdog(channel, rank, make):
    """A rank's end of the channel, which sends what make(question) gives."""
    end = connect(channel, hello(channel.address[2], rank))

    def serve():
        with contextlib.suppress(OSError), end.makefile("rb") as lines:
            for question in map(from_json, lines):
                answer = make(question)
                end.sendall(answer if isinstance(answer, bytes) else encoded(question, answer))

    threading.Thread(target=serve, daemon=True).start()
    return end


def encoded(question, name):
    return to_json(Answer(question.number, variables=(name,))).encode() + b"\n"


def answers(channel, *ranks, want=STATUS):
    """What the ranks, by default rank 0, answer."""
    return {
        rank: answer.variables[0] for rank, answer in channel.ask(ranks or [0], LONG, want).items()
    }


def is_closed(end):
    """Whether the other side has ended the connection."""
    with contextlib.suppress(ConnectionError):
        return end.recv(1) == b""
    return True


def test_ranks_answer_by_rank(channel):
    """Whatever the order in which they came; also during the question."""
    questions = []
    threading.Timer(
        0.05, watchdog, [channel, 1, lambda question: questions.append(question) or "rank 1"]
    ).start()
    for rank in (2, 0):
        watchdog(channel, rank, lambda question, rank=rank: f"rank {rank}")
    assert answers(channel, 0, 1, 2) == {0: "rank 0", 1: "rank 1", 2: "rank 2"}
    assert answers(channel, 1, want=VARIABLES) == {1: "rank 1"}
    assert questions[1:] == [Query(2, VARIABLES)]


def test_a_rank_that_does_not_answer_is_left_out_in_time(channel):
    """The others' answers are returned at the limit."""
    watchdog(channel, 0, lambda question: "well")
    watchdog(channel, 1, lambda question: b"")
    began = time.monotonic()
    assert channel.ask([], LONG) == {}
    assert time.monotonic() - began < LONG / 2
    assert list(channel.ask([0, 1, 2], 1.0)) == [0]
    assert 1.0 <= time.monotonic() - began < LONG


def test_an_answer_that_is_late_or_in_pieces(channel):
    """A late answer has its question's number; pieces are put together."""
    asked = []

    def answer(question):
        asked.append(question)
        whole = encoded(question, "x" * 100_000)
        return (b"", whole + encoded(asked[0], "late"), whole[:10], whole[10:])[len(asked) - 1]

    watchdog(channel, 0, answer)
    assert channel.ask([0], 0.05) == {}
    assert channel.ask([0], LONG) == {0: Answer(2, variables=("x" * 100_000,))}
    assert channel.ask([0], 0.05) == {}
    assert channel.ask([0], LONG) == {0: Answer(4, variables=("x" * 100_000,))}


@pytest.mark.parametrize(
    "first",
    [
        hello("guessed", 0),
        hello("", 0),
        b"GET / HTTP/1.1\r\n\r\n",
        b"\xff\xfe 0",
        b"x" * 5 * HELLO_BYTES,
    ],
    ids=["another token", "no token", "a browser", "bytes", "very much"],
)
def test_a_stranger_is_turned_away(channel, first):
    """Without the token no program takes a rank's place; one may send nothing."""
    watchdog(channel, 0, lambda question: "well")
    connect(channel, b"")
    connect(channel, b"").close()
    stranger = connect(channel, first)
    for _ in range(2):  # at the second question it has come
        assert answers(channel) == {0: "well"}
    assert is_closed(stranger)


def test_closing_ends_every_connection(channel):
    """The watchdogs see it, strangers too, and no program can connect any more."""
    rank = watchdog(channel, 0, lambda question: "well")
    stranger = connect(channel, b"")
    assert answers(channel) == {0: "well"}
    channel.close()
    assert is_closed(stranger)
    assert is_closed(rank)
    with pytest.raises(ConnectionRefusedError):
        connect(channel, b"")


@pytest.mark.parametrize(("somebody", "line"), [(True, ""), (False, None)])
def test_a_rank_at_a_breakpoint_learns_whether_somebody_can_type(
    channel, monkeypatch, somebody, line
):
    """At once; no person is asked before it has something to show."""
    monkeypatch.setattr("distlab.wire.channel.can_type", lambda: somebody)
    with connect(
        channel, hello(channel.address[2], 0) + to_json(Answer(0, asks="")).encode() + b"\n"
    ) as end:
        while not channel.ends:
            channel.receive(LONG)
        channel.receive(0)
        with end.makefile("rb") as lines:
            assert from_json(next(lines)) == Query(0, TYPED, line)
        assert channel.asks == {}


def test_a_rank_that_reads_late_receives_whole_questions(channel):
    """Those that did not fit are left out, and none is cut where the space ended."""
    rank = connect(channel, hello(channel.address[2], 0))
    channel.meet([0], LONG)
    channel.ends[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)  # the least there is
    while not channel._rest[0]:
        channel.ask([0], limit=0, want="a question " * 200)
    received = b""
    while channel._rest[0]:
        received += rank.recv(1 << 20)
        channel.ask([0], limit=0)
    channel.ask([0], limit=0, want="last")
    while not received.endswith(b'"last", "line": null}\n'):
        received += rank.recv(1 << 20)
    questions = [from_json(line) for line in received.splitlines()]
    assert {one.want for one in questions} == {"a question " * 200, STATUS, "last"}
