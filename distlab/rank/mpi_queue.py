"""The queue of a process's operations in MPI, and the communicators that they go through.

Runs on every rank, called by mpi_backend.py; torch and mpi4py only. The model is torch's ProcessGroupMPI: a call puts
its operation on a queue and gets a `Work`, and one thread makes all of MPI's calls, in the order of the queue. There
these calls block. But such a call can neither be interrupted nor given a time limit, and it keeps a core busy. So here
the operations are non-blocking ones, which begin in order, and each turn of the queue tests them all. While a thread
waits for one in Python, there is no pause between turns at first, because a short message is on its way for
microseconds. A wait that is given up leaves its operation on the queue, which holds the memory that MPI may still write
to.

The queue's thread and the program's may be inside MPI at once, which needs MPI_THREAD_MULTIPLE, the level that mpi4py
asks for.

Source: torch/csrc/distributed/c10d/ProcessGroupMPI.cpp; MPI 4.1, chapters 3 and 6.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import math
import os
import sys
import threading
import time
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from datetime import timedelta
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from mpi4py import MPI
from torch import Tensor

NAME = "mpi4py"
Begin = Callable[[], MPI.Request]
Finish = Callable[[MPI.Status], None]
FREED = "Freed while it waited for other ranks through MPI."
SPIN_SECONDS = 0.05  # for how long there is no pause between turns while somebody waits
LEAST_PAUSE, MOST_PAUSE = 0.00005, 0.02  # seconds between two turns otherwise; longer while nothing begins or ends
PATIENCE = 250  # how much shorter than the time in which nothing began or ended a pause is
TOLD_SECONDS = 0.5  # what mpiexec has not passed on when MPI is aborted, it forgets


class Work(dist.Work):
    """One operation on the queue.

    Args:
        group: has the `timeout` of a wait that is given none otherwise, and is `broken`, in words, when a wait is given
            up; its communicator is there as long as the Work is.
        what: the operation's name, for errors. limit: of this call, in seconds.
        begin: begins a request of MPI, and holds the memory that MPI reads and writes.
        result: the tensors that the operation gives.
        finish: called with MPI's description of the message when the request is complete.

    Attributes:
        spins_until: when pauses between turns begin, because a thread waits for it in Python. given_up: whether nobody
            waits any more for what is still under way.
    """

    def __init__(self, group: Any, what: str, limit: float, begin: Begin, result: Sequence[Tensor], finish: Finish):
        super().__init__()
        self.group, self.what, self._limit, self._result = group, what, limit, result
        self._begin, self._finish = begin, finish
        self._request, self._status = None, MPI.Status()
        self.spins_until, self.given_up = 0.0, False
        self._due = math.inf, 0.0  # when a wait for it ends, and how many seconds it may take
        self._outcome = Future()

    # --- on the queue's thread ---

    def advance(self) -> bool:
        """Begin it, or test its request; whether MPI has no use for its memory any more."""
        try:
            if self._request is None:
                self._request = self._begin()
            if not self._request.Test(self._status):
                when, seconds = self._due
                if time.monotonic() > when:
                    self.give_up(f"Timed out waiting {seconds * 1e3:.0f}ms for {self.what} operation to complete")
                return False
            if not self._outcome.done():
                self._finish(self._status)
            self._end(None)
        except MPI.Exception as error:
            self._end(RuntimeError(f"{self.what} failed in MPI: {_words(error)}"))
        except Exception as error:
            self._end(error)
        return True

    # --- on any thread ---

    def _end(self, error: Exception | None) -> None:
        """Let everybody who waits go on; nothing where it has ended already."""
        with contextlib.suppress(InvalidStateError):
            self._outcome.set_exception(error)

    def give_up(self, reason: str) -> None:
        """End it as failed, if it has not ended, and break its group."""
        if not self._outcome.done():
            self.given_up = True
            self.group.broken = self.group.broken or reason
            self._end(RuntimeError(reason))

    def _expect(self, seconds: float) -> None:
        """Give it up when so many seconds have passed from now."""
        self._due = min(self._due, (time.monotonic() + seconds, seconds))
        process_queue().wake.set()

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Wait until the operation has ended.

        Raises:
            RuntimeError: it failed, or did not end within `timeout` (0: the limit of the call or of its group). The
                group must be destroyed and made again then: what was begun in it is not taken back.
        """
        self.spins_until = time.monotonic() + SPIN_SECONDS
        self._expect(timeout.total_seconds() or self._limit)
        self._outcome.result()
        return True

    def get_future(self) -> torch.futures.Future:
        """A Future of the result, a list of tensors; what `then` is given runs on a thread of its own."""
        future = torch.futures.Future()
        self._expect(self._limit)  # C++, which waits for Futures, sets itself no limit

        def ended(_: Any) -> None:
            # what `then` was given may wait for another Work, which needs the queue's turns
            threading.Thread(target=future.set_result, args=(None,), name="then of mpi4py", daemon=True).start()

        def value(_: Any) -> list[Tensor]:
            self._outcome.result()
            return self.result()

        self._outcome.add_done_callback(ended)
        return future.then(value)  # C++, where DDP waits, sees an error of a callback; one that is set, it does not

    def is_completed(self) -> bool:
        return self._outcome.done()

    def result(self) -> list[Tensor]:
        return list(self._result)

    def _source_rank(self) -> int:
        """For a message: the rank in the group that it came from."""
        return self._status.Get_source()


