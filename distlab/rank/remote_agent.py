"""The agent through which this rank makes and serves remote procedure calls: started, ended, and started again.

Runs on every rank. `init_rpc` takes the place of torch's: it meets the other workers at the cluster's store. The
caller's side and the callee's are in remote_calls.py.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import itertools
import json
import logging
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import torch.distributed as dist
from torch.distributed import rpc
from torch.distributed.distributed_c10d import _get_default_store

from distlab.compat import torch_rpc as private
from distlab.errors import refuse
from distlab.rank.call_log import NOTES, RemoteNote, waiting_for
from distlab.wire.messages import Worker

SCHEME = "distlab"  # of the init method under which an agent finds the cluster's store
END_SECONDS = 2.0  # for functions that are being served to end, when the agent is taken down
NAME = re.compile(r"[\w:-]{1,127}", re.ASCII)


@dataclass
class Served:
    """A function that a thread of this rank runs for another rank."""

    caller: int
    function: str
    printed: list[str] = field(default_factory=list)


class Agent:
    """What this rank knows of its agent; one object a process, `AGENT`.

    Attributes:
        worker: None while there is no agent. starts: how often one was begun to be started since the group was built.
        serving: what runs for other ranks, by thread. tell: takes what a served function has printed.
        number: this process's worker id, None until it has one. again: whether any worker had an agent before this.
        abandoned: agents that did not end.
    """

    def __init__(self) -> None:
        self.worker: Worker | None = None
        self.starts, self.again = 0, False
        self.number: int | None = None
        self.serving: dict[int, Served] = {}
        self.tell: Callable[[str], None] = lambda text: None
        self.abandoned: list[Any] = []
        self.init: Callable[..., Any] = rpc.init_rpc
        self.shutdown: Callable[..., Any] = rpc.shutdown


AGENT = Agent()


def init_rpc(
    name: str,
    backend: Any = None,
    rank: int = -1,
    world_size: int | None = None,
    rpc_backend_options: Any = None,
) -> None:
    """Start RPC on this rank, as torch.distributed.rpc.init_rpc does, meeting the others at the cluster's store.

    Runs on: every rank that is to be a worker; it waits for the others.

    Args:
        rank: the worker's id, this rank's number where it is left out. world_size: number of workers, of ranks
            where it is left out. rpc_backend_options: of them the number of threads and the timeout are used.

    Raises:
        ArgumentError: a name that is not one, or that two workers have.
        RuntimeError: RPC runs on this rank already.
    """
    number, workers = (NOTES.rank if rank < 0 else rank), world_size or NOTES.world_size
    if AGENT.worker is not None:
        advice = "Call rpc.shutdown() on every rank first."
        raise RuntimeError(f'RPC runs on rank {NOTES.rank} already, as "{AGENT.worker.name}". {advice}')
    if not isinstance(name, str) or not NAME.fullmatch(name):
        refuse("name", "at most 127 letters, digits, _, : and -", name, 'Use a name such as "worker0".')
    if number not in range(workers):
        refuse("rank", f"the worker's id, from 0 to {workers - 1}", number, "Use rank=rank, world_size=world_size.")
    if AGENT.number not in (None, number):
        advice = "Keep it, or call cluster.restart(): distributed autograd keeps the id of a process."
        refuse("rank", f"the worker's id from before, {AGENT.number}", number, advice)
    if dist.get_backend() == "simulated":
        advice = "Make a Cluster without a network."
        raise RuntimeError(
            f"A simulated network has no remote calls: only what process groups send is simulated. {advice}"
        )
    AGENT.starts += 1
    meeting = f"rpc/{workers}/{AGENT.starts}"
    with waiting_for(RemoteNote("init_rpc", "", range(NOTES.world_size))):
        ranks, names, AGENT.again = _introduce(meeting, name, number, workers)
        options = private.options(rpc_backend_options, f"{SCHEME}://{meeting}")
        start(Worker(name, number, ranks, names, options.num_worker_threads, options.rpc_timeout), options)


def _introduce(meeting: str, name: str, number: int, workers: int) -> tuple[tuple[int, ...], tuple[str, ...], bool]:
    """Meet the other workers, and refuse a name that two have.

    Returns:
        the cluster's rank and the name of every worker, in the order of their ids, and whether any had an agent before.
    """
    own = json.dumps((NOTES.rank, name, AGENT.number is not None))
    store = dist.PrefixStore(meeting, _get_default_store())
    if (other := store.compare_set(f"worker{number}", "", own).decode()) != own:
        advice = "Use rank=rank, world_size=world_size."
        refuse("rank", f"of no other worker, and rank {json.loads(other)[0]} has it", number, advice)
    ranks, names, again = zip(*(json.loads(store.get(f"worker{i}")) for i in range(workers)), strict=True)
    for one, other in itertools.combinations(range(workers), 2):
        if names[one] == names[other]:
            whose = f"that of ranks {ranks[one]} and {ranks[other]}"
            refuse("name", "another one on every rank", names[one], f'It is {whose}: use f"worker{{rank}}".')
    return ranks, names, any(again)


def start(worker: Worker, options: Any = None) -> None:
    """Start the agent of a worker; `options`: torch's, made from the worker where they are left out.

    Runs on: every worker's rank.
    """
    if options is None:
        AGENT.starts, AGENT.again = AGENT.starts + 1, True
        given = rpc.TensorPipeRpcBackendOptions(num_worker_threads=worker.threads, rpc_timeout=worker.timeout)
        options = private.options(given, f"{SCHEME}://again/{AGENT.starts}")
    store = _get_default_store()
    limit = store.timeout  # torch gives the whole connection the limit of a remote call
    private.use_plain_optimizers()
    AGENT.worker = worker  # others may call it before it knows that it has begun
    try:
        private.start(AGENT.init, worker.name, worker.number, len(worker.ranks), options)
        AGENT.number = worker.number
    finally:
        AGENT.worker = worker if private.there() else None
        store.set_timeout(limit)


def rendezvous(url: str, *_: Any, **__: Any) -> Iterator[tuple[dist.Store, int, int]]:
    """torch's rendezvous for "distlab://<meeting>?rank=...&world_size=...": the cluster's store."""
    parts = urlsplit(url)
    given = dict(pair.split("=") for pair in parts.query.split("&"))
    store = dist.PrefixStore(f"{parts.netloc}{parts.path}", _get_default_store())
    yield store, int(given["rank"]), int(given["world_size"])


def shutting_down(shutdown: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(shutdown)
    def call(graceful: bool = True, timeout: float = 0) -> None:
        worker = AGENT.worker
        others = worker.ranks if worker and graceful else ()
        logger = logging.getLogger(shutdown.__module__)
        with waiting_for(RemoteNote("shutdown", "", others, timeout > 0)):
            try:
                logger.disabled = True  # it would tell of the error that is raised, at length
                shutdown(graceful, timeout)
            finally:
                logger.disabled = False
                if not private.there():
                    AGENT.worker = None

    return call


def leave(shut: Callable[[], Any]) -> Worker | None:
    """Take the agent down; what it was, None where there is none.

    Functions that it serves are interrupted. One that does not end is left to itself, with the agent.

    Runs on: a rank, on its main thread, before the group is built anew.

    Args:
        shut: shuts every connection of this rank's down.
    """
    worker, AGENT.worker = AGENT.worker, None
    AGENT.starts = 0
    if not private.there():
        return worker
    NOTES.freed += 1
    shut()
    deadline = time.monotonic() + END_SECONDS
    interrupted: set[int] = set()
    while AGENT.serving and time.monotonic() < deadline:
        time.sleep(0.005)
        for thread in {*AGENT.serving} - interrupted:
            if NOTES.now.get(thread) is None and time.monotonic() > deadline - 0.9 * END_SECONDS:
                interrupted.add(thread)
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(KeyboardInterrupt))
    if AGENT.serving:
        AGENT.abandoned.append(private.abandon())
        AGENT.serving = {}
    else:
        with contextlib.suppress(RuntimeError):  # RRefs are left
            AGENT.shutdown(graceful=False)
    return worker
