"""The line to the sentinels on real loopback sockets: who is let in, who is heard, and who is waited for."""

import contextlib
import json
import select
import socket
import threading
import time

import pytest

from distlab.line import HELLO_BYTES, Line

PATIENCE = 0.05  # seconds for a rank that will not answer
LONG = 10.0  # for one that will


@pytest.fixture
def line():
    line = Line()
    yield line
    line.close()


class Sentinel:
    """A rank's end of the line; `answers` on a thread of its own, as the sentinel does."""

    def __init__(self, line: Line, rank: int, **hello):
        self.socket = connect(line)
        self.say({"token": line.address[2], "rank": rank, "pid": 1, **hello})

    def say(self, value) -> None:
        self.socket.sendall(json.dumps(value).encode() + b"\n")

    def questions(self):
        """What is asked, one by one, until the line is closed."""
        with contextlib.suppress(OSError), self.socket.makefile("rb") as lines:
            yield from map(json.loads, lines)

    def answers(self, make) -> "Sentinel":
        """Send make(question) back as it is; the number goes with a dict."""

        def serve():
            for asked in self.questions():
                answer = make(asked)
                self.socket.sendall(answer if isinstance(answer, bytes) else encoded(asked, answer))

        threading.Thread(target=serve, daemon=True).start()
        return self


def encoded(asked, answer) -> bytes:
    return json.dumps({**answer, "number": asked["number"]}).encode() + b"\n"


def connect(line: Line) -> socket.socket:
    end = socket.create_connection(line.address[:2], timeout=LONG)
    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return end


def is_closed(end: socket.socket) -> bool:
    """Whether the other side has ended the connection."""
    with contextlib.suppress(ConnectionError):
        return end.recv(1) == b""
    return True


def test_it_listens_on_the_loopback_interface_only(line):
    """Host, port and token are what a rank needs; the token cannot be guessed."""
    host, port, token = line.address
    assert host == "127.0.0.1"
    assert port > 0
    assert len(token) == 32
    other = Line()
    other.close()
    assert other.address[2] != token


def test_ranks_answer_by_rank(line):
    """Every rank that is asked answers, whatever the order in which they came."""
    for rank in (2, 0, 1):
        Sentinel(line, rank).answers(lambda asked, rank=rank: {"doing": f"rank {rank}"})
    answers = line.ask([0, 1, 2], LONG)
    assert list(answers) == [0, 1, 2]
    assert [answer["doing"] for answer in answers.values()] == ["rank 0", "rank 1", "rank 2"]


def test_only_those_who_are_asked_are_asked(line):
    """A question goes to the given ranks, with what is asked for."""
    heard = []
    for rank in (0, 1):
        Sentinel(line, rank).answers(lambda asked, rank=rank: heard.append((rank, asked)) or {})
    assert list(line.ask([1], LONG, variables=True)) == [1]
    assert heard == [(1, {"number": 1, "variables": True})]


def test_a_rank_may_come_while_it_is_asked_for(line):
    """A connection made after the question was put is asked too."""
    threading.Timer(0.05, lambda: Sentinel(line, 0).answers(lambda asked: {"doing": "late"})).start()
    assert line.ask([0], LONG)[0]["doing"] == "late"


def test_nobody_is_waited_for_where_nobody_is_asked(line):
    """No ranks, no patience."""
    began = time.monotonic()
    assert line.ask([], LONG) == {}
    assert time.monotonic() - began < LONG / 2


def test_a_rank_that_does_not_answer_is_left_out_in_time(line):
    """The others' answers are returned when its patience is over."""
    Sentinel(line, 0).answers(lambda asked: {})
    silent = Sentinel(line, 1)
    began = time.monotonic()
    assert list(line.ask([0, 1, 2], 1.0)) == [0]
    assert 1.0 <= time.monotonic() - began < LONG
    assert next(silent.questions()) == {"number": 1}


def test_an_answer_that_comes_too_late_is_not_taken_for_the_next(line):
    """Answers carry the number of their question."""
    late, asked_twice = [], threading.Event()

    def answer(asked):
        if asked["number"] == 1:
            late.append(asked)
            return b""
        asked_twice.set()
        return encoded(late[0], {"doing": "old"}) + encoded(asked, {"doing": "new"})

    Sentinel(line, 0).answers(answer)
    assert line.ask([0], PATIENCE) == {}
    assert line.ask([0], LONG) == {0: {"doing": "new", "number": 2}}
    assert asked_twice.is_set()


def test_an_answer_in_pieces_is_put_together(line):
    """Half a line is kept until the other half has come."""
    rank = Sentinel(line, 0)

    def answer(asked):
        whole = encoded(asked, {"doing": "x" * 100_000})
        rank.socket.sendall(whole[:10])
        time.sleep(0.02)
        return whole[10:]

    rank.answers(answer)
    assert len(line.ask([0], LONG)[0]["doing"]) == 100_000


