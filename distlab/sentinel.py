"""The sentinel: one daemon thread a rank that brings the main thread back when a signal asks for it.

Runs on every rank, started by worker.py. While the main thread waits inside gloo no Python code runs on it, so that
neither KeyboardInterrupt nor gloo's own abort reaches it. The C part of Python's signal handling still writes the
signal's number to a wakeup descriptor; this thread reads it and shuts down gloo's TCP sockets: the blocked call raises
at once. A main thread that waits in a store instead loses its connection to that. The group is broken then and must be
rebuilt; variables stay.

The notebook sends `FREE`, which frees a rank that waits in communication and leaves others alone, or `COME_BACK`, which
also interrupts one that computes, but not one that is just telling of an exception. On a second way, a connection to
the notebook's `line.Line`, it asks what the main thread does; state.py has the answer. The thread needs Python's lock
for that: a rank whose compiled code holds it does not answer.
"""

from __future__ import annotations

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
from collections.abc import Iterable, Iterator
from datetime import timedelta
from typing import Any

from distlab import state
from distlab.line import COME_BACK, FREE
from distlab.notes import NOTES
from distlab.source import is_learners

THREAD_NAME = "distlab-sentinel"
SHARED_MEMORY = "distlab.algorithms.segment"  # where the main thread waits for other ranks without leaving Python
MPI_BEGINS = "distlab.mpi_backend"  # an exception from outside would lose what MPI has just begun to use
IMPORT_SECONDS = 0.05  # between two looks whether an import is done that an interrupt waits for
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
    if any(thread.name == THREAD_NAME for thread in threading.enumerate()):
        return
    listening, wakeup = socket.socketpair()
    wakeup.setblocking(False)
    earlier = signal.set_wakeup_fd(wakeup.fileno(), warn_on_full_buffer=False)
    signal.signal(COME_BACK, _leave_python)
    signal.signal(FREE, _leave_python)
    _take_over_interrupts()
    line = _connect_line(*meeting.line)
    others = before[0] | {_identity(end.fileno()) for end in (listening, wakeup, line)}
    ours = before[1] - {threading.get_native_id()}  # a forked process's main_thread().native_id is its parent's
    _Thread((listening, wakeup), line, earlier, threading.main_thread().ident, (others, ours), meeting.port).start()


def _leave_python(number: int, frame: Any) -> None:
    """What both signals do on the main thread, whose wait in shared memory or for MPI is Python code."""
    if (mpi := sys.modules.get("distlab.mpi_work")) is not None:
        mpi.end_wait(frame)
    if frame is not None and frame.f_globals.get("__name__") == SHARED_MEMORY:
        raise RuntimeError("Freed while it waited for other ranks in an all_reduce through shared memory.")


def _connect_line(host: str, port: int, token: str) -> socket.socket:
    """The connection over which the notebook asks."""
    line = socket.create_connection((host, port), timeout=10)
    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    line.sendall(json.dumps({"token": token, "rank": int(os.environ["RANK"]), "pid": os.getpid()}).encode() + b"\n")
    line.settimeout(None)
    return line


def threads() -> set[int]:
    """The system's numbers of the threads of this process."""
    return {int(name) for name in os.listdir("/proc/self/task")} if os.path.isdir("/proc/self/task") else set()


def settle() -> None:
    """Return when the thread has acted on every signal that has come.

    Called before a group is built: a signal that was meant for the call before must not break the new group.

    Runs on: a rank, on its main thread.
    """
    acting = next((t for t in threading.enumerate() if t.name == THREAD_NAME), None)
    while acting is not None and not acting.idle():
        time.sleep(0.001)


class _Thread(threading.Thread):
    """The sentinel's thread: reads the numbers of signals from one end of a socket pair, and acts on them."""

    def __init__(
        self,
        ends: tuple[socket.socket, socket.socket],
        line: socket.socket | None,
        earlier: int,
        main: int,
        before: tuple[frozenset, set[int]],
        port: int,
    ):
        super().__init__(name=THREAD_NAME, daemon=True)
        self._listening, self._wakeup = ends
        self._line, self._heard = line, b""
        self._earlier, self._main, self._port = earlier, main, port
        self._others, self._ours = before
        self._acting = threading.Lock()
        self._postponed = False  # whether the main thread is to be interrupted when its import is done

    def run(self) -> None:
        while True:
            ends = [end for end in (self._listening, self._line) if end is not None]
            ready, _, _ = select.select(ends, [], [], IMPORT_SECONDS if self._postponed else None)
            with self._acting:
                if self._listening in ready:
                    self._act(self._listening.recv(64))
                elif self._postponed:
                    self._come_back()
            if self._line in ready:
                self._hear()

    def idle(self) -> bool:
        """Whether it has nothing to act on."""
        with self._acting:
            return not self._postponed and not select.select([self._listening], [], [], 0)[0]

    def _act(self, numbers: bytes) -> None:
        if self._earlier >= 0:
            os.write(self._earlier, numbers)
        asked = {signal.SIGINT, FREE, COME_BACK} & set(numbers)
        if asked and state.communication(self._main):
            free(self._main, sockets() - self._others, self._port)
        elif COME_BACK in asked:
            self._come_back()

    def _come_back(self) -> None:
        """Interrupt the main thread, or postpone that until its import is done."""
        frame = sys._current_frames().get(self._main)
        self._postponed = importing(frame)
        if interruptible(frame):
            os.kill(os.getpid(), signal.SIGINT)

    def _hear(self) -> None:
        """Answer what the notebook asks on the line; forget the line when the notebook is gone."""
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
        if asked.get("variables"):
            return {"variables": state.variables()}
        summary = state.summary(self._main, self._ours, self._of_gloo)
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
    names = {outer.f_code.co_name for outer in _outwards(frame)}
    names |= {outer.f_globals.get("__name__") for outer in _outwards(frame)}
    return (
        state.executing(frame)
        and not importing(frame)
        and not names & {"showtraceback", "describe_failure", "settle", MPI_BEGINS}
    )


def importing(frame: Any) -> bool:
    """Whether a cell or a call of the notebook is in an import that must not be torn: every later one would fail.

    A module of the learner's own may be torn: it may compute or communicate for as long as it likes.

    Runs on: a rank, in any thread.
    """
    machinery = vars(importlib._bootstrap), vars(importlib._bootstrap_external)
    inner = None
    for outer in _outwards(frame):
        if not any(outer.f_globals is namespace for namespace in machinery):
            inner = outer
        elif inner is None or not is_learners(inner.f_code.co_filename):
            return state.executing(frame)
    return False


def _outwards(frame: Any) -> Iterator[Any]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _interrupt(number: int, frame: Any) -> None:
    """The handler of SIGINT: a KeyboardInterrupt where it does no harm or after an import, nothing elsewhere."""
    if interruptible(frame):
        raise KeyboardInterrupt
    if importing(frame):
        os.kill(os.getpid(), COME_BACK)


def _take_over_interrupts() -> None:
    """Let `_interrupt` handle SIGINT; ipykernel would put its own handler in place for every message."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    kernel = getattr(shell, "kernel", None)
    if kernel is not None:
        kernel.pre_handler_hook = kernel.post_handler_hook = lambda: None
    signal.signal(signal.SIGINT, _interrupt)


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
