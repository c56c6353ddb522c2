"""Puts back, around each cell, what an engine cannot do without and a cell may have taken away.

Runs on every rank, on its main thread, installed by sentinel.watch. It is about handlers of signals, stdout and stderr,
the variables that say which rank this is, the working folder and the room on the stack.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GLOO_SOCKET_IFNAME")


@dataclass(frozen=True)
class Kept:
    """What is put back.

    Attributes:
        handlers: by signal. descriptor: to which Python writes the numbers of signals.
        streams: stdout and stderr by name, each with the thread that sends what is written; None without.
    """

    handlers: dict[int, Callable[..., Any]]
    descriptor: int
    streams: dict[str, tuple[Any, Any]]
    environment: dict[str, str]
    folder: str
    stack: int


def keep(handlers: dict[int, Callable[..., Any]], descriptor: int) -> None:
    """Keep these handlers and this wakeup descriptor, and the rest as it is now, around every cell from now on.

    ipykernel would put a handler of SIGINT in place for every message; this takes its place.
    """
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    kernel = getattr(shell, "kernel", None)
    streams = {name: getattr(sys, name) for name in ("stdout", "stderr")}
    kept = Kept(
        handlers,
        descriptor,
        {name: (stream, getattr(stream, "pub_thread", None)) for name, stream in streams.items()},
        {name: os.environ[name] for name in VARIABLES if name in os.environ},
        os.getcwd(),
        sys.getrecursionlimit(),
    )
    back = functools.partial(put_back, kept)
    back()
    if kernel is not None:
        kernel.pre_handler_hook = kernel.post_handler_hook = back
        shell.showtraceback = _after(back, shell.showtraceback)
        kernel.do_apply, execute = _then(kernel.do_apply, back), kernel.do_execute

        @functools.wraps(execute)
        async def do_execute(*args: Any, **kwargs: Any) -> Any:
            try:
                return await execute(*args, **kwargs)
            finally:
                back()

        kernel.do_execute = do_execute


def _after(first: Callable[[], None], call: Callable[..., Any]) -> Callable[..., Any]:
    """The call, made after `first`."""

    @functools.wraps(call)
    def both(*args: Any, **kwargs: Any) -> Any:
        first()
        return call(*args, **kwargs)

    return both


def _then(call: Callable[..., Any], last: Callable[[], None]) -> Callable[..., Any]:
    """The call, and `last` whatever comes of it."""

    @functools.wraps(call)
    def both(*args: Any, **kwargs: Any) -> Any:
        try:
            return call(*args, **kwargs)
        finally:
            last()

    return both


def put_back(kept: Kept) -> None:
    """Put back what is missing or broken; what the learner has replaced by something that works stays.

    Runs on: a rank, on its main thread.
    """
    if sys.getrecursionlimit() < kept.stack:
        sys.setrecursionlimit(kept.stack)
    for name, (stream, thread) in kept.streams.items():
        if not _works(getattr(sys, name, None)):
            if thread is not None:
                stream.pub_thread = thread  # which close() takes away
            setattr(sys, name, stream)
    for name, value in kept.environment.items():
        os.environ.setdefault(name, value)
    for number, handler in kept.handlers.items():
        if signal.getsignal(number) is not handler:
            signal.signal(number, handler)
    signal.set_wakeup_fd(kept.descriptor, warn_on_full_buffer=False)
    try:
        os.getcwd()
    except OSError:
        with contextlib.suppress(OSError):
            os.chdir(kept.folder)


def _works(stream: Any) -> bool:
    usable = all(callable(getattr(stream, method, None)) for method in ("write", "flush"))
    return usable and not getattr(stream, "closed", False)
