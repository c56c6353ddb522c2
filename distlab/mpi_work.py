"""MPI requests as torch's Work: waited for with a time limit, with a Future that somebody completes, kept until done.

Runs on every rank, called by mpi_backend.py; torch and mpi4py only. MPI is lazy: a message goes on only while some
thread of the process is inside an MPI call, and an MPI call that waits can neither be interrupted nor given a time
limit. So nothing here waits inside MPI. Who waits for a Work tests its requests in turns with the other processes of
the machine (MPI's own wait keeps a core busy, and there may be more ranks than cores), and the thread of
mpi_progress.py tests what nobody waits for. Two threads are inside MPI at once then, which needs MPI_THREAD_MULTIPLE,
the level that mpi4py asks for.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from mpi4py import MPI

from distlab.mpi_progress import FREED, progress

_yield = getattr(os, "sched_yield", functools.partial(time.sleep, 0))
SPIN_SECONDS = 0.05  # tests without a pause at first: a short message is on its way for microseconds
PAUSE_SECONDS = 0.0002  # between two tests of a long wait


class Work(dist.Work):
    """One operation that was begun: its requests, and what is to be done on this rank when they are complete.

    Args:
        what: the operation's name, for errors. limit: torch's options, which may have a timeout for this call.
        timeout: the group's, for a wait that is given none otherwise.
        requests: MPI's, each with where MPI describes the message that came, for a recv.
        result: the tensors that the operation gives.
        finish: called once by the thread that finds the requests complete, where something is left to do then.
        broken: gets the reason, in words, when time ran out; the group's, which begins nothing more then.
        memory: what MPI reads and writes; held as long as the Work is.
    """

    __slots__ = (
        "_began",
        "_begun",
        "_done",
        "_error",
        "_finish",
        "_future",
        "_left",
        "_limit",
        "_lock",
        "_memory",
        "_requests",
        "_result",
        "_status",
        "_timeout",
        "broken",
        "waited",
        "what",
    )

    def __init__(
        self,
        what: str,
        limit: Any,
        timeout: timedelta,
        requests: list[tuple[MPI.Request, MPI.Status | None]],
        result: Sequence[torch.Tensor],
        finish: Callable[[], None] | None,
        broken: list[str],
        memory: Any,
    ):
        super().__init__()
        self.what, self._limit, self._timeout = what, limit, timeout
        self._requests, self._result, self._finish = requests, result, finish
        self.broken, self._memory = broken, memory
        self._lock = threading.RLock()
        self._done, self._error = False, None
        self.waited = self._left = False  # whether a thread is testing it in turns, and is asked to leave it
        self._future: torch.futures.Future | None = None
        self._began = time.monotonic()

    @property
    def seconds(self) -> float:
        """The limit of the call or of its group; looked up when it matters, because a call should not wait for it."""
        limit = getattr(self._limit, "timeout", None)
        return (limit if limit is not None and limit > timedelta(0) else self._timeout).total_seconds()

    @property
    def watched(self) -> bool:
        """Whether somebody waits for its Future, who cannot test."""
        return self._future is not None

    @property
    def done(self) -> bool:
        """Whether it is known to have ended."""
        return self._done

    def advance(self, seconds: float = 0.0) -> bool:
        """Test the requests, once or for so long; whether the operation has ended, well or not.

        It lets MPI go on with everything else too.
        """
        if self._done:
            return True
        with self._lock:
            if self._done:
                return True
            try:
                if not self._tested(seconds):
                    return False
            except MPI.Exception as error:
                self._fail(f"{self.what} failed in MPI: {words(error)}")
                return True
            try:
                if self._finish is not None:
                    self._finish()
            except Exception as error:
                self._end(error)
            else:
                self._end(None)
        return True

    def _tested(self, seconds: float) -> bool:
        """Whether all requests are complete within so long; they are tested in turns with the machine's processes."""
        until = time.monotonic() + seconds
        while self._requests:  # one by one: an error is then that request's own
            request, self._status = self._requests[-1]
            while not request.Test(self._status):
                if self._left or time.monotonic() >= until:
                    return False
                _yield()
            self._requests.pop()
        return True

    def _fail(self, reason: str) -> None:
        """The request that is tested has failed. MPI still uses the memory of those that are left."""
        self._requests.pop()
        if self._requests:
            self.give_up(reason)
        else:
            self._end(RuntimeError(reason))

    def _end(self, error: Exception | None) -> None:
        self._error, self._done = error, True
        self._finish = None
        if not self._requests:
            self._memory = None
        if self._future is not None:
            # what `then` was given runs elsewhere: it may wait for another Work, which somebody must test meanwhile
            threading.Thread(target=self._begun.set_result, args=(None,), name="then of mpi4py", daemon=True).start()

    def _value(self, _: Any) -> list[torch.Tensor]:
        """What the Future gives."""
        if self._error is not None:
            raise self._error
        return self.result()

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Wait until the operation has ended.

        Raises:
            RuntimeError: it failed, or did not end within `timeout` (0: the limit of the call or of its group). The
                group must be destroyed and made again then: what was begun in it is not taken back.
        """
        began, given = time.monotonic(), timeout.total_seconds()
        self.waited = True
        try:
            ended = self.advance(min(SPIN_SECONDS, given or SPIN_SECONDS))
            while not ended:
                if self._left:
                    raise RuntimeError(FREED)
                if time.monotonic() - began > (limit := given or self.seconds):
                    self.run_out(limit)
                time.sleep(PAUSE_SECONDS)
                ended = self.advance()
        finally:
            self.waited = self._left = False
        progress().let_go(self)
        if self._error is not None:
            raise self._error
        return True

    def end_wait(self) -> None:
        """Let who waits for it raise at the next test; MPI goes on with it."""
        self._left = True

    def run_out(self, seconds: float) -> None:
        """End it as failed, after so many seconds."""
        self.give_up(f"Timed out waiting {seconds * 1e3:.0f}ms for {self.what} operation to complete")

    def give_up(self, reason: str) -> None:
        """End it as failed. MPI may still write into its tensors: they are kept as long as the process lives."""
        with self._lock:
            if not self._done:
                self.broken.append(reason)
                progress().abandon(self)
                self._end(RuntimeError(reason))

    def is_let_go(self) -> bool:
        """Whether MPI has no use for its memory any more; of one that was given up, too."""
        with self._lock, contextlib.suppress(MPI.Exception):
            return self._tested(0.0)
        return False

    def overdue(self) -> bool:
        """Whether it was begun longer ago than its limit."""
        return time.monotonic() - self._began > self.seconds

    def get_future(self) -> torch.futures.Future:
        """A Future of the result, a list of tensors; what `then` is given runs on a thread of its own."""
        with self._lock:
            if self._future is None:
                self._begun = torch.futures.Future()
                # C++, where DDP waits, sees an error of a callback, and takes one that is set for a value
                self._future = self._begun.then(self._value)
                if self._done:
                    self._begun.set_result(None)
        progress().hurry()
        return self._future

    def is_completed(self) -> bool:
        return self.advance()

    def is_success(self) -> bool:
        return self._done and self._error is None

    def exception(self) -> Exception | None:
        return self._error

    def result(self) -> list[torch.Tensor]:
        return list(self._result)

    def synchronize(self) -> None:
        self.wait()

    def _source_rank(self) -> int:
        """For a message: the rank in the group that it came from."""
        return self._status.Get_source()

    source_rank = _source_rank


_WAIT = Work.wait.__code__


def words(error: MPI.Exception) -> str:
    """What MPI says, with what it means where that is not plain."""
    if error.Get_error_class() == MPI.ERR_TRUNCATE:
        return "the message is longer than the tensor that receives it; send and recv tensors of one size."
    return error.Get_error_string().strip() + "."


def end_wait(frame: FrameType | None) -> None:
    """Let the wait for a Work that led to this frame end with an error; between two tests, or what MPI uses is lost.

    Runs on: a rank, on the thread of the frame.
    """
    while frame is not None:
        if frame.f_code is _WAIT:
            frame.f_locals["self"].end_wait()
        frame = frame.f_back
