"""The line to the ranks' sentinels: the notebook asks what a rank does, and gets an answer while the rank is blocked.

Runs on the notebook's kernel, called by cell.py and ranks.py. It listens on the loopback interface only, on a port that
the system chose, and takes no thread: connections and answers are looked at when something is asked. A rank shows a
token that only this cluster's ranks know.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import select
import socket
import time
from collections.abc import Iterable
from typing import Any

from distlab.rendezvous import listen

FREE, COME_BACK = "free", "come back"  # what a sentinel can be told to do: sentinel.py
PATIENCE_SECONDS = 0.25  # what a rank has to answer; one that does not is stopped, or holds Python's lock
HELLO_BYTES = 4096  # more than a rank says before it is known


class Line:
    """Connections to the sentinels of one cluster's ranks, the newest one of each rank.

    Attributes:
        address: host, port and token, for `rendezvous.Meeting`.
    """

    def __init__(self) -> None:
        self._listener = listen()
        self._listener.setblocking(False)
        self._token = secrets.token_hex(16)
        self._ends: dict[int, _End] = {}
        self._strangers: list[_End] = []
        self._number = 0
        self.address = (*self._listener.getsockname(), self._token)

    def ask(self, ranks: Iterable[int], patience: float = PATIENCE_SECONDS, **what: Any) -> dict[int, dict[str, Any]]:
        """What the ranks answer within `patience` seconds; one that does not is left out.

        Args:
            what: variables=True asks for the names of the learner's variables instead of for the state; do=FREE or
                do=COME_BACK has it done.
        """
        deadline = time.monotonic() + patience
        self._number += 1
        question = json.dumps({"number": self._number, **what}).encode() + b"\n"
        asked, answers = set(), {}
        ranks = set(ranks)
        while True:
            self._welcome()
            for rank in ranks & set(self._ends) - asked:
                asked.add(rank)
                self._ends[rank].send(question)
            for rank in asked - set(answers):
                for heard in self._ends[rank].hear():
                    if heard.get("number") == self._number:
                        answers[rank] = heard
            left = deadline - time.monotonic()
            if len(answers) == len(ranks) or left <= 0:
                return dict(sorted(answers.items()))
            waiting = [end.socket for end in self._strangers]
            waiting += [self._ends[rank].socket for rank in asked - set(answers) if self._ends[rank].open]
            select.select([self._listener, *waiting], [], [], left)

    def _welcome(self) -> None:
        """Take in the ranks that have connected since; those without the token are turned away."""
        with contextlib.suppress(OSError):  # nobody more, or one who has left again
            while True:
                self._strangers.append(_End(self._listener.accept()[0], HELLO_BYTES))
        for stranger in list(self._strangers):
            for hello in stranger.hear()[:1]:
                if self._knows(hello.get("token")):
                    self._strangers.remove(stranger)
                    self._replace(hello["rank"], stranger)
                else:
                    stranger.close()
            if not stranger.open and stranger in self._strangers:
                stranger.close()
                self._strangers.remove(stranger)

    def _knows(self, token: Any) -> bool:
        is_text = isinstance(token, str) and token.isascii()  # compare_digest refuses other text
        return is_text and secrets.compare_digest(token, self._token)

    def _replace(self, rank: int, end: _End) -> None:
        if rank in self._ends:
            self._ends[rank].close()
        end.limit = None
        self._ends[rank] = end

    def close(self) -> None:
        """End every connection; the sentinels forget the line."""
        for end in (*self._ends.values(), *self._strangers):
            end.close()
        self._listener.close()


class _End:
    """One connection, read without waiting, as JSON lines; it ends when more than `limit` bytes have come."""

    def __init__(self, end: socket.socket, limit: int | None):
        end.setblocking(False)
        self.socket, self.open, self.limit, self._pending = end, True, limit, b""

    def send(self, line: bytes) -> None:
        try:
            self.socket.send(line)  # a question is short: it fits, or the rank has not read for long
        except OSError:
            self.open = False

    def hear(self) -> list[dict[str, Any]]:
        """The lines that have come since; no line of what is not JSON."""
        while self.open:
            try:
                received = self.socket.recv(1 << 16)
            except BlockingIOError:
                break
            except OSError:
                received = b""
            self._pending += received
            if self.limit is not None:
                self.limit -= len(received)
            if not received or (self.limit is not None and self.limit < 0):
                self.open = False
        *lines, self._pending = self._pending.split(b"\n")
        heard = []
        for line in lines:
            with contextlib.suppress(ValueError, RecursionError):
                value = json.loads(line)
                if isinstance(value, dict):
                    heard.append(value)
        return heard

    def close(self) -> None:
        self.open = False
        self.socket.close()
