"""The thread of a process that tests the MPI requests nobody waits for, and keeps what MPI may still write to.

Runs on every rank, called by mpi_backend.py and mpi_work.py; mpi4py only. It tests asynchronous calls, messages whose
Work was dropped, and Futures that C++ waits for, as DDP does.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import sys
import threading
import time
from typing import TYPE_CHECKING

from mpi4py import MPI

if TYPE_CHECKING:
    from distlab.mpi_work import Work

FREED = "Freed while it waited for other ranks through MPI."
# the thread's pause: while C++ waits for a Future, while nobody waits, while another thread tests something anyway
WATCHED_SECONDS, UNWATCHED_SECONDS, WAITED_SECONDS = 0.00005, 0.001, 0.005


class Progress:
    """The daemon thread of a process that tests what nobody waits for; `progress()` is the only one."""

    def __init__(self) -> None:
        self._pending: dict[int, Work] = {}
        self._abandoned: list[Work] = []
        self._wake, self._ending = threading.Event(), False
        self._thread = threading.Thread(target=self._run, name="distlab-mpi-progress", daemon=True)
        self._thread.start()
        atexit.register(self._end)

    def keep(self, work: Work, is_waited_for: bool = False) -> None:
        """Hold a Work until it is done, whether or not its caller does; the thread sleeps on if that waits at once."""
        self._pending[id(work)] = work
        if not is_waited_for and not self._wake.is_set():
            self._wake.set()

    def let_go(self, work: Work) -> None:
        """Hold it no longer: it is done."""
        self._pending.pop(id(work), None)

    def hurry(self) -> None:
        """Look more often: somebody waits for a Future."""
        self._wake.set()

    def abandon(self, work: Work) -> None:
        """Test it no more; MPI may still write into its tensors, so they are held."""
        self._pending.pop(id(work), None)
        self._abandoned.append(work)

    def free(self) -> None:
        """End what C++ waits for."""
        for work in list(self._pending.values()):
            if work.watched and not work.waited:
                work.give_up(FREED)

    def leave(self, broken: list[str]) -> None:
        """End what is pending in the group that this list belongs to; it is being destroyed."""
        for work in [work for work in list(self._pending.values()) if work.broken is broken]:
            if not work.advance():
                work.give_up("the group was destroyed")
        broken.append("it was destroyed")

    def holds(self, broken: list[str]) -> bool:
        """Whether something of this group never ended."""
        return any(work.broken is broken and not work.is_let_go() for work in self._abandoned)

    def _run(self) -> None:
        while not self._ending:
            works = list(self._pending.values())
            if not works:
                self._wake.clear()
                if not self._pending:  # else one came between the look and the clearing
                    self._wake.wait()
            time.sleep(self._look(works))

    def _look(self, works: list[Work]) -> float:
        """Test what nobody else tests; the seconds until the next look, few of which fall into another's wait."""
        pause = UNWATCHED_SECONDS
        for work in works:
            if work.waited:
                pause = WAITED_SECONDS
            elif work.advance():
                self._pending.pop(id(work), None)
            elif work.watched and work.overdue():  # C++ waits for it without a limit
                work.run_out(work.seconds)
        return WATCHED_SECONDS if any(work.watched and not work.waited and not work.done for work in works) else pause

    def _end(self) -> None:
        """At exit: MPI must not be finalized under the thread, nor when it would wait for what never comes.

        What nobody waited for may still end: MPI is finalized later than Python, which must leave its memory alone.
        """
        self._ending = True
        self._wake.set()
        self._thread.join()
        for work in self._pending.values():
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(work))
        if stuck := [work for work in self._abandoned if not work.is_let_go()]:
            names = ", ".join(sorted({work.what for work in stuck}))
            print(f"MPI cannot end while {names} is pending: all its processes are ended.", file=sys.stderr, flush=True)
            MPI.COMM_WORLD.Abort(1)


def free() -> None:
    """End with an error what C++ waits for, such as a backward pass; the groups are broken then.

    Runs on: a rank, on any thread.
    """
    if progress.cache_info().currsize:
        progress().free()


@functools.cache
def progress() -> Progress:
    """This process's one daemon thread, started at the first use."""
    return Progress()
