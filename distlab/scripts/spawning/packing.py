"""A function and its arguments on the way to spawned processes, as multiprocessing sends them.

Runs in the process that calls `distlab.spawn`, called by spawn.py; rank/spawned.py reads it.
Queues, locks, managers, files' descriptors and tensors in shared memory are sent as to any process
that multiprocessing starts. A function is found again by its module's name, as there; one of a
notebook, of `__main__` or without a name travels by value.
"""

from __future__ import annotations

import io
import multiprocessing
import os
import sys
from collections import ChainMap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import context, reduction, resource_sharer
from typing import Any

import cloudpickle

from distlab.wire.spawned import Spawned, payload_of


def packed(fn: Any, args: Sequence[Any], n: int, payloads: str) -> Spawned:
    """What each of n processes needs for the call fn(i, *args), partly in files.

    Args:
        fn: the function.
        args: its arguments after the first.
        n: how many processes.
        payloads: an empty folder for the files.

    Raises:
        Exception: whatever the pickling of fn or args raises.
    """
    for rank in range(n):  # one for each: a descriptor can be taken out once
        with open(payload_of(payloads, rank), "wb") as file, _as_if_spawning():
            for value in (_streams(), (fn, tuple(args))):
                file.write(_pickled(value))
    return Spawned(
        payloads=payloads,
        folder=os.getcwd(),
        path=tuple(sys.path),
        arguments=tuple(sys.argv),
        environment=dict(os.environ),
        key=bytes(multiprocessing.current_process().authkey),
    )


def _streams() -> tuple[Any, Any]:
    """This process's stdout and stderr, so that a child writes where a child's output goes."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    return resource_sharer.DupFd(1), resource_sharer.DupFd(2)


def _pickled(value: Any) -> bytes:
    """A value as multiprocessing would pickle it, and what that cannot pickle by value."""
    stream = io.BytesIO()
    _Pickler(stream, protocol=5).dump(value)
    return stream.getvalue()


class _Pickler(cloudpickle.Pickler):
    """cloudpickle, with what multiprocessing and torch have registered for their own objects."""

    def __init__(self, file: Any, protocol: int):
        # before pickle's own __init__, which looks for it
        of_multiprocessing = reduction.ForkingPickler(file).dispatch_table
        self.dispatch_table = ChainMap(of_multiprocessing, cloudpickle.Pickler.dispatch_table)
        super().__init__(file, protocol=protocol)


class _Popen:
    """In the place of multiprocessing's own, which starts a process: descriptors are sent later."""

    def duplicate_for_child(self, descriptor: int) -> int:
        return descriptor

    def DupFd(self, descriptor: int) -> Any:
        return resource_sharer.DupFd(descriptor)


@contextmanager
def _as_if_spawning() -> Iterator[None]:
    """Let objects be pickled that multiprocessing allows only while it starts a process."""
    # it need only look like multiprocessing's own
    context.set_spawning_popen(_Popen())  # type: ignore[arg-type]
    try:
        yield
    finally:
        context.set_spawning_popen(None)
