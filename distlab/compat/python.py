"""The private parts of Python's own library that distlab uses.

Runs on every rank.
"""

from multiprocessing import util


def end_multiprocessing() -> None:
    """Do what multiprocessing does when a process ends: queues are written out, children joined.

    Private: the function, which Python calls in a process that multiprocessing has started.
    """
    # not in typeshed
    util._exit_function()  # type: ignore[attr-defined]
