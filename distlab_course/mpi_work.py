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
        request: MPI's, which holds the memory that MPI reads and writes.
        outputs: the tensors that the operation gives.
        buffer: where MPI puts their numbers, one tensor's after the other's.
        divisor: what the numbers are divided by.
        size: bytes that a message must have.
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
            self.error = f"{self.what} failed in MPI: {str(error).partition(', error stack')[0]}"
        _open.pop(self, None)
        self.source = status.Get_source()
        if self._size is not None and not self.error:
            count = status.Get_count(MPI.BYTE)
            if count != self._size:
                self.error = (
                    f"recv got {count} bytes for a tensor of {self._size}; "
                    "send and recv tensors of one size."
                )
        if self._outputs and not self.error:
            self._fill_outputs()
        return True

    def _fill_outputs(self):
        """Copy the buffer, which may be the outputs' own memory, into the outputs."""
        if self._divisor != 1:
            self._buffer.div_(self._divisor)
        parts = self._buffer.view(-1).split([output.numel() for output in self._outputs])
        for output, part in zip(self._outputs, parts, strict=True):
            if part.data_ptr() != output.data_ptr():
                output.detach().copy_(part.view(output.shape))

    def wait(self, timeout=timedelta(0)):
        """Look again and again, at first without a pause; RuntimeError if it fails or is late."""
        limit = timeout.total_seconds() or self._limit
        began = time.monotonic()
        while not self.is_completed() and time.monotonic() - began < min(limit, SPIN_SECONDS):
            os.sched_yield()
        if not self.is_completed():
            with distlab.waiting("through MPI", self.group.others) as waits:
                while not self.is_completed():
                    waited = time.monotonic() - began
                    if waited > limit:
                        self.group.broken = (
                            f"Timed out waiting {limit * 1e3:.0f}ms for {self.what} operation "
                            "to complete"
                        )
                        raise RuntimeError(self.group.broken)
                    waits.check()
                    time.sleep(min(LONGEST_PAUSE, waited / PATIENCE))
        if self.error:
            raise RuntimeError(self.error)
        return True

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
