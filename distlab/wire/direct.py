"""Calls that a launcher sends to ranks without ipyparallel, and what comes back.

Runs in the launcher's process, called by notebook/direct.py, and on every rank that it starts,
called by rank/serving.py. Both are processes of one user on one machine; a connection begins with a
proof that its author knows the token in the environment.
"""

from __future__ import annotations

import copyreg
import io
import os
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

# of the environment: port and token of the launcher; an engine that has it is no ipyparallel's
VARIABLE = "DISTLAB_DIRECT"


@dataclass(frozen=True)
class Call:
    """A call of a function on a rank.

    Attributes:
        number: the call's.
        function: it is found by its name on the rank.
        args, kwargs: its arguments.
    """

    number: int
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


@dataclass(frozen=True)
class Returned:
    """What a call has returned or raised.

    Attributes:
        number: the call's.
        value: what it returned.
        raised: the kind and the text of what it raised; None if it returned.
    """

    number: int
    value: Any = None
    raised: tuple[str, str] | None = None


def send(connection: Connection, message: Call | Returned) -> None:
    """Send a message, with the memory of tensors in it."""
    stream = io.BytesIO()
    pickler = pickle.Pickler(stream, protocol=5)
    pickler.dispatch_table = copyreg.dispatch_table | {memoryview: _reduce_memory}
    pickler.dump(message)
    connection.send_bytes(stream.getbuffer())


def _reduce_memory(memory: memoryview) -> tuple[type, tuple[bytes]]:
    return bytes, (bytes(memory),)


def address_of_launcher() -> tuple[int, str] | None:
    """The port and the token of this process's launcher; None if it is an engine."""
    port, _, token = os.environ.get(VARIABLE, "").partition(":")
    return (int(port), token) if port else None
