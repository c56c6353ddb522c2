"""The control channel: the kernel's questions to the ranks' watchdogs.

Watchdogs answer while their ranks are blocked. `ControlChannel` runs on the notebook's kernel, made
by starting.py; `hello` runs on every rank, `read_available` on both.

The channel listens at one address, that of the loopback interface if all ranks are on this machine,
on a port that the system chose. It has no thread: connections and answers are read when a question
is asked. A rank proves that it knows a token that only this cluster's ranks know. A connection that
has ended, or over which something arrives that is no message, is forgotten: its rank counts as cut
off.
"""

import contextlib
import os
import selectors
import socket
import time
from collections.abc import Iterable

from distlab.compat.ipython import can_type
from distlab.wire.codec import MessageError, from_json, to_json
from distlab.wire.messages import STATUS, TYPED, Answer, Moment, Query
from distlab.wire.rendezvous import listen

HELLO_BYTES = 200  # more than a hello has


def hello(token: str, rank: int) -> bytes:
    """The first line that a rank sends, so short that it arrives in one piece.

    It is different each time and does not contain the token. An eavesdropper on the network cannot
    reuse it, because a channel accepts each nonce only once.
    """
    return _proven(token, f"{rank} {os.urandom(16).hex()}") + b"\n"


def _proven(token: str, claim: str) -> bytes:
    """A claim, and the proof that its author knows the token."""
    import hmac  # it imports OpenSSL, which would delay the start of the fork server

    digest = hmac.digest(token.encode(), claim.encode(), "sha256")
    return f"{claim} {digest.hex()}".encode()


def rank_that_says_hello(token: str, line: bytes, used: set[str]) -> int | None:
    """The rank that has sent this first line; None for a stranger, or a line that was sent before.

    Args:
        token: what only ranks know.
        line: what has come, without its end.
        used: claims of ranks that were accepted; this one is added.
    """
    import hmac

    claim, _, _ = line.decode(errors="replace").rpartition(" ")
    is_proven = hmac.compare_digest(line, _proven(token, claim))
    if claim in used or not is_proven:
        return None
    used.add(claim)
    rank, *_ = claim.split()
    return int(rank)


