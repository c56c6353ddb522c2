"""The watchdog: one daemon thread a rank that brings the main thread back when the notebook asks for it.

Runs on every rank, started by entry.py. While the main thread waits inside gloo no Python code runs on it, so
that neither KeyboardInterrupt nor gloo's own abort reaches it. This thread shuts down gloo's TCP sockets: the blocked
call raises at once. A main thread that waits in a store instead loses its connection to that. The group is broken then
and must be rebuilt; variables stay.

The notebook's `ControlChannel` asks what the main thread does; status.py has the answer. Over it come orders, too:
`FREE`, which frees a rank that communicates and leaves others alone, `FREE_WAITING`, which also leaves one alone that
makes headway, or `COME_BACK`, which also interrupts one that computes, but not one that is just telling of an
exception. The thread needs Python's lock for all that: a rank whose compiled code holds it does not answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import socket
import sys
import threading
import time
import traceback
from types import ModuleType
from typing import Any

from distlab.compat.ipython import SHOWS_ERROR
from distlab.rank import around_cells, python_waits, sockets, status
from distlab.rank.around_cells import BUILTINS
from distlab.rank.log import LOG
from distlab.rank.raised import describe_failure
from distlab.wire.channel import hello, receive
from distlab.wire.messages import (
    CLOCK,
    COME_BACK,
    FREE_WAITING,
    MEMORY,
    STATUS,
    VARIABLES,
    Answer,
    from_json,
    to_json,
)
from distlab.wire.rendezvous import used_megabytes

# what the main thread gets from this one: signals that a learner's program does not use, where the system has them
_REAL_TIME = getattr(signal, "SIGRTMIN", None)
LEAVE, INTERRUPT = (_REAL_TIME + 7, _REAL_TIME + 8) if _REAL_TIME else (signal.SIGUSR1, signal.SIGUSR2)
IMPORT_SECONDS = 0.05  # between two looks whether an import is done that an interrupt waits for
MOST_PRINTED = 100_000  # characters of what a served function has printed
PATIENCE_SECONDS = 0.1  # what a freed call has to come back before the store's connection goes too


def watch(before: tuple[frozenset[sockets.Identity], set[int]], meeting: Any) -> None:
    """Start the thread, or do nothing where it runs already.

    Runs on: a rank, on its main thread.

    Args:
        before: `sockets.there()` and `sockets.system_threads()` as they were before the group was built and the store
            connected to: these sockets are never shut down, and what these threads do does not count.
        meeting: the meeting at which the group was built, a `rendezvous.Meeting`.
    """
    if _running() is not None:
        return
    thread = _Thread(before, meeting)
    handlers = {LEAVE: _leave_python, INTERRUPT: thread.interrupt, signal.SIGINT: thread.interrupt}
    LOG.report_left = lambda: thread.say(Answer(0, unwaited=True))
    around_cells.keep(handlers, LOG.end_cell)
    thread.start()


def _running() -> _Thread | None:
    """The thread of this process, if it runs."""
    return next((thread for thread in threading.enumerate() if isinstance(thread, _Thread)), None)


def _leave_python(number: int, frame: Any) -> None:
    """Ends a wait of the main thread that is Python code."""
    python_waits.leave(frame)


def settle() -> None:
    """Return when the thread has done all that it was told.

    Called before a group is built: an order that was meant for the call before must not break the new group.

    Runs on: a rank, on its main thread.
    """
    while (acting := _running()) is not None and not acting.idle():
        time.sleep(0.001)


def tell(printed: str) -> None:
    """Send the notebook what a function has printed that this rank has run for another one. Runs on: any thread."""
    if (thread := _running()) is not None:
        thread.say(Answer(0, printed=printed[:MOST_PRINTED]))


def note_store(port: int) -> None:
    """Know the store's port, which is another one when its host was lost. Runs on: a rank."""
    if (thread := _running()) is not None:
        thread.store_port = port


def shut() -> None:
    """Shut every connection to other ranks down. Runs on: a rank, when its group is to be built anew."""
    if (thread := _running()) is not None:
        thread.shut()


