"""Pauses of Python's garbage collector, and what a forked process does not collect.

Runs on every rank, on any thread: watchdog.py pauses it while it reads the frames of other threads,
children.py while a process is forked.
"""

import contextlib
import gc
import threading
from collections.abc import Iterator


class Collector:
    """The garbage collector, which several threads may pause at a time.

    It runs again when the last pause has ended, if it ran before the first.
    """

    def __init__(self) -> None:
        self._changing = threading.Lock()
        self._pauses = 0
        self._ran_before = False

    def pause(self) -> None:
        """Collect nothing until `resume`."""
        with self._changing:
            if self._pauses == 0:
                self._ran_before = gc.isenabled()
                gc.disable()
            self._pauses += 1

    def resume(self) -> None:
        """End a pause."""
        with self._changing:
            if self._pauses == 0:  # an interrupt hit the begin of the pause
                return
            self._pauses -= 1
            if self._pauses == 0 and self._ran_before:
                gc.enable()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Collect nothing inside the with statement."""
        self.pause()
        try:
            yield
        finally:
            self.resume()

    def begin_child(self) -> None:
        """In a process that was forked in a pause, end it, but never collect what is there already.

        What the parent has left for collection may be a process group, whose C++ destructor waits
        for its threads to end. They are not in the child: it would wait forever, at whichever line
        the collection happened to begin. It was seen in a DataLoader's worker, while torch seeded
        its random numbers.
        """
        gc.freeze()
        self._changing = threading.Lock()  # another thread may have held it
        self._pauses = 0
        if self._ran_before:
            gc.enable()


COLLECTOR = Collector()
