"""A rank of a launcher: it calls what the launcher sends, and is nothing else.

Runs on every rank of `distlab run`, on its main thread; launch/forked.py and launch/fresh.py call
`serve`. A rank of a notebook is ipyparallel's engine instead, with an event loop, IPython and
threads of its own, which a person's program would find.
"""

from __future__ import annotations

import pdb
import signal
import socket
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from distlab.debugger import console
from distlab.debugger.console import CONSOLE
from distlab.rank.children import make_children_plain
from distlab.wire import direct
from distlab.wire.channel import hello
from distlab.wire.direct import Call, Returned

# what to do when a call has ended: what `restore_around_calls` was given
_AT_END: list[Callable[[], None]] = []


def serve(number: int) -> None:
    """Call what the launcher sends, until it is gone. Runs on: a rank, on its main thread.

    Args:
        number: this rank's.
    """
    address = direct.address_of_launcher()
    if address is None:
        raise RuntimeError("no launcher has started this process")
    port, token = address
    connection = _connect(number, port, token)
    while True:
        try:
            call = connection.recv()
        except (EOFError, OSError):
            return
        returned = _outcome_of(call)
        for at_end in _AT_END:
            at_end()
        CONSOLE.reset()
        direct.send(connection, returned)


def _connect(number: int, port: int, token: str) -> Connection:
    """Connect to the launcher, and prove that this process is its rank `number`."""
    end = socket.create_connection(("127.0.0.1", port))
    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    end.sendall(hello(token, number))
    return Connection(end.detach())


def _outcome_of(call: Call) -> Returned:
    try:
        return Returned(call.number, make_call(call))
    except BaseException as error:
        return Returned(call.number, raised=(type(error).__name__, str(error)))


def make_call(call: Call) -> Any:
    """Make a call; what runs below this frame is the program's, and may be interrupted."""
    return call.function(*call.args, **call.kwargs)


def restore_around_calls(
    handlers: dict[int, Callable[..., Any]], at_end: Callable[[], None]
) -> None:
    """Install handlers of signals and the debugger, and call `at_end` when a call has ended.

    Runs on: a rank, on its main thread, before its program.
    """
    for number, handler in handlers.items():
        signal.signal(number, handler)
    sys.breakpointhook = console.pause
    pdb.set_trace = console.pause
    make_children_plain([*handlers, signal.SIGTERM], {})
    _AT_END.append(at_end)