class _Thread(threading.Thread):
    """The watchdog's thread: reads the control channel, and acts on what it hears, until the notebook is gone."""

    def __init__(self, before: tuple[frozenset[sockets.Identity], set[int]], meeting: Any):
        super().__init__(name="distlab-watchdog", daemon=True)
        *address, token = meeting.channel
        self._channel = socket.create_connection(address)
        self._channel.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._channel.sendall(hello(token, LOG.rank))
        self._heard = b""
        others, ours = before
        self._others = others | {sockets.identity(self._channel.fileno())}
        self._ours = ours - {threading.get_native_id()}  # a forked process's main_thread().native_id is its parent's
        self._main, self.store_port, self._loop = threading.get_ident(), meeting.port, asyncio._get_running_loop()
        self._acting, self._saying = threading.Lock(), threading.Lock()
        self._postponed = False  # whether the main thread is to be interrupted when its import is done

    def run(self) -> None:
        connected = True
        while connected:
            ready, _, _ = select.select([self._channel], [], [], IMPORT_SECONDS if self._postponed else None)
            with BUILTINS.lent(), self._acting:
                if ready:
                    connected = self._hear()
                if self._postponed:
                    self._come_back()

    def idle(self) -> bool:
        """Whether it has nothing to act on."""
        with self._acting:
            return not self._postponed and not select.select([self._channel], [], [], 0)[0]

    def _come_back(self) -> None:
        """Interrupt the main thread, or postpone that until its import is done."""
        frame = sys._current_frames().get(self._main)
        self._postponed = status.importing(frame)
        if interruptible(frame):
            signal.pthread_kill(self._main, INTERRUPT)

    def interrupt(self, number: int, frame: Any) -> None:
        """The handler of SIGINT: a KeyboardInterrupt where it does no harm or after an import, nothing elsewhere."""
        BUILTINS.restore()  # a cell ends here that may have replaced them
        if interruptible(frame):
            raise KeyboardInterrupt
        self._postponed = status.importing(frame)

    def _hear(self) -> bool:
        """Do what the notebook orders on the channel, or answer; False when the notebook is gone."""
        heard = receive(self._channel, 4096)
        if not heard:
            return False
        *questions, self._heard = (self._heard + heard).split(b"\n")
        for question in questions:
            asked = from_json(question)
            self.say(Answer(asked.number, **self._fields(asked.want)))
        return True

    def say(self, message: Any) -> None:
        """Send the notebook a message."""
        with self._saying, contextlib.suppress(OSError):
            self._channel.sendall(to_json(message).encode() + b"\n")

    def shut(self) -> None:
        """Shut every connection to other ranks down."""
        sockets.shut(self._of_group(), spare=self._stores())

    def _fields(self, want: str) -> dict[str, Any]:
        """The fields of an answer; at the second exception that says why there are none, which the notebook shows."""
        error = ""
        for _ in range(2):  # a frame or a socket that is looked at may go away
            try:
                return self._serve(want)
            except Exception:
                error = traceback.format_exc()
        return {"error": error}

    def _serve(self, want: str) -> dict[str, Any]:
        """The fields of an answer; or free the main thread, and interrupt it where that is wanted and it computes."""
        if want == CLOCK:
            return {"clock": time.time_ns()}
        if want == MEMORY:
            return {"megabytes": used_megabytes(os.getpid())}
        if want == STATUS:
            return {"status": status.summary(self._main, self._ours, self._traffic, self._loop)}
        if want == VARIABLES:
            return {"variables": variables()}
        signal.pthread_kill(self._main, LEAVE)
        thread = status.waiter(self._main)
        if status.communication(thread):
            free(thread, self._of_group(), self._stores(), gently=want == FREE_WAITING)
        elif want == COME_BACK:
            self._come_back()
        return {}

    def _traffic(self) -> tuple[int, bool]:
        return sockets.traffic(self._of_group(), self._stores())

    def _stores(self) -> set[int]:
        """The ports of the cluster's store and of the learner's."""
        return {self.store_port, *LOG.store_ports}

    def _of_group(self) -> frozenset[sockets.Identity]:
        """gloo's sockets, those that the learner has opened, and the connection to the store."""
        return sockets.there() - self._others


def variables() -> tuple[str, ...]:
    """Names that the learner has defined on this rank, modules left out."""
    given = {"rank", "world_size", "mpi_rank", "mpi_size", "In", "Out", "exit", "quit", "open", "get_ipython"}
    defined = dict(sys.modules["__main__"].__dict__)
    names = (name for name, value in defined.items() if not isinstance(value, ModuleType))
    return tuple(sorted(name for name in names if not name.startswith("_") and name not in given))


def free(thread: int, mine: frozenset[sockets.Identity], stores: set[int], gently: bool = False) -> None:
    """Bring back a thread that waits in communication: from gloo and MPI first, from the store if that did not help.

    Nothing may be under way when the sockets are shut, or gloo forgets to end the wait for a send: signalException in
    its transport/tcp/pair.cc passes over those that are yet to be written.

    Args:
        gently: whether to leave it alone where it makes headway; else it also begins no call of its group any more.
    """
    before, call = _position(thread), LOG.now.get(thread)
    if not gently:
        LOG.free()
    moved, deadline = None, time.monotonic() + PATIENCE_SECONDS
    while moved != (moved := sockets.traffic(mine, stores)) and time.monotonic() < deadline:
        time.sleep(0.01)
    if gently:
        if LOG.now.get(thread) is not call:  # it did not wait; where it does later, the order comes again
            return
        LOG.free()
    sockets.shut(mine, socket.SHUT_RD, spare=stores)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while (waits := _position(thread) == before) and time.monotonic() < deadline:
        time.sleep(0.005)
    if waits:
        sockets.shut(mine)


def _position(thread: int) -> tuple[int, int]:
    frame = sys._current_frames().get(thread)
    return (id(frame), frame.f_lasti) if frame else (0, 0)


def interruptible(frame: Any) -> bool:
    """Whether a KeyboardInterrupt may be raised in this frame: a cell or a call of the notebook's runs there.

    It must not hit what the engine does between two of them, or a message is lost and the rank waits for ever; nor the
    report of an exception, which would be lost with it; nor an import.

    Runs on: a rank, in any thread.
    """
    reports = any(
        outer.f_code in (describe_failure.__code__, settle.__code__) or status.place(outer) == SHOWS_ERROR
        for outer in status.outwards(frame)
    )
    return status.executing(frame) and not status.importing(frame) and not reports
