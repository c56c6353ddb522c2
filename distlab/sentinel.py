"""The sentinel: one daemon thread a rank that brings the main thread back when the notebook asks for it.

Runs on every rank, started by worker.py. While the main thread waits inside gloo no Python code runs on it, so that
neither KeyboardInterrupt nor gloo's own abort reaches it. This thread shuts down gloo's TCP sockets: the blocked call
raises at once. A main thread that waits in a store instead loses its connection to that. The group is broken then and
must be rebuilt; variables stay.

The notebook's `line.Line` asks what the main thread does; state.py has the answer. Over the same connection it orders
`FREE`, which frees a rank that waits in communication and leaves others alone, or `COME_BACK`, which also interrupts
one that computes, but not one that is just telling of an exception. SIGINT from elsewhere frees a rank too: Python
writes its number to a wakeup descriptor. The thread needs Python's lock for all that: a rank whose compiled code holds
it does not answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib._bootstrap
import importlib._bootstrap_external
import json
import os
import select
import signal
import socket
import stat
import sys
import threading
import time
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from distlab import between, quiet, state
from distlab.line import COME_BACK, FREE
from distlab.notes import NOTES
from distlab.source import is_learners

THREAD_NAME = "distlab-sentinel"
# what the main thread gets from this one: signals that a learner's program does not use, where the system has them
_REAL_TIME = getattr(signal, "SIGRTMIN", None)
LEAVE, INTERRUPT = (_REAL_TIME + 7, _REAL_TIME + 8) if _REAL_TIME else (signal.SIGUSR1, signal.SIGUSR2)
SHARED_MEMORY = "distlab.algorithms.segment"  # where the main thread waits for other ranks without leaving Python
MPI_BEGINS = "distlab.mpi_backend"  # an exception from outside would lose what MPI has just begun to use
IMPORT_SECONDS = 0.05  # between two looks whether an import is done that an interrupt waits for
TELLING = {  # functions that an exception from outside must not hit
    ("IPython.core.interactiveshell", "showtraceback"),
    ("distlab.worker", "describe_failure"),
    ("distlab.sentinel", "settle"),
}
PATIENCE_SECONDS = 0.1  # what a freed call has to come back before the store's connection goes too


def connect(host: str, port: int) -> Any:
    """This rank's one connection to the cluster's TCPStore; made anew only after it was shut down.

    Runs on: a rank.
    """
    store = _connection(host, port)
    try:
        store.num_keys()
    except Exception:
        _connection.cache_clear()
        store = _connection(host, port)
    return store


@functools.cache
def _connection(host: str, port: int) -> Any:
    """A client of the store on every rank; torch's own rendezvous would let rank 0 serve a second one."""
    from torch.distributed import TCPStore

    return TCPStore(host, port, is_master=False, timeout=timedelta(seconds=60))


def watch(before: tuple[frozenset[tuple[int, int]], set[int]], meeting: Any) -> None:
    """Start the thread, or do nothing where it runs already.

    Runs on: a rank, on its main thread.

    Args:
        before: `sockets()` and `threads()` as they were before the group was built and the store connected to: these
            sockets are never shut down, and what these threads do does not count.
        meeting: the meeting at which the group was built, a `rendezvous.Meeting`.
    """
    if _running() is not None:
        return
    listening, wakeup = socket.socketpair()
    wakeup.setblocking(False)
    earlier = signal.set_wakeup_fd(wakeup.fileno(), warn_on_full_buffer=False)
    line = _connect_line(*meeting.line)
    others = before[0] | {_identity(end.fileno()) for end in (listening, wakeup, line)}
    ours = before[1] - {threading.get_native_id()}  # a forked process's main_thread().native_id is its parent's
    loop = asyncio._get_running_loop()
    thread = _Thread((listening, wakeup), line, earlier, (others, ours), meeting.port, loop)
    handlers = {LEAVE: _leave_python, INTERRUPT: thread.interrupt, signal.SIGINT: thread.interrupt}
    between.keep(handlers, wakeup.fileno())
    thread.start()


def _running() -> _Thread | None:
    """The thread of this process, if it runs."""
    return next((thread for thread in threading.enumerate() if isinstance(thread, _Thread)), None)


