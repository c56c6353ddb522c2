"""Workers for the checks of remote calls: one process plays all of them, and notes their calls.

Used by the trials of remote_calls.py and split_models.py, on the rank that tries an answer.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, NamedTuple
from unittest import mock

import torch
from torch.distributed import rpc

from distlab.checking import Seen

DRIVER = "worker0"


class NotedFuture(torch.futures.Future):
    """A future that is complete from the beginning, and notes that it is waited for."""

    note_wait: Callable[[], None]

    def wait(self) -> Any:
        """Note the wait, and return the value or raise the error."""
        self.note_wait()
        return super().wait()


class Workers:
    """Calls between workers, as torch.distributed.rpc has them.

    Attributes:
        here: the worker that runs.
        notes: in order, (what, here, where) for a "call" to a worker, a "wait" for one, or a
            "fetch" from one.
    """

    def __init__(self) -> None:
        self.here = DRIVER
        self.notes = list[tuple[str, str, str]]()

    def try_out(self, fn: Callable[..., Any], *arguments: Any) -> Any:
        """fn(*arguments), with these calls in the place of torch's."""
        with mock.patch.multiple(
            rpc, rpc_sync=self.rpc_sync, rpc_async=self.rpc_async, remote=self.remote
        ):
            return fn(*arguments)

    def rpc_async(
        self, to: str, func: Any, args: Any = (), kwargs: Any = None, timeout: float = 0
    ) -> NotedFuture:
        """Run a function on another worker; its result or error is in the future."""
        future = NotedFuture()
        future.note_wait = lambda: self.notes.append(("wait", self.here, to))
        try:
            result = self._run(to, func, args, kwargs)
            future.set_result(copy.deepcopy(result))
        except Exception as error:
            future.set_exception(RuntimeError(f"{type(error).__name__}: {error}"))
        return future

    def rpc_sync(self, *args: Any, **kwargs: Any) -> Any:
        """Run a function on another worker, and wait for its result."""
        return self.rpc_async(*args, **kwargs).wait()

    def remote(
        self, to: str, func: Any, args: Any = (), kwargs: Any = None, timeout: float = 0
    ) -> Reference:
        """Run a function on another worker, where its result stays."""
        result = self._run(to, func, args, kwargs)
        return Reference(self, to, result)

    def _run(self, to: str, func: Any, args: Any, kwargs: Any) -> Any:
        """Call a function as worker `to`, with copies, as if its arguments had been sent."""
        self.notes.append(("call", self.here, to))
        sent_args = copy.deepcopy(args or ())
        sent_kwargs = copy.deepcopy(kwargs or {})
        caller = self.here
        self.here = to
        try:
            return func(*sent_args, **sent_kwargs)
        finally:
            self.here = caller

    def order(self) -> Seen:
        """Whom the first worker calls, and whether it waits before it has made all of its calls."""
        called = []
        waits_for = None  # the first one
        for what, here, where in self.notes:
            if here != DRIVER:
                continue
            if what == "call" and waits_for is not None:
                why = "Start all calls first; each wait comes after the last of them."
                return Seen(f"waits for {waits_for}, then calls {where}", why)
            if what == "call":
                called.append(where)
            elif waits_for is None:
                waits_for = where
        workers = ", ".join(sorted(called)) or "nobody"
        return Seen(f"calls to {workers}", "Each worker gets one call for each input.")


class Reference:
    """An RRef to a value on worker `home`, with `rpc_sync()`, `rpc_async()` and `remote()`."""

    def __init__(self, workers: Workers, home: str, value: Any):
        self.workers = workers
        self.home = home
        self.value = value

    def __deepcopy__(self, memo: Any) -> Reference:
        return self

    def __getattr__(self, how: str) -> Callable[..., Proxy]:
        call = getattr(self.workers, how)
        return lambda timeout=0: Proxy(self, call)

    def owner(self) -> str:
        """The worker where the value is."""
        return self.home

    def to_here(self, timeout: float = 0) -> Any:
        """A copy of the value."""
        self.workers.notes.append(("fetch", self.workers.here, self.home))
        return copy.deepcopy(self.value)


class Proxy(NamedTuple):
    """Calls the methods of what a reference refers to."""

    reference: Reference
    how: Callable[..., Any]

    def __getattr__(self, method: str) -> Callable[..., Any]:
        home = self.reference.home
        value = self.reference.value
        return lambda *args, **kwargs: self.how(home, getattr(value, method), args, kwargs)