def test_half_a_line_is_no_answer(line):
    """What has not ended does not count."""
    Sentinel(line, 0).answers(lambda asked: encoded(asked, {})[:-1])
    assert line.ask([0], PATIENCE) == {}


@pytest.mark.parametrize(
    "garbage",
    [b"\xff\xfe\n", b"not json\n", b"[1, 2]\n", b"\n\n", b"null\n", b"1e999999\n", b"[" * 100_000 + b"\n"],
    ids=["bytes", "text", "a list", "nothing", "null", "a huge number", "a deep list"],
)
def test_garbage_before_an_answer_is_passed_over(line, garbage):
    """What is not a JSON object is nobody's answer, and does no harm."""
    Sentinel(line, 0).answers(lambda asked: garbage + encoded(asked, {"doing": "well"}))
    assert line.ask([0], LONG)[0]["doing"] == "well"


def test_the_newest_connection_of_a_rank_wins(line):
    """A new process in a rank's place is heard; the old connection is ended."""
    old = Sentinel(line, 0).answers(lambda asked: {"doing": "old"})
    assert line.ask([0], LONG)[0]["doing"] == "old"
    Sentinel(line, 0).answers(lambda asked: {"doing": "new"})
    while line.ask([0], LONG)[0]["doing"] == "old":
        pass  # the new one is on its way
    assert is_closed(old.socket)


@pytest.mark.parametrize(
    "hello",
    [{"token": "guessed"}, {"token": ""}, {"token": None}, {"token": 5}, {"token": "é"}, {"token": "\ud800"}, {}],
    ids=["wrong", "empty", "null", "a number", "not ASCII", "half a character", "none"],
)
def test_a_stranger_is_turned_away(line, hello):
    """Without the token nobody takes a rank's place, or breaks what the others say."""
    Sentinel(line, 0).answers(lambda asked: {"doing": "well"})
    stranger = connect(line)
    stranger.sendall(json.dumps({"rank": 0, **hello}).encode() + b"\n")
    deadline = time.monotonic() + LONG
    while not select.select([stranger], [], [], 0)[0] and time.monotonic() < deadline:
        assert line.ask([0], LONG)[0]["doing"] == "well"
    assert is_closed(stranger)
    assert line.ask([0], LONG)[0]["doing"] == "well"


@pytest.mark.parametrize("said", [b"GET / HTTP/1.1\r\n\r\n", b"x" * 100, b"[" * 4000 + b"\n"])
def test_a_stranger_that_talks_nonsense_disturbs_nobody(line, said):
    """A port scanner, or a browser, is not heard, and the ranks are."""
    stranger = connect(line)
    stranger.sendall(said)
    Sentinel(line, 0).answers(lambda asked: {"doing": "well"})
    for _ in range(3):
        assert line.ask([0], LONG)[0]["doing"] == "well"
    stranger.close()


def test_a_stranger_that_talks_without_end_is_turned_away(line):
    """More than a hello's length is not listened to: neither time nor memory is spent on it."""
    stranger = connect(line)
    gone = threading.Event()

    def flood():
        with contextlib.suppress(OSError):
            while True:
                stranger.sendall(b"x" * HELLO_BYTES)
        gone.set()

    threading.Thread(target=flood, daemon=True).start()
    Sentinel(line, 0).answers(lambda asked: {})
    deadline = time.monotonic() + LONG
    while not gone.is_set() and time.monotonic() < deadline:
        assert list(line.ask([0], LONG)) == [0]
    assert gone.is_set()
    assert line._strangers == []


def test_a_stranger_that_leaves_is_forgotten(line):
    """A connection that ends before it has said anything costs nothing later."""
    connect(line).close()
    Sentinel(line, 0).answers(lambda asked: {})
    assert list(line.ask([0], LONG)) == [0]
    assert line.ask([1], PATIENCE) == {}
    assert line._strangers == []


def test_a_rank_that_is_gone_is_left_out(line):
    """A closed connection is no answer, each time that it is asked."""
    rank = Sentinel(line, 0).answers(lambda asked: {})
    assert list(line.ask([0], LONG)) == [0]
    rank.socket.shutdown(socket.SHUT_RDWR)
    rank.socket.close()
    for _ in range(3):
        assert line.ask([0], PATIENCE) == {}


def test_closing_ends_every_connection():
    """The sentinels see the end of the line, strangers too, and nobody can connect any more."""
    line = Line()
    rank, stranger = Sentinel(line, 0), connect(line)
    rank.answers(lambda asked: {})
    line.ask([0], LONG)
    line.close()
    assert is_closed(stranger)
    with pytest.raises(ConnectionRefusedError):
        connect(line)