class ControlChannel:
    """Connections to the watchdogs of one cluster's ranks, the newest one of each rank.

    Attributes:
        address: host, port and token, for `Meeting`.
        listener: the socket to which ranks connect.
        ends: the connection to each rank.
        arrivals: watches all connections; what it selects has something to be read.
        unwaited: whether a cell has left calls that no rank can wait for.
        without_group: whether a cell has destroyed the process group on a rank since it was built.
        texts: what functions of remote calls have printed, by rank, until `printed` returns it.
        asks: what the debuggers of ranks have written that wait for a line; one that has written
            nothing only wants to know whether somebody can type, and is answered at once.
        troubles: what went wrong on watchdogs beside a question, in a line, by rank.
        moments: what has happened on ranks while one was preempted, each with its rank.
    """

    def __init__(self, address: str = "127.0.0.1") -> None:
        self.listener = listen(address)
        self.listener.setblocking(False)
        # for any number of descriptors, and not only for those below 1024
        self.arrivals = selectors.DefaultSelector()
        self.arrivals.register(self.listener, selectors.EVENT_READ)
        self._token = os.urandom(16).hex()
        self.ends: dict[int, socket.socket] = {}
        self._half: dict[int, bytes] = {}  # of an answer, by rank
        self._rest: dict[int, bytes] = {}  # of a question that did not fit, by rank
        self._strangers: list[socket.socket] = []
        self._used: set[str] = set()  # claims of ranks that were accepted
        self.texts: dict[int, str] = {}
        self.asks: dict[int, str] = {}
        self.troubles: dict[int, str] = {}
        self.moments: list[tuple[int, Moment]] = []
        self.unwaited = False
        self.without_group = False
        self._number = 0
        self.address = (*self.listener.getsockname(), self._token)

    def ask(self, ranks: Iterable[int], limit: float, want: str = STATUS) -> dict[int, Answer]:
        """What the ranks answer within `limit` seconds; a rank that does not answer is left out.

        Args:
            ranks: the ranks that are asked.
            limit: seconds to wait for answers; 0 not to wait.
            want: a question or an order, see messages.py.
        """
        deadline = time.monotonic() + limit
        self._number += 1
        question = _as_line(Query(self._number, want))
        wanted = set(ranks)
        asked: set[int] = set()
        answers: dict[int, Answer] = {}
        remaining = 0.0  # the first look does not wait: it takes in what came before the question
        while True:
            for rank, answer in self.receive(remaining):
                if answer.number == self._number:
                    answers[rank] = answer
            # a rank may connect while others are waited for
            for rank in (wanted - asked) & self.ends.keys():
                asked.add(rank)
                self._send(rank, question)
            remaining = deadline - time.monotonic()
            if len(answers) == len(wanted) or remaining <= 0:
                return dict(sorted(answers.items()))

    def printed(self) -> dict[int, str]:
        """What functions of remote calls have printed since the last time, by rank."""
        self.receive(0)
        printed = self.texts
        self.texts = {}
        return printed

    def receive(self, limit: float) -> list[tuple[int, Answer]]:
        """Every message that ranks have sent, each with its rank.

        Args:
            limit: seconds to wait for something to arrive.
        """
        self.arrivals.select(max(0.0, limit))
        self._accept()
        received = []
        for rank in list(self.ends):
            for answer in self._answers_of(rank):
                received.append((rank, answer))
        return received

    def meet(self, ranks: Iterable[int], limit: float) -> None:
        """Accept the connections of these ranks, which have joined the group.

        One that has not connected in time counts as cut off, like one whose connection has ended.

        Args:
            ranks: the ranks.
            limit: seconds to wait for them.
        """
        deadline = time.monotonic() + limit
        self.receive(0)  # a new connection may replace an older one
        while not self.ends.keys() >= set(ranks):
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                return
            self.receive(remaining)

    def answer_debugger(self, rank: int, line: str | None) -> None:
        """Answer the debugger of a rank that waits for a line."""
        self.asks.pop(rank, None)
        if rank in self.ends:
            self._send(rank, _as_line(Query(0, TYPED, line)))

    def _send(self, rank: int, line: bytes) -> None:
        """Send a question or an order, unless the rank has ended, or reads nothing.

        It is short, so it fits into what the system keeps for a rank that reads late. Where only a
        part of it fits, the rest goes before anything else: half of a line would spoil the next.
        Where nothing of it fits, it is dropped: an order must not come late, in another cell.
        """
        if not self._send_rest(rank):
            return
        self._rest[rank] = line
        self._send_rest(rank)
        if self._rest[rank] == line:
            self._rest[rank] = b""

    def _send_rest(self, rank: int) -> bool:
        """Send what is left of the last line to a rank; whether that is all of it."""
        rest = self._rest.get(rank, b"")
        sent = 0
        with contextlib.suppress(OSError):
            sent = self.ends[rank].send(rest)
        self._rest[rank] = rest[sent:]
        return not self._rest[rank]

    def _answers_of(self, rank: int) -> list[Answer]:
        """The answers of a rank that have arrived; a closed connection is forgotten."""
        received = read_available(self.ends[rank], 1 << 16)
        if received == b"":
            self._close(self.ends.pop(rank))
        text = self._half[rank] + (received or b"")
        *lines, half = text.split(b"\n")
        self._half[rank] = half
        answers = []
        try:
            for line in lines:
                answer = from_json(line)
                self._keep(rank, answer)
                answers.append(answer)
        except MessageError as error:  # what comes next would be as wrong
            self.troubles[rank] = str(error)
            if rank in self.ends:
                self._close(self.ends.pop(rank))
        return answers

    def _keep(self, rank: int, answer: Answer) -> None:
        """Keep what a rank reports by itself, and tell its debugger whether somebody can type."""
        if answer.printed:
            self.texts[rank] = self.texts.get(rank, "") + answer.printed
        if answer.error and answer.number == 0:
            self.troubles[rank] = answer.error
        if answer.moment is not None:
            self.moments.append((rank, answer.moment))
        self.unwaited |= answer.unwaited
        self.without_group |= answer.without_group
        if answer.asks == "":
            self.answer_debugger(rank, "" if can_type() else None)
        elif answer.asks is not None:
            self.asks[rank] = answer.asks

    def _accept(self) -> None:
        """Accept the ranks that have connected since; connections without the token are closed."""
        # no pending connection, or the peer has closed it already
        with contextlib.suppress(OSError):
            while True:
                stranger, _ = self.listener.accept()
                stranger.setblocking(False)
                self.arrivals.register(stranger, selectors.EVENT_READ)
                self._strangers.append(stranger)
        for stranger in list(self._strangers):
            first = read_available(stranger, HELLO_BYTES)
            if first is None:
                continue
            self._strangers.remove(stranger)
            line, _, rest = first.partition(b"\n")
            rank = rank_that_says_hello(self._token, line, self._used)
            if rank is None:
                self._close(stranger)
            else:
                self._connect(rank, stranger, rest)

    def _connect(self, rank: int, end: socket.socket, received: bytes) -> None:
        """Take a connection as a rank's, in place of an older one.

        Args:
            rank: the rank.
            end: the connection.
            received: what has arrived after its hello.
        """
        if rank in self.ends:
            self._close(self.ends[rank])
        self.ends[rank] = end
        self._half[rank] = received
        self._rest[rank] = b""

    def close(self) -> None:
        """End every connection; the watchdogs forget the channel."""
        for end in (*self.ends.values(), *self._strangers, self.listener):
            self._close(end)
        self.arrivals.close()

    def _close(self, end: socket.socket) -> None:
        """Close a connection, which is watched no more."""
        with contextlib.suppress(KeyError, ValueError):  # the channel was closed before
            self.arrivals.unregister(end)
        end.close()


def _as_line(query: Query) -> bytes:
    """A question or an order as it travels."""
    return to_json(query).encode() + b"\n"


def read_available(end: socket.socket, most: int) -> bytes | None:
    """What has arrived on a connection; None for nothing yet, b"" if it has ended."""
    try:
        return end.recv(most)
    except BlockingIOError:
        return None
    except OSError:
        return b""
