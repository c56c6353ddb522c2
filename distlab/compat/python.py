"""The private parts of Python's own library that distlab uses.

Runs on every rank.
"""

from multiprocessing import util
from typing import Any
from weakref import finalize


def end_multiprocessing() -> None:
    """Do what multiprocessing does when a process ends: queues are written out, children joined.

    Private: the function, which Python calls in a process that multiprocessing has started, and
    which does nothing the second time, unless it is told that the process goes on.
    """
    # not in typeshed
    util._exit_function()  # type: ignore[attr-defined]
    util._exiting = False  # type: ignore[attr-defined]


def finalizers() -> set[Any]:
    """The objects of weakref.finalize that are still to be called.

    Private: the registry, which Python goes through when a process ends.
    """
    return set(finalize._registry)  # type: ignore[attr-defined]


def run_finalizers(before: set[Any]) -> None:
    """Call those that were not there before, the last one first, as Python does at the end.

    Args:
        before: those that were.
    """
    index_of = finalize._registry  # type: ignore[attr-defined]
    late = [one for one in finalizers() - before if one.atexit]
    for one in sorted(late, key=lambda one: int(index_of[one].index), reverse=True):
        one()
