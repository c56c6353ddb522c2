"""A Work that a thread can wait for, and its note."""

import threading

import torch
import torch.distributed as dist

from distlab.rank import call_hooks
from distlab.rank.call_log import NOTES


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
