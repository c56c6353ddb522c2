"""Processes that a cell forks: they print under their rank, and end as any program does.

Runs on every rank and in its children, called by around_cells.py.
"""

import faulthandler
import os
import signal
import sys
import threading
from typing import Any

from distlab.rank.collector import COLLECTOR


def make_children_plain(numbers: list[int], streams: dict[str, Any]) -> None:
    """In a process that a cell forks, make signals, faults and streams do what they do elsewhere.

    What the rank has left for garbage collection is not collected there: see `Collector`.

    Signals are blocked during the fork: one that the parent sends before the child has its own
    handlers, as a short-lived Pool does, would be lost. What the child prints goes to its
    descriptors, as what any program prints that a cell starts, and the rank, which reads them,
    shows it as its own: a thread that sent it is not in the child.

    Args:
        streams: the rank's, by name; whoever has kept one, as a handler of logging does, writes to
            the same place.
    """
    masks = threading.local()

    def before() -> None:
        COLLECTOR.pause()
        masks.old = signal.pthread_sigmask(signal.SIG_BLOCK, [*numbers, signal.SIGINT])

    def in_parent() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, masks.old)
        COLLECTOR.resume()

    def in_child() -> None:
        COLLECTOR.begin_child()
        faulthandler.disable()  # it would write into the rank's file
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, masks.old)
        for name, descriptor in (("stdout", 1), ("stderr", 2)):
            of_rank = streams.pop(name, None)  # nothing puts it back
            if of_rank is None:  # a child of a child
                continue
            _write_to(descriptor, name, of_rank)

    os.register_at_fork(before=before, after_in_parent=in_parent, after_in_child=in_child)


def _write_to(descriptor: int, name: str, of_rank: Any) -> None:
    """Have the rank's stream, in a process that a cell has forked, write to a descriptor.

    Args:
        name: the name of the stream in sys.
        of_rank: the rank's stream.
    """
    plain = os.fdopen(
        descriptor, "w", buffering=1, encoding="utf-8", errors="replace", closefd=False
    )
    of_rank.write = plain.write
    of_rank.flush = plain.flush
    if getattr(sys, name) is of_rank:
        setattr(sys, name, plain)


def end_process(failed: bool) -> None:
    """End this process, which is not the rank: the cell that ends here has forked it."""
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(1 if failed else 0)
