"""Operations of `mpi_backend` that are under way in MPI, as torch waits for them.

Runs on every rank. MPI's own waits can neither be interrupted nor given a limit, so a Work looks
again and again. As long as one is open, MPI may read and write its memory.
"""

from __future__ import annotations

import atexit
import os
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from mpi4py import MPI

import distlab

SPIN_SECONDS = 0.05  # without a pause
LONGEST_PAUSE = 0.02  # seconds
PATIENCE = 250  # a pause is so much shorter than the wait so far
_open: dict[Work, None] = {}  # Works whose memory MPI may still use


class Work(dist.Work):
    """One operation: it ends in wait(), and when another one begins or is waited for.

    Args:
        group: the `Group` that has begun it.
        what: its name, for a person.
        limit: seconds that a wait without a limit of its own may take.
        request: MPI's, which holds the memory that MPI reads and writes.
        outputs: the tensors that get the result.
        buffer: where MPI puts their elements, one tensor's after the other's.
        divisor: what the elements are divided by.
        size: the bytes that a received message must have; None for every other operation.
    """

    def __init__(self, group, what, limit, request, outputs, buffer, divisor, size):
        super().__init__()
        self.group = group
        self.what = what
        self.error = ""
        self.source = -1  # the rank that a message came from
        self._limit = limit
        self._request = request
        self._size = size
        self._outputs = outputs
        self._buffer = buffer
        self._divisor = divisor
        _open[self] = None

    def is_completed(self):
        """Look whether MPI has ended the operation; if so, put its result into the outputs."""
        if self not in _open:
            return True
        status = MPI.Status()
        try:
            if not self._request.Test(status):
                return False
        except MPI.Exception as error:
            message, _, _ = str(error).partition(", error stack")
            self.error = f"{self.what} failed in MPI: {message}"
        _open.pop(self, None)
        self.source = status.Get_source()
        if self._size is not None and not self.error:
            self._compare_size(status.Get_count(MPI.BYTE))
        if self._outputs and not self.error:
            self._fill_outputs()
        return True

    def _compare_size(self, count):
        """Note an error if a message has other bytes than its tensor."""
        if count != self._size:
            self.error = (
                f"recv got {count} bytes for a tensor of {self._size}; "
                "send and recv tensors of one size."
            )

    def _fill_outputs(self):
        """Copy the buffer, which may be the outputs' own memory, into the outputs."""
        if self._divisor != 1:
            self._buffer.div_(self._divisor)
        sizes = [output.numel() for output in self._outputs]
        parts = self._buffer.view(-1).split(sizes)
        for output, part in zip(self._outputs, parts, strict=True):
            if part.data_ptr() != output.data_ptr():
                output.detach().copy_(part.view(output.shape))

    def wait(self, timeout=timedelta(0)):
        """Look again and again, at first without a pause.

        Raises:
            RuntimeError: MPI has failed, or the time is over; the group is broken then.
        """
        limit = timeout.total_seconds() or self._limit
        began = time.monotonic()
        without_pause = min(limit, SPIN_SECONDS)
        while not self.is_completed() and time.monotonic() - began < without_pause:
            os.sched_yield()
        if not self.is_completed():
            self._wait_with_pauses(began, limit)
        if self.error:
            raise RuntimeError(self.error)
        return True

    def _wait_with_pauses(self, began, limit):
        """Look again and again, ever more seldom, where the notebook sees for whom this waits."""
        with distlab.waiting("through MPI", self.group.others) as waits:
            while not self.is_completed():
                waited = time.monotonic() - began
                if waited > limit:
                    milliseconds = f"{limit * 1e3:.0f}ms"
                    self.group.broken = (
                        f"Timed out waiting {milliseconds} for {self.what} operation to complete"
                    )
                    raise RuntimeError(self.group.broken)
                waits.check()
                pause = min(LONGEST_PAUSE, waited / PATIENCE)
                time.sleep(pause)

    def get_future(self):
        """A Future that is done: DDP, which asks for one at once, waits for its bucket."""
        self.wait()
        future = torch.futures.Future()
        future.set_result(self.result())
        return future

    def result(self):
        return list(self._outputs)

    def _source_rank(self):
        return self.source


def look_at_all():
    """Look at every open Work, whether MPI has ended it."""
    for work in list(_open):
        work.is_completed()


def has_open_work(group):
    """Whether MPI may still use memory of an operation of this group."""
    return any(work.group is group for work in _open)


def last_of(works):
    """The last of several Works, for all of them."""
    for work in works[:-1]:
        work.wait()
    return works[-1]


@atexit.register
def _end():
    """End MPI while the memory of messages that are under way is there.

    Where one of them will never arrive, all processes are ended.
    """
    look_at_all()
    if any(work.group.broken for work in _open):
        MPI.COMM_WORLD.Abort(1)
    if not MPI.Is_finalized():
        MPI.Finalize()
