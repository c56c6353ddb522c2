"""The queue of a process's operations in MPI, and the communicators that they go through.

Runs on every rank, called by mpi_backend.py; torch and mpi4py only. The model is torch's ProcessGroupMPI: a call puts
its operation on a queue and gets a `Work`. There one thread makes MPI's blocking calls, one after the other. But these
can neither be interrupted nor given a time limit, and they keep a core busy. So here the operations are non-blocking
ones, which begin in order, and each turn of the queue tests them all. A thread that waits for a Work takes the turns
itself, without a pause at first, because a short message is on its way for microseconds. While no thread waits in
Python, the queue's own thread takes them. A wait that is given up leaves its operation on the queue, which holds the
memory that MPI may still write to.

Two threads may be inside MPI at once, which needs MPI_THREAD_MULTIPLE, the level that mpi4py asks for.

Source: torch/csrc/distributed/c10d/ProcessGroupMPI.cpp; MPI 4.1, chapters 3 and 6.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
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

from distlab.rank.log import LOG

NAME = "mpi4py"
Begins = Sequence[Callable[[], MPI.Request]]
Finish = Callable[[MPI.Status], None]
FREED = "Freed while it waited for other ranks through MPI."
SPIN_SECONDS = 0.05  # for how long a thread that waits takes turns without a pause
LEAST_PAUSE, MOST_PAUSE = 0.00005, 0.02  # seconds between two turns otherwise; longer while nothing begins or ends
PATIENCE = 250  # how much shorter than the time in which nothing began or ended a pause is
WAITED_SECONDS = 0.005  # the pause of the queue's thread while another one takes turns
TOLD_SECONDS = 0.5  # what mpiexec has not passed on when MPI is aborted, it forgets


class Work(dist.Work):
    """One operation on the queue.

    Args:
        group: has the `timeout` of a wait that is given none otherwise, and is `broken`, in words, when a wait is given
            up; its communicator is there as long as the Work is.
        what: the operation's name, for errors. limit: of this call, in seconds.
        begins: each begins a request of MPI, and holds the memory that MPI reads and writes.
        result: the tensors that the operation gives.
        finish: called with MPI's description of the message when the requests are complete.
    """

    def __init__(self, group: Any, what: str, limit: float, begins: Begins, result: Sequence[Tensor], finish: Finish):
        super().__init__()
        self.group, self.what, self._limit, self._result, self._finish = group, what, limit, result, finish
        self._begins, self._requests, self._status = [*reversed(begins)], [], MPI.Status()
        self._since, self._for_cpp = time.monotonic(), False
        self._outcome = Future()

    # --- in a turn of the queue ---

    def advance(self) -> bool:
        """Begin it, or test its requests; whether MPI has no use for its memory any more."""
        try:
            while self._begins:
                self._requests.append(self._begins.pop()())
            while self._requests:
                request = self._requests.pop()
                if not request.Test(self._status):
                    self._requests.append(request)
                    return False
        except Exception as error:  # of this request; the others are left
            self._end(RuntimeError(f"{self.what} failed in MPI: {_words(error)}"))
            return self.advance()
        return True

    def complete(self) -> None:
        """Do what is left to do when the requests are complete."""
        try:
            if not self._outcome.done():
                self._finish(self._status)
            self._end(None)
        except Exception as error:
            self._end(error)

    def end_overdue(self) -> None:
        """Give it up when C++ has waited for a Future for too long, because C++ sets itself no limit."""
        if self._for_cpp and time.monotonic() - self._since > self._limit:
            self._run_out(self._limit)

    # --- on any thread ---

    def _end(self, error: Exception | None, breaks: str = "") -> None:
        """Let everybody who waits go on, and break the group with these words; nothing where it has ended already."""
        with contextlib.suppress(InvalidStateError):
            self._outcome.set_exception(error)
            self.group.broken = self.group.broken or breaks

    def give_up(self, reason: str) -> None:
        """End it as failed, if it has not ended, and break its group."""
        self._end(RuntimeError(reason), reason)

    def _run_out(self, seconds: float) -> None:
        self.give_up(f"Timed out waiting {seconds * 1e3:.0f}ms for {self.what} operation to complete")

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Wait until the operation has ended.

        Raises:
            RuntimeError: it failed, or did not end within `timeout` (0: the limit of the call or of its group). The
                group must be destroyed and made again then: what was begun in it is not taken back.
        """
        began, seconds = time.monotonic(), timeout.total_seconds() or self._limit
        while not self._outcome.done():
            process_queue().turn()
            process_queue().waited = now = time.monotonic()
            if now - began > seconds:
                self._run_out(seconds)
            elif now - began < SPIN_SECONDS:
                os.sched_yield()
            else:
                time.sleep(process_queue().pause())
        self._outcome.result()
        return True

    def get_future(self) -> torch.futures.Future:
        """A Future of the result, a list of tensors; what `then` is given runs on a thread of its own."""
        future, self._for_cpp = torch.futures.Future(), True

        def ended(_: Any) -> None:
            # what `then` was given may wait for another Work, which needs the queue's turns
            threading.Thread(target=future.set_result, args=(None,), name="then of mpi4py", daemon=True).start()

        def value(_: Any) -> list[Tensor]:
            self._outcome.result()
            return self.result()

        if self._outcome.done():  # C++ may take the value at once
            future.set_result(None)
        else:
            self._outcome.add_done_callback(ended)
        return future.then(value)  # C++, where DDP waits, sees an error of a callback; one that is set, it does not

    def is_completed(self) -> bool:
        process_queue().turn()
        return self._outcome.done()

    def is_success(self) -> bool:
        return self._outcome.done() and self._outcome.exception() is None

    def exception(self) -> Exception | None:
        return self._outcome.exception() if self._outcome.done() else None

    def result(self) -> list[Tensor]:
        return list(self._result)

    def _source_rank(self) -> int:
        """For a message: the rank in the group that it came from."""
        return self._status.Get_source()

    source_rank = _source_rank


