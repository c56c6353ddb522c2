"""Calls to the ranks of `distlab run`, in the place of ipyparallel's client.

Runs in the launcher's process, made by starting.py. Its ranks are no engines of ipyparallel: each
connects here and makes the calls that it is sent (rank/serving.py). That spares the program a
second of imports, and an event loop, IPython and threads that it would find under no other
launcher.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import threading
from collections.abc import Callable, Sequence
from concurrent import futures
from multiprocessing.connection import Connection, wait
from typing import Any

from distlab.supervised import SupervisedThread
from distlab.wire import direct
from distlab.wire.channel import HELLO_BYTES, rank_that_says_hello
from distlab.wire.direct import Call
from distlab.wire.rendezvous import listen


class CallFailed(Exception):
    """A call has raised on a rank, or the rank has ended.

    Attributes:
        ename, evalue: what was raised, as ipyparallel names them.
    """

    def __init__(self, kind: str, text: str):
        super().__init__(f"{kind}: {text}")
        self.ename = kind
        self.evalue = text


class Result:
    """The replies of some ranks to one call, as ipyparallel's AsyncResult.

    Args:
        replies: the future of each rank's.
    """

    def __init__(self, replies: Sequence[futures.Future[Any]]):
        self._children = list(replies)

    def wait(self, timeout: float | None = None) -> bool:
        """Whether all have replied, at the latest after so many seconds."""
        _, pending = futures.wait(self._children, timeout)
        return not pending

    def get(self, return_exceptions: bool = False) -> list[Any]:
        """What the calls returned; with `return_exceptions` also what they raised."""
        if return_exceptions:
            return [one.exception() or one.result() for one in self._children]
        return [one.result() for one in self._children]


class View:
    """Some ranks, as ipyparallel's DirectView."""

    def __init__(self, client: DirectClient, ranks: Sequence[int]):
        self._client = client
        self._ranks = ranks

    def apply_async(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Result:
        """Have each of them call a function, once it has finished what it is doing."""
        return Result([self._client.call(rank, function, args, kwargs) for rank in self._ranks])


class DirectClient(SupervisedThread):
    """Connections to the ranks; the thread that reads them.

    Attributes:
        ids: the ranks that are connected.
    """

    def __init__(self) -> None:
        super().__init__("distlab-replies")
        self.ids: list[int] = []
        self._token = os.urandom(16).hex()
        self._listener = listen()
        self._connections: dict[int, Connection] = {}
        self._pending: dict[int, dict[int, futures.Future[Any]]] = {}  # by rank and number
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._used: set[str] = set()
        self._strangers: list[socket.socket] = []
        self._closed, self._closing = socket.socketpair()

    @property
    def variables(self) -> dict[str, str]:
        """What a rank needs in its environment."""
        return {direct.VARIABLE: f"{self._listener.getsockname()[1]}:{self._token}"}

    def direct_view(self, targets: str | Sequence[int]) -> View:
        """Some ranks, or "all"."""
        return View(self, self.ids if isinstance(targets, str) else list(targets))

    def call(
        self, rank: int, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> futures.Future[Any]:
        """Have a rank call a function; KeyError if it is not there."""
        reply: futures.Future[Any] = futures.Future()
        number = next(self._numbers)
        with self._lock:
            connection = self._connections[rank]
            self._pending[rank][number] = reply
        with contextlib.suppress(OSError):  # the thread sees that it has ended
            direct.send(connection, Call(number, function, args, kwargs))
        return reply

    def ranks_with_work(self) -> set[int]:
        """The ranks that have not yet replied to all that they were sent."""
        with self._lock:
            return {rank for rank, pending in self._pending.items() if pending}

    def forget(self, rank: int) -> None:
        """Have what a rank was sent fail: it has ended. Runs on: any thread."""
        with self._lock:
            connection = self._connections.pop(rank, None)
            pending = self._pending.pop(rank, {})
            self.ids = sorted(self._connections)
        if connection is not None:
            self._wake()
        for reply in pending.values():
            reply.set_exception(CallFailed("EngineError", f"rank {rank} has ended"))

    def close(self) -> None:
        """End the thread, and with it all connections."""
        self._closing.close()
        self.join()

    # --- the thread ---

    def serve(self) -> None:
        """Take in ranks and replies until `close`."""
        while True:
            by_rank = dict(self._connections)
            strangers = list(self._strangers)
            watched: list[Any] = [self._closed, self._listener, *strangers, *by_rank.values()]
            arrived = wait(watched)
            if self._closed in arrived and not self._closed.recv(1):
                return
            if self._listener in arrived:
                self._accept()
            for stranger in strangers:
                if stranger in arrived:
                    self._take_in(stranger)
            for rank, connection in by_rank.items():
                if connection in arrived:
                    self._receive(rank, connection)

    def on_error(self, error: BaseException) -> None:
        """Leave it to those who wait: their replies fail."""

    def on_end(self) -> None:
        """No reply can come any more."""
        self._listener.close()
        for stranger in self._strangers:
            stranger.close()
        for rank, connection in list(self._connections.items()):
            self.forget(rank)
            connection.close()
        self._closed.close()

    def _accept(self) -> None:
        """Accept a connection, which is a stranger's until it has proven to be a rank's."""
        with contextlib.suppress(OSError):
            end, _ = self._listener.accept()
            end.setblocking(False)
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._strangers.append(end)

    def _take_in(self, stranger: socket.socket) -> None:
        """Take in the rank that has sent its first line; others are closed."""
        self._strangers.remove(stranger)
        words = b""
        with contextlib.suppress(OSError):
            words = stranger.recv(HELLO_BYTES)
        rank = rank_that_says_hello(self._token, words.strip(), self._used)
        if rank is None:
            stranger.close()
            return
        stranger.setblocking(True)
        with self._lock:
            self._connections[rank] = Connection(stranger.detach())
            self._pending[rank] = {}
            self.ids = sorted(self._connections)

    def _receive(self, rank: int, connection: Connection) -> None:
        try:
            returned = connection.recv()
        except (EOFError, OSError):
            self.forget(rank)
            connection.close()
            return
        with self._lock:
            reply = self._pending.get(rank, {}).pop(returned.number, None)
        if reply is None:
            return
        if returned.raised is None:
            reply.set_result(returned.value)
        else:
            reply.set_exception(CallFailed(*returned.raised))

    def _wake(self) -> None:
        """Have the thread look at the connections anew."""
        with contextlib.suppress(OSError):
            self._closing.send(b".")
