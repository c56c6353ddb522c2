"""Puts back, around each cell, what an engine cannot do without and a cell may have taken away.

Runs on every rank, on its main thread, installed by watchdog.watch. It is about handlers of signals, stdout and stderr,
and the variables that say which rank this is.
"""

from __future__ import annotations

import functools
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from distlab.compat.ipython import current_shell

VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GLOO_SOCKET_IFNAME")


def keep(handlers: dict[int, Callable[..., Any]]) -> None:
    """Keep these handlers of signals, and the rest as it is now, around every cell from now on.

    What the learner has replaced by something that works stays. ipykernel would put a handler of SIGINT in place for
    every message; this takes its place.
    """
    streams = {name: getattr(sys, name) for name in ("stdout", "stderr")}
    senders = {name: getattr(stream, "pub_thread", None) for name, stream in streams.items()}
    environment = {name: os.environ[name] for name in VARIABLES if name in os.environ}

    def put_back() -> None:
        for name, stream in streams.items():
            if not _works(getattr(sys, name, None)):
                stream.pub_thread = senders[name]  # the thread that sends what is written; close() takes it away
                setattr(sys, name, stream)
        for name, value in environment.items():
            os.environ.setdefault(name, value)
        for number, handler in handlers.items():
            if signal.getsignal(number) is not handler:
                signal.signal(number, handler)

    put_back()
    kernel = getattr(current_shell(), "kernel", None)
    if kernel is not None:
        _around_cells(kernel, put_back)


def _around_cells(kernel: Any, put_back: Callable[[], None]) -> None:
    """Call it around every message, and before an engine tells what became of a cell or a call."""

    def around(method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def call(*args: Any, **kwargs: Any) -> Any:
            put_back()
            try:
                return method(*args, **kwargs)
            finally:
                put_back()

        return call

    kernel.pre_handler_hook = kernel.post_handler_hook = put_back
    kernel.shell.showtraceback, kernel.do_apply = around(kernel.shell.showtraceback), around(kernel.do_apply)
    kernel.shell.events.register("post_execute", put_back)


def _works(stream: Any) -> bool:
    usable = all(callable(getattr(stream, method, None)) for method in ("write", "flush"))
    return usable and not getattr(stream, "closed", False)
