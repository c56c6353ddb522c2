"""Calls that are begun now and posted later, by a thread: what checked mode does with a call that must not block.

Runs on every rank while a cell is checked, called by checked.py. An irecv, or an asynchronous collective, returns at
once; its tensors may move only after the other ranks have said what they send. Calls in one *lane* (a group's
collectives, or the messages from one source with one tag) are posted in the order in which they were begun.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from distlab.notes import NOTES, Note, waiting_for

POLL_SECONDS = 0.001
THREAD_NAME = "distlab-checked"


class Deferred(dist.Work):
    """A call that is posted later; used like the Work that it becomes.

    Args:
        note: of the call. original: posts it, and returns its Work. limit: seconds that a wait may take.
    """

    def __init__(self, note: Note, original: Callable[[], Any], limit: float):
        super().__init__()
        self._note, self._original, self._limit = note, original, limit
        self._settled = threading.Event()
        self._lock = threading.Lock()
        self._work: Any = None
        self._error: Exception | None = None
        self._futures: list[Any] = []

    def settle(self, check: Callable[[], None]) -> None:
        """Post the call, or remember the error with which `check` or the call itself refuses."""
        try:
            check()
            self._work = self._original()
        except Exception as error:
            self._error = error
        with self._lock:
            self._settled.set()
            futures, self._futures = self._futures, []
        for future in futures:
            self._pass_on(future)

    def fail(self, error: Exception) -> None:
        """Let every wait raise this error, where the call has not been posted."""

        def refuse() -> None:
            raise error

        if not self._settled.is_set():
            self.settle(refuse)

    def _posted(self, limit: float | None = None) -> Any:
        """The call's own Work, waited for."""
        seconds = self._limit if limit is None else limit
        if not self._settled.wait(seconds):
            # gloo's own words for it
            raise RuntimeError(f"Timed out waiting {seconds * 1000:.0f}ms for recv operation to complete")
        if self._error is not None:
            raise self._error
        return self._work

    def wait(self, timeout: timedelta | None = None) -> bool:
        """As Work.wait."""
        if timeout is not None:
            self._note.waits_shorter = True
        with waiting_for(self._note):
            work = self._posted(None if timeout is None else timeout.total_seconds())
            done = work.wait() if timeout is None else work.wait(timeout)
        self._note.done = True
        return done

    def is_completed(self) -> bool:
        """As Work.is_completed."""
        return self._settled.is_set() and (self._error is not None or self._work.is_completed())

    def get_future(self) -> Any:
        """As Work.get_future; it does not wait for the call to be posted."""
        future = torch.futures.Future()
        NOTES.tie(future, self._note)
        with self._lock:
            settled = self._settled.is_set()
            if not settled:
                self._futures.append(future)
        if settled:
            self._pass_on(future)
        return future

    def _pass_on(self, future: Any) -> None:
        """Complete a future as the call's own is completed."""

        def copy(done: Any) -> None:
            try:
                future.set_result(done.value())
            except Exception as error:
                future.set_exception(error)

        try:
            self._posted(0).get_future().add_done_callback(copy)
        except Exception as error:
            future.set_exception(error)


def _of_work(name: str) -> Callable[..., Any]:
    def method(self: Deferred, *args: Any) -> Any:
        with waiting_for(self._note):
            work = self._posted()
        return getattr(work, name)(*args)

    return method


for _name in ("_source_rank", "exception", "is_success", "result", "source_rank", "synchronize"):
    setattr(Deferred, _name, _of_work(_name))

# of an entry: its call, its lanes, and what finds out whether it can be posted now
Entry = tuple[Deferred, list[Any], Callable[[Any, Iterable[Any]], Callable[[], None] | None]]


class Poster:
    """A thread that posts deferred calls; those that share a lane in their order.

    Args:
        store: a connection of its own: one that waits on a key would make others wait.
    """

    def __init__(self, store: Any):
        self._store = store
        self._waiting: list[Entry] = []
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._finishing = False

    def add(self, call: Deferred, lanes: list[Any], ready: Callable[..., Callable[[], None] | None]) -> None:
        """Post `call` when its turn has come.

        Args:
            ready: from the store and those of `lanes` where nothing is before it, the check to make, or None for later.
        """
        with self._lock:
            self._waiting.append((call, lanes, ready))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=THREAD_NAME, daemon=True)
                self._thread.start()

    def busy(self, lane: Any) -> bool:
        """Whether a call in this lane has yet to be posted."""
        with self._lock:
            return any(lane in lanes for _, lanes, _ in self._waiting)

    def finish(self) -> None:
        """Post all that waits, unchecked where the others have not come, and return when it is posted."""
        self._finishing = True
        if thread := self._thread:
            thread.join()

    def _run(self) -> None:
        """Work until nothing is left to post."""
        pauses = itertools.chain([POLL_SECONDS / 4] * 4, itertools.repeat(POLL_SECONDS))
        while True:
            with self._lock:
                if not self._waiting:
                    self._thread = None
                    return
                waiting = list(self._waiting)
            try:
                posted = self._post_one(waiting)
            except Exception as error:  # the store is gone
                with self._lock:
                    lost, self._waiting, self._thread = self._waiting, [], None
                for call, *_ in lost:
                    call.fail(error)
                return
            if not posted:
                time.sleep(next(pauses))

    def _post_one(self, waiting: list[Entry]) -> bool:
        taken: set[Any] = set()
        for entry in waiting:
            call, lanes, ready = entry
            check = ready(self._store, [lane for lane in lanes if lane not in taken])
            if check is not None or self._finishing:
                call.settle(check or (lambda: None))
                with self._lock:
                    self._waiting.remove(entry)
                NOTES.total += 1
                return True
            taken.update(lanes)
        return False
