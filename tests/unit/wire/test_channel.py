"""The control channel on real loopback sockets: who is let in, who is heard, and who is waited for."""

import contextlib
import socket
import threading
import time

import pytest

from distlab.wire.channel import HELLO_BYTES, ControlChannel, hello
from distlab.wire.messages import STATUS, VARIABLES, Answer, Question, from_json, to_json

PATIENCE = 0.05  # seconds for a rank that will not answer
LONG = 10.0  # for one that will


@pytest.fixture
def channel():
    channel = ControlChannel()
    yield channel
    channel.close()


class Watchdog:
    """A rank's end of the channel; `answers` on a thread of its own, as the watchdog does."""

    def __init__(self, channel, rank):
        self.socket = connect(channel, hello(channel.address[2], rank))

    def questions(self):
        """What is asked, one by one, until the channel is closed."""
        with contextlib.suppress(OSError), self.socket.makefile("rb") as lines:
            yield from map(from_json, lines)

    def answers(self, make):
        """Send what make(question) gives, as bytes or as the name of a variable."""

        def serve():
            for asked in self.questions():
                answer = make(asked)
                self.socket.sendall(answer if isinstance(answer, bytes) else encoded(asked, answer))

        threading.Thread(target=serve, daemon=True).start()
        return self


def encoded(asked, name):
    return to_json(Answer(asked.number, variables=(name,))).encode() + b"\n"


def connect(channel, said):
    end = socket.create_connection(channel.address[:2], timeout=LONG)
    end.sendall(said)
    return end


def is_closed(end):
    """Whether the other side has ended the connection."""
    with contextlib.suppress(ConnectionError):
        return end.recv(1) == b""
    return True


def heard(channel, *ranks, want=STATUS):
    """What the ranks, by default rank 0, answer."""
    answers = channel.ask(ranks or [0], LONG, want)
    return [(rank, *answer.variables) for rank, answer in answers.items()]


def test_ranks_answer_by_rank(channel):
    """Those who are asked, with what is asked for, whatever the order in which they came."""
    questions = []
    for rank in (2, 0, 1):
        Watchdog(channel, rank).answers(lambda asked, rank=rank: questions.append((rank, asked)) or f"rank {rank}")
    assert heard(channel, 0, 1, 2) == [(0, "rank 0"), (1, "rank 1"), (2, "rank 2")]
    questions.clear()
    assert heard(channel, 1, want=VARIABLES) == [(1, "rank 1")]
    assert questions == [(1, Question(2, VARIABLES))]


def test_a_rank_may_come_while_it_is_asked_for(channel):
    """A connection made after the question was put is asked too."""
    threading.Timer(0.05, lambda: Watchdog(channel, 0).answers(lambda asked: "late")).start()
    assert heard(channel) == [(0, "late")]


def test_a_rank_that_does_not_answer_is_left_out_in_time(channel):
    """The others' answers are returned when its patience is over; nobody is waited for where nobody is asked."""
    Watchdog(channel, 0).answers(lambda asked: "well")
    silent = Watchdog(channel, 1)
    began = time.monotonic()
    assert channel.ask([], LONG) == {}
    assert time.monotonic() - began < LONG / 2
    assert list(channel.ask([0, 1, 2], 1.0)) == [0]
    assert 1.0 <= time.monotonic() - began < LONG
    assert next(silent.questions()).want == STATUS


def test_an_answer_that_comes_too_late_is_not_taken_for_the_next(channel):
    """Answers carry the number of their question."""
    late = []

    def answer(asked):
        late.append(asked)
        return encoded(asked, "new") + encoded(late[0], "old") if late[1:] else b""

    Watchdog(channel, 0).answers(answer)
    assert channel.ask([0], PATIENCE) == {}
    assert channel.ask([0], LONG) == {0: Answer(2, variables=("new",))}


def test_an_answer_in_pieces_is_put_together(channel):
    """Half a line is no answer; it is kept until the other half has come."""
    rank, more = Watchdog(channel, 0), threading.Event()

    def answer(asked):
        whole = encoded(asked, "x" * 100_000)
        rank.socket.sendall(whole[:10])
        assert more.wait(LONG)
        return whole[10:]

    rank.answers(answer)
    assert channel.ask([0], PATIENCE) == {}
    threading.Timer(PATIENCE, more.set).start()
    assert heard(channel) == [(0, "x" * 100_000)]


@pytest.mark.parametrize(
    "said",
    [hello("guessed", 0), hello("", 0), b"GET / HTTP/1.1\r\n\r\n", b"\xff\xfe 0", b"x" * 5 * HELLO_BYTES, b"x"],
    ids=["another token", "no token", "a browser", "bytes", "very much", "one letter"],
)
def test_a_stranger_is_turned_away(channel, said):
    """Without the token nobody takes a rank's place, or breaks what the others say."""
    Watchdog(channel, 0).answers(lambda asked: "well")
    stranger = connect(channel, said)
    assert heard(channel) == [(0, "well")]
    assert heard(channel) == [(0, "well")]  # now it has come
    assert is_closed(stranger)


def test_who_has_left_or_says_nothing_disturbs_nobody(channel):
    """A stranger without a word, and a rank that is gone, each time that it is asked."""
    connect(channel, b"")
    connect(channel, b"").close()
    rank = Watchdog(channel, 0).answers(lambda asked: "well")
    assert heard(channel) == [(0, "well")]
    rank.socket.shutdown(socket.SHUT_RDWR)
    for _ in range(3):
        assert channel.ask([0], PATIENCE) == {}


def test_closing_ends_every_connection():
    """The watchdogs see the end of the channel, strangers too, and nobody can connect any more."""
    channel = ControlChannel()
    rank, stranger = Watchdog(channel, 0), connect(channel, b"")
    channel.ask([0], PATIENCE)
    channel.close()
    assert is_closed(stranger)
    assert list(rank.questions())[1:] == []
    with pytest.raises(ConnectionRefusedError):
        connect(channel, b"")