class Queue:
    """The queue of a process and its daemon thread; `process_queue()` is the only one."""

    def __init__(self) -> None:
        self.works: dict[Work, None] = {}  # in the order of the calls; MPI may still use their memory
        self._moved = 0.0  # when something began or ended
        self.wake, self._leaving = threading.Event(), False
        self._thread = threading.Thread(target=self._run, name="distlab-mpi-queue", daemon=True)
        self._thread.start()
        atexit.register(self._end)

    def put(self, work: Work) -> None:
        """Let it begin, after all that came before."""
        self.works[work] = None
        self._moved = time.monotonic()
        self.wake.set()

    def give_up(self, reason: str, group: Any = None) -> None:
        """End what has not ended, of this group or of all."""
        for work in list(self.works):
            if group is None or work.group is group:
                work.give_up(reason)

    def _run(self) -> None:
        while not self._leaving:
            self._rest()
            self._turn()

    def _rest(self) -> None:
        """Wait for something to do, or for the next turn."""
        works, now = list(self.works), time.monotonic()
        if any(now < work.spins_until for work in works):
            os.sched_yield()
        else:
            pause = min(MOST_PAUSE, max(LEAST_PAUSE, (now - self._moved) / PATIENCE))
            self.wake.wait(pause if works else None)
        self.wake.clear()

    def _turn(self) -> None:
        """Begin what is new, and test the rest."""
        for work in list(self.works):
            if work.advance():
                del self.works[work]
                self._moved = time.monotonic()

    def _end(self) -> None:
        """At exit: end MPI while the memory of messages that are under way is there, or all if one will never end."""
        self._leaving = True
        self.wake.set()
        self._thread.join()
        self._turn()
        if stuck := sorted({work.what for work in self.works if work.given_up}):
            names = ", ".join(stuck)
            print(f"MPI cannot end while {names} is pending: all its processes are ended.", file=sys.stderr, flush=True)
            time.sleep(TOLD_SECONDS)
            MPI.COMM_WORLD.Abort(1)
        if not MPI.Is_finalized():
            MPI.Finalize()


@functools.cache
def process_queue() -> Queue:
    """This process's one queue; its thread starts at the first use."""
    return Queue()


def free() -> None:
    """End with an error whatever waits for MPI, in Python or, as a backward pass, in C++; its groups are broken then.

    Runs on: a rank, on any thread.
    """
    if process_queue.cache_info().currsize:
        process_queue().give_up(FREED)


def communicator(store: dist.Store, rank: int, size: int, timeout: timedelta) -> MPI.Intracomm:
    """A new communicator of the processes that are the group's ranks, in the group's order.

    Every member writes its number in MPI's world into the store and waits for the others', with the store's time
    limit, so that MPI's own call, which has none, begins when all are there.
    """
    world = MPI.COMM_WORLD
    keys = [f"{NAME}/{other}" for other in range(size)]
    store.set(keys[rank], str(world.rank))
    store.wait(keys, timeout)
    members = [int(store.get(key)) for key in keys]
    if len(set(members)) < size:
        what = f"{NAME} needs {size} processes that one mpiexec started, and MPI knows {world.size} here"
        refuse(f"{what}. Start them with: mpiexec -n {size} python script.py")
    tag = zlib.crc32(repr(members).encode()) & 0x7FFF  # apart from other groups that are being made now
    group = world.group.Incl(members)
    comm = world.Create_group(group, tag)
    group.Free()
    return comm


def free_communicator(comm: MPI.Intracomm) -> None:
    """When a group and all its operations are gone: MPI has room for some 2000 communicators."""
    if not MPI.Is_finalized():
        comm.Free()


def refuse(why: str) -> NoReturn:
    """As torch's own backends do for what they cannot do: no argument error, because ranks may differ in it."""
    raise RuntimeError(why)


def _words(error: MPI.Exception) -> str:
    """What MPI says, with what it means where that is not plain."""
    if error.Get_error_class() == MPI.ERR_TRUNCATE:
        return "the message is longer than the tensor that receives it; send and recv tensors of one size."
    return error.Get_error_string().strip() + "."
