"""A function that `distlab.spawn` calls on this rank, as in a process that torch has spawned.

Runs on every rank, called by entry.py for scripts/spawn.py. The process was forked for this call
alone and ends after it, so little is put back.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import sys
from collections.abc import Callable, Iterator
from typing import Any

from distlab.rank.main_module import as_process, end_of_process
from distlab.rank.program import leave_to_program
from distlab.wire import faults
from distlab.wire.rendezvous import INTERFACES
from distlab.wire.spawned import Spawned, payload_of

# variables of distlab's that the process keeps: by the first its children are found and ended
KEPT = (faults.CLUSTER_VARIABLE, faults.FOLDER_VARIABLE, *INTERFACES, "RES_OPTIONS")


def run_spawned(rank: int, world_size: int, spawned: Spawned) -> None:
    """Call the function as fn(rank, *args); what it raises goes on.

    An end that a process would report as success is one: sys.exit(), sys.exit(0), os._exit(0), and
    a KeyboardInterrupt, as for torch's spawn.

    Runs on: every rank of the cluster, on its main thread.
    """
    leave_to_program()
    _take_over(spawned)
    with (
        open(payload_of(spawned.payloads, rank), "rb") as payload,
        _streams_of_caller(*pickle.load(payload)),
    ):
        try:
            _call(rank, *pickle.load(payload))
        except KeyboardInterrupt:
            pass
        except SystemExit as end:
            if end.code is not None and end.code != 0:
                raise


def _call(rank: int, fn: Callable[..., Any], args: tuple[Any, ...]) -> None:
    """Call the function, and do what Python does when a process ends."""
    with as_process(), end_of_process():
        fn(rank, *args)


def _take_over(spawned: Spawned) -> None:
    """Have what a spawned process has of the one that spawned it, and nothing of a launcher's."""
    kept = {name: os.environ[name] for name in KEPT if name in os.environ}
    os.environ.clear()
    os.environ.update(kept | dict(spawned.environment))
    os.environ.update({name: kept[name] for name in KEPT[:2] if name in kept})
    os.chdir(spawned.folder)
    sys.path[:] = spawned.path
    sys.argv = list(spawned.arguments)
    multiprocessing.current_process().authkey = spawned.key


@contextlib.contextmanager
def _streams_of_caller(stdout: Any, stderr: Any) -> Iterator[None]:
    """Write where the caller's stdout and stderr lead, in Python and in compiled code.

    The rank's own are put back, because it waits at the end for what was written there.
    """
    own = []
    for number, name, sent in ((1, "stdout", stdout), (2, "stderr", stderr)):
        own.append((number, os.dup(number)))
        descriptor = sent.detach()
        os.dup2(descriptor, number)
        os.close(descriptor)
        stream = open(number, "w", buffering=1, closefd=False, errors="backslashreplace")  # noqa: SIM115
        setattr(sys, name, stream)
    try:
        yield
    finally:
        for number, descriptor in own:
            with contextlib.suppress(Exception):  # the function may have put anything there
                (sys.stdout if number == 1 else sys.stderr).flush()
            os.dup2(descriptor, number)
            os.close(descriptor)
