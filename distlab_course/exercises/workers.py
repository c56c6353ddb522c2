"""Remote calls in checks: agents on the ranks of a check, and notes of what they do.

Runs on the ranks of a check, used by the trials of remote_calls.py, servers.py and split_models.py.
Rank 0 notes its calls and waits, and each rank notes what it does for the others.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from unittest import mock

import torch
import torch.distributed as dist
from torch.distributed import rpc

from distlab.checking import Seen, gathered

DRIVER = "worker0"
DONE_HERE: list[str] = []  # what this rank has done for others, in words


@contextlib.contextmanager
def agents() -> Iterator[None]:
    """RPC between the ranks of a check, which are "worker0", "worker1" and so on.

    Agents that run already under these names are used, and continue afterwards. All checks have
    four workers, because C++ keeps the first agent of a process for its messages about RRefs, which
    know no other workers.

    Runs on: every rank of the check; all begin together, and end together.
    """
    rank = dist.get_rank()
    world_size = dist.get_world_size()
    names = [f"worker{other}" for other in range(world_size)]
    are_running = gathered(_name_of_agent()) == names
    DONE_HERE.clear()
    if not are_running:
        rpc.init_rpc(names[rank], rank=rank, world_size=world_size)
    dist.barrier()
    try:
        yield
    finally:
        dist.barrier()
        if not are_running:
            rpc.shutdown()


def _name_of_agent() -> str | None:
    """The name of this rank's agent; None if none runs."""
    try:
        return str(rpc.get_worker_info().name)
    except RuntimeError:
        return None


def done_here(why: str = "") -> Seen:
    """What this rank has done for others: "serves square(3)"."""
    return Seen(", ".join(DONE_HERE) or "does nothing", why)


class Calls:
    """The remote calls of this rank's program, and its waits for them.

    Attributes:
        notes: in order, ("call", worker) and ("wait", worker).
    """

    def __init__(self) -> None:
        self.notes = list[tuple[str, str]]()
        self._thread = threading.get_ident()
        self._called = dict[int, tuple[Any, str]]()  # each future, with its worker
        self._is_inside = False  # of a function of torch, which may wait itself

    def try_out(self, fn: Callable[..., Any], *arguments: Any) -> Any:
        """fn(*arguments), with its calls noted; returns when all of them have ended."""
        calls = mock.patch.multiple(
            rpc,
            rpc_sync=self._noting(rpc.rpc_sync, waits=True),
            rpc_async=self._noting(rpc.rpc_async),
            remote=self._noting(rpc.remote),
        )
        waits = mock.patch.object(torch.Future, "wait", self._noting_wait(torch.Future.wait))
        with calls, waits:
            result = fn(*arguments)
        for future, _ in self._called.values():
            with contextlib.suppress(Exception):  # the program has seen it, or did not want to
                future.wait()
        return result

    def make(self, to: str, waits: bool, call: Callable[[], Any]) -> Any:
        """Make a call to a worker, noted, and the wait for it where it waits."""
        self.notes.append(("call", to))
        if waits:
            self.notes.append(("wait", to))
        self._is_inside = True
        try:
            result = call()
        finally:
            self._is_inside = False
        if isinstance(result, torch.Future):
            self._called[id(result)] = (result, to)
        return result

    def _noting(self, original: Callable[..., Any], waits: bool = False) -> Callable[..., Any]:
        """A function of torch that makes a call, noted, as is the wait for it where it waits."""

        def noted(to: Any, *args: Any, **kwargs: Any) -> Any:
            return self.make(name_of(to), waits, lambda: original(to, *args, **kwargs))

        return noted

    def _noting_wait(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Future.wait, noted where it is the program that waits."""

        def wait(future: Any) -> Any:
            if threading.get_ident() == self._thread and not self._is_inside:
                _, worker = self._called.get(id(future), (None, "several workers"))
                self.notes.append(("wait", worker))
            return original(future)

        return wait

    def before_first_wait(self) -> list[str]:
        """The workers that are called before the first wait."""
        called = []
        for what, worker in self.notes:
            if what == "wait":
                break
            called.append(worker)
        return called

    def order(self) -> Seen:
        """Whom it calls, and whether it waits before it has made all of its calls."""
        called = [worker for what, worker in self.notes if what == "call"]
        early = self.before_first_wait()
        if len(early) < len(called):
            (_, waits_for), *_ = self.notes[len(early) :]
            why = "Start all calls first; each wait comes after the last of them."
            return Seen(f"waits for {waits_for}, then calls {called[len(early)]}", why)
        workers = ", ".join(sorted(called)) or "nobody"
        return Seen(f"calls to {workers}", "Each worker gets one call for each input.")


def name_of(to: Any) -> str:
    """The name of a worker, which may be given by a WorkerInfo or an id."""
    if isinstance(to, int):
        return f"worker{to}"
    return str(getattr(to, "name", to))


class Reference:
    """An RRef whose calls are noted; sent to another rank, it is the RRef itself."""

    def __init__(self, calls: Calls, rref: Any):
        self.calls = calls
        self.rref = rref

    def __reduce__(self) -> tuple[Any, ...]:
        return _itself, (self.rref,)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.rref, name)

    def rpc_sync(self, *timeout: float) -> Proxy:
        """Calls the methods of the object, and waits."""
        return Proxy(self, self.rref.rpc_sync(*timeout), waits=True)

    def rpc_async(self, *timeout: float) -> Proxy:
        """Calls the methods of the object; gives Futures."""
        return Proxy(self, self.rref.rpc_async(*timeout), waits=False)

    def remote(self, *timeout: float) -> Proxy:
        """Calls the methods of the object; gives references."""
        return Proxy(self, self.rref.remote(*timeout), waits=False)

    def to_here(self, *timeout: float) -> Any:
        """A copy of the object, which is waited for."""
        self.calls.notes.append(("wait", self.rref.owner_name()))
        return self.rref.to_here(*timeout)


class Proxy(NamedTuple):
    """Calls the methods of what a reference refers to."""

    reference: Reference
    methods: Any
    waits: bool

    def __getattr__(self, name: str) -> Callable[..., Any]:
        calls = self.reference.calls
        owner = self.reference.rref.owner_name()
        method = getattr(self.methods, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            result = calls.make(owner, self.waits, lambda: method(*args, **kwargs))
            if isinstance(result, rpc.PyRRef):
                return Reference(calls, result)
            return result

        return call


def _itself(value: Any) -> Any:
    return value