def _leave_python(number: int, frame: Any) -> None:
    """Ends a wait of the main thread in shared memory or for MPI, which is Python code."""
    if (mpi := sys.modules.get("distlab.mpi_work")) is not None:
        mpi.end_wait(frame)
    if frame is not None and frame.f_globals.get("__name__") == SHARED_MEMORY:
        raise RuntimeError("Freed while it waited for other ranks in an all_reduce through shared memory.")


def _connect_line(host: str, port: int, token: str) -> socket.socket:
    """The connection over which the notebook asks."""
    line = socket.create_connection((host, port), timeout=10)
    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    line.sendall(json.dumps({"token": token, "rank": NOTES.rank, "pid": os.getpid()}).encode() + b"\n")
    line.settimeout(None)
    return line


def threads() -> set[int]:
    """The system's numbers of the threads of this process."""
    return {int(name) for name in os.listdir("/proc/self/task")} if os.path.isdir("/proc/self/task") else set()


def settle() -> None:
    """Return when the thread has done all that it was told.

    Called before a group is built: an order that was meant for the call before must not break the new group.

    Runs on: a rank, on its main thread.
    """
    acting = _running()
    while acting is not None and not acting.idle():
        time.sleep(0.001)


class _Thread(threading.Thread):
    """The sentinel's thread: reads the notebook's line and the numbers of signals, and acts on them."""

    def __init__(
        self,
        ends: tuple[socket.socket, socket.socket],
        line: socket.socket | None,
        earlier: int,
        before: tuple[frozenset, set[int]],
        port: int,
        loop: asyncio.AbstractEventLoop | None,
    ):
        super().__init__(name=THREAD_NAME, daemon=True)
        self._listening, self._wakeup = ends
        self._line, self._heard = line, b""
        self._earlier, self._main, self._port = earlier, threading.main_thread().ident, port
        self._others, self._ours = before
        self._loop = loop
        self._acting = threading.Lock()
        self._postponed = False  # whether the main thread is to be interrupted when its import is done

    def run(self) -> None:
        while True:
            ready, _, _ = select.select(self._ends(), [], [], IMPORT_SECONDS if self._postponed else None)
            with self._acting:
                if self._listening in ready:
                    self._pass_on(self._listening.recv(64))
                if self._line in ready:
                    self._hear()
                if self._postponed:
                    self._come_back()

    def _ends(self) -> list[socket.socket]:
        return [end for end in (self._listening, self._line) if end is not None]

    def idle(self) -> bool:
        """Whether it has nothing to act on."""
        with self._acting:
            return not self._postponed and not select.select(self._ends(), [], [], 0)[0]

    def _pass_on(self, numbers: bytes) -> None:
        """Signals have come, from anywhere: SIGINT frees a rank that waits, and its handler interrupts others."""
        if self._earlier >= 0:
            os.write(self._earlier, numbers)
        if signal.SIGINT in numbers:
            self._act(FREE)

    def _act(self, order: str) -> None:
        """Free the main thread, and interrupt it where that is asked for and it computes."""
        signal.pthread_kill(self._main, LEAVE)
        thread = state.waiter(self._main, quiet.actors(self._main, self._ours))
        if state.communication(thread):
            free(thread, sockets() - self._others, self._port)
        elif order == COME_BACK:
            self._come_back()

    def _come_back(self) -> None:
        """Interrupt the main thread, or postpone that until its import is done."""
        frame = sys._current_frames().get(self._main)
        self._postponed = importing(frame)
        if interruptible(frame):
            signal.pthread_kill(self._main, INTERRUPT)

    def interrupt(self, number: int, frame: Any) -> None:
        """The handler of SIGINT: a KeyboardInterrupt where it does no harm or after an import, nothing elsewhere."""
        if interruptible(frame):
            raise KeyboardInterrupt
        if importing(frame):
            self._postponed = True
            with contextlib.suppress(OSError):  # full: the thread is about to look in any case
                self._wakeup.send(b"\0")

    def _hear(self) -> None:
        """Do what the notebook orders on the line, or answer; forget the line when the notebook is gone."""
        received = b""
        with contextlib.suppress(OSError):
            received = self._line.recv(4096)
        if not received:
            self._line = None
            return
        *questions, self._heard = (self._heard + received).split(b"\n")
        for question in questions:
            asked = json.loads(question)
            try:
                answer = self._answer(asked)
            except Exception as error:  # frames and sockets may go away while they are looked at
                answer = {"doing": "unknown", "why": repr(error)}
            with contextlib.suppress(OSError):
                self._line.sendall(json.dumps({**answer, "number": asked["number"]}).encode() + b"\n")

    def _answer(self, asked: dict[str, Any]) -> dict[str, Any]:
        if asked.get("do"):
            self._act(asked["do"])
            return {}
        if asked.get("variables"):
            return {"variables": state.variables()}
        summary = state.summary(self._main, self._ours, self._of_gloo, self._loop)
        return {**summary, "importing": importing(sys._current_frames().get(self._main))}

    def _of_gloo(self) -> list[tuple[int, int]]:
        """gloo's sockets, and those that the learner has opened."""
        return [one for one in sockets() - self._others if not is_store(one, self._port)]


