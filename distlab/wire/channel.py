"""The control channel to the ranks' watchdogs: what a rank does, asked and answered while the rank is blocked.

Runs on the notebook's kernel, called by cell.py and ranks.py. It listens at one address, of the loopback interface
where all ranks are on this machine, on a port that the system chose, and takes no thread: connections and answers are
looked at when something is asked. A rank proves that it knows a token that only this cluster's ranks know.
"""

from __future__ import annotations

import contextlib
import hmac
import secrets
import select
import socket
import time
from collections.abc import Iterable

from distlab.wire.messages import STATUS, Answer, Printed, Question, from_json, to_json
from distlab.wire.rendezvous import listen

PATIENCE_SECONDS = 0.25  # what a rank has to answer; one that does not is stopped, or holds Python's lock
HELLO_BYTES = 200  # more than a rank says before it is known


def hello(token: str, rank: int) -> bytes:
    """The first that a rank says, a line so short that it comes in one piece; different each time, without the token.

    Whoever hears it on a network can do nothing with it, because a channel takes each nonce once.
    """
    said = f"{rank} {secrets.token_hex(16)}"
    return f"{said} {_proof(token, said)}\n".encode()


def _proof(token: str, said: str) -> str:
    return hmac.digest(token.encode(), said.encode(), "sha256").hex()


class ControlChannel:
    """Connections to the watchdogs of one cluster's ranks, the newest one of each rank.

    Attributes:
        address: host, port and token, for `rendezvous.Meeting`.
    """

    def __init__(self, address: str = "127.0.0.1") -> None:
        self._listener = listen(address)
        self._listener.setblocking(False)
        self._token = secrets.token_hex(16)
        self._ends: dict[int, socket.socket] = {}
        self._half: dict[int, bytes] = {}  # of an answer, by rank
        self._strangers: list[socket.socket] = []
        self._said: set[str] = set()  # by ranks that were let in
        self._printed: dict[int, str] = {}
        self._number = 0
        self.address = (*self._listener.getsockname(), self._token)

    def ask(self, ranks: Iterable[int], patience: float = PATIENCE_SECONDS, want: str = STATUS) -> dict[int, Answer]:
        """What the ranks answer within `patience` seconds; one that does not is left out.

        Args:
            want: a question or an order, see messages.py.
        """
        deadline = time.monotonic() + patience
        self._number += 1
        question = to_json(Question(self._number, want)).encode() + b"\n"
        ranks, asked, answers = set(ranks), set(), {}
        while True:
            self._welcome()
            for rank in ranks & set(self._ends) - asked:
                asked.add(rank)
                with contextlib.suppress(OSError):  # a question is short: it fits, or the rank has not read for long
                    self._ends[rank].send(question)
            for rank in asked & set(self._ends) - set(answers):
                for heard in self._hear(rank):
                    if heard.number == self._number:
                        answers[rank] = heard
            left = deadline - time.monotonic()
            if len(answers) == len(ranks) or left <= 0:
                return dict(sorted(answers.items()))
            waiting = [self._ends[rank] for rank in asked & set(self._ends) - set(answers)]
            select.select([self._listener, *self._strangers, *waiting], [], [], left)

    def printed(self) -> dict[int, str]:
        """What functions of remote calls have printed since this was asked last, by the rank that ran them."""
        self._welcome()
        for rank in list(self._ends):
            self._hear(rank)
        printed, self._printed = self._printed, {}
        return printed

    def _hear(self, rank: int) -> list[Answer]:
        """The answers of a rank that have come since, whose end is forgotten when it is closed."""
        received = receive(self._ends[rank], 1 << 16)
        if received == b"":
            self._ends.pop(rank).close()
        *lines, self._half[rank] = (self._half[rank] + (received or b"")).split(b"\n")
        answers = [from_json(line) for line in lines]
        for message in answers:
            if isinstance(message, Printed):
                self._printed[rank] = self._printed.get(rank, "") + message.text
        return [message for message in answers if isinstance(message, Answer)]

    def _welcome(self) -> None:
        """Take in the ranks that have connected since; those without the token are turned away."""
        with contextlib.suppress(OSError):  # nobody more, or one who has left again
            while True:
                self._strangers.append(self._listener.accept()[0])
                self._strangers[-1].setblocking(False)
        for stranger in list(self._strangers):
            said = receive(stranger, HELLO_BYTES)
            if said is None:
                continue
            self._strangers.remove(stranger)
            first, _, rest = said.partition(b"\n")
            asks, _, proof = first.decode(errors="replace").rpartition(" ")
            if asks in self._said or not secrets.compare_digest(proof.encode(), _proof(self._token, asks).encode()):
                stranger.close()
                continue
            self._said.add(asks)
            rank = int(asks.split()[0])
            if rank in self._ends:
                self._ends[rank].close()
            self._ends[rank], self._half[rank] = stranger, rest

    def forget(self, ranks: Iterable[int]) -> None:
        """Close the connections to ranks whose processes have ended."""
        for rank in set(ranks) & set(self._ends):
            self._ends.pop(rank).close()

    def close(self) -> None:
        """End every connection; the watchdogs forget the channel."""
        for end in (*self._ends.values(), *self._strangers, self._listener):
            end.close()


def receive(end: socket.socket, most: int) -> bytes | None:
    """What has come on a connection; None for nothing yet, nothing when it has ended."""
    try:
        return end.recv(most)
    except BlockingIOError:
        return None
    except OSError:
        return b""