class Queue:
    """The queue of a process and its daemon thread; `process_queue()` is the only one."""

    def __init__(self) -> None:
        self.works: dict[Work, None] = {}  # in the order of the calls; MPI may still use their memory
        self.waited = 0.0  # when a thread that waits took a turn
        self._moved = 0.0  # when something began or ended
        self._turning = threading.RLock()  # a handler of a signal may wait in the middle of a turn
        self._wake, self._leaving = threading.Event(), False
        self._thread = threading.Thread(target=self._run, name="distlab-mpi-queue", daemon=True)
        self._thread.start()
        LOG.when_freed.append(functools.partial(self.give_up, FREED))
        atexit.register(self._end)

    def put(self, work: Work) -> None:
        """Let it begin, after all that came before."""
        self.works[work] = None
        self._moved = time.monotonic()
        self._wake.set()

    def turn(self) -> None:
        """Begin what is new, and test the rest; nothing while another thread does."""
        if not self._turning.acquire(blocking=False):
            return
        try:
            for work in list(self.works):
                if work.advance():
                    self.works.pop(work, None)
                    work.complete()
                    self._moved = time.monotonic()
                else:
                    work.end_overdue()
        finally:
            self._turning.release()

    def pause(self) -> float:
        """Seconds until the next turn."""
        return min(MOST_PAUSE, max(LEAST_PAUSE, (time.monotonic() - self._moved) / PATIENCE))

    def give_up(self, reason: str, group: Any = None) -> None:
        """End what has not ended, of this group or of all."""
        for work in list(self.works):
            if group is None or work.group is group:
                work.give_up(reason)

    def _run(self) -> None:
        while not self._leaving:
            self._wake.clear()
            if not self.works and not self._leaving:  # else one came between the look and the clearing
                self._wake.wait()
            if time.monotonic() - self.waited < WAITED_SECONDS:
                time.sleep(WAITED_SECONDS)
            else:
                self.turn()
                time.sleep(self.pause())

    def _end(self) -> None:
        """At exit: end MPI while the memory of messages that are under way is there, or all if one will never end."""
        self._leaving = True
        self._wake.set()
        self._thread.join()
        self.turn()
        if stuck := sorted({work.what for work in self.works if work.exception() is not None}):
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


def _words(error: Exception) -> str:
    """What MPI says, with what it means where that is not plain; or what mpi4py says."""
    if not isinstance(error, MPI.Exception):
        return str(error)
    if error.Get_error_class() == MPI.ERR_TRUNCATE:
        return "the message is longer than the tensor that receives it; send and recv tensors of one size."
    return error.Get_error_string().strip() + "."