def free(thread: int, mine: frozenset[tuple[int, int]], store_port: int) -> None:
    """Bring back a thread that waits in communication: from gloo and MPI first, from the store if that did not help."""
    before = _position(thread)
    NOTES.freed += 1
    if (mpi := sys.modules.get("distlab.mpi_progress")) is not None:
        mpi.free()
    shut(mine, spare=store_port)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while _position(thread) == before and time.monotonic() < deadline:
        time.sleep(0.005)
    if _position(thread) == before:
        shut(mine, spare=None)


def _position(thread: int) -> tuple[int, int]:
    frame = sys._current_frames().get(thread)
    return (id(frame), frame.f_lasti) if frame else (0, 0)


def interruptible(frame: Any) -> bool:
    """Whether a KeyboardInterrupt may be raised in this frame: a cell or a call of the notebook's runs there.

    It must not hit what the engine does between two of them, or a message is lost and the rank waits for ever; nor the
    report of an exception, which would be lost with it; nor the beginning of a call of MPI; nor an import.

    Runs on: a rank, in any thread.
    """
    places = {state.place(outer) for outer in quiet.outwards(frame)}
    told = places & TELLING or MPI_BEGINS in {module for module, _ in places}
    return state.executing(frame) and not importing(frame) and not told


def importing(frame: Any) -> bool:
    """Whether a cell or a call of the notebook is in an import that must not be torn: every later one would fail.

    A module of the learner's own may be torn: it may compute or communicate for as long as it likes.

    Runs on: a rank, in any thread.
    """
    machinery = vars(importlib._bootstrap), vars(importlib._bootstrap_external)
    inner = None
    for outer in quiet.outwards(frame):
        if not any(outer.f_globals is namespace for namespace in machinery):
            inner = outer
        elif inner is None or not is_learners(inner.f_code.co_filename):
            return state.executing(frame)
    return False



def sockets() -> frozenset[tuple[int, int]]:
    """The open sockets of this process as (descriptor, inode), which no later socket can be taken for."""
    folder = "/proc/self/fd" if os.path.isdir("/proc/self/fd") else "/dev/fd"
    identities = (_identity(int(name)) for name in os.listdir(folder))
    return frozenset(identity for identity in identities if identity is not None)


def is_store(identity: tuple[int, int], port: int) -> bool:
    """Whether a socket is this rank's connection to the store at `port`."""
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(identity[0])) as end:
        return end.family in (socket.AF_INET, socket.AF_INET6) and end.getpeername()[1] == port
    return False


def shut(identities: Iterable[tuple[int, int]], spare: int | None) -> int:
    """Shut down the connected TCP sockets among `identities`, but those to the port `spare`; return how many."""
    count = 0
    for descriptor, inode in identities:
        if _identity(descriptor) != (descriptor, inode):
            continue
        try:
            end = socket.socket(fileno=os.dup(descriptor))
        except OSError:
            continue
        with end:
            try:
                is_tcp = end.family in (socket.AF_INET, socket.AF_INET6) and end.type == socket.SOCK_STREAM
                if is_tcp and end.getpeername()[1] != spare:
                    end.shutdown(socket.SHUT_RDWR)
                    count += 1
            except OSError:
                continue  # not connected: a listening socket, or one that its peer has closed
    return count


def _identity(descriptor: int) -> tuple[int, int] | None:
    try:
        status = os.fstat(descriptor)
    except OSError:
        return None
    return (descriptor, status.st_ino) if stat.S_ISSOCK(status.st_mode) else None
