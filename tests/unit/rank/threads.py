"""Threads in tests: a wait for what another does, and a Work that a thread can wait for."""

import threading
import time

import torch
import torch.distributed as dist

from distlab.rank import call_hooks
from distlab.rank.call_log import NOTES


def until(condition):
    """Wait until it is true, ten seconds at most."""
    deadline = time.monotonic() + 10
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.001)
    assert condition()


class Slow:
    """A Work whose wait lasts until a test ends it."""

    def __init__(self):
        self.entered, self.end = threading.Event(), threading.Event()

    def wait(self, *timeout):
        self.entered.set()
        assert self.end.wait(10)
        return "done"


def noted(method="allreduce", *arguments):
    """A slow Work and its note, as `ProcessGroup.<method>` would have left them."""
    work = Slow()
    begin = call_hooks._noting(method, lambda group, *args: work)
    assert begin(dist.group.WORLD, *(arguments or ([torch.ones(1)],))) is work
    return work, NOTES.ties[work]
