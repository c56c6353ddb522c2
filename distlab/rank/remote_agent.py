"""The agent through which this rank makes and serves remote procedure calls: started, ended, and started again.

Runs on every rank. `init_rpc` takes the place of torch's: it meets the other workers at the cluster's store. The
caller's side and the callee's are in remote_calls.py.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import json
import math
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import torch.distributed as dist
from torch.distributed import rpc

from distlab.compat import torch_rpc as private
from distlab.rank.call_log import NOTES, RemoteNote, waiting_for
from distlab.text import refuse
from distlab.wire.messages import Worker

SCHEME = "distlab"  # of the init method under which an agent finds the cluster's store
RREFS_OF_PROCESS = 10_000  # numbers of RRefs that are left to a process which this one replaces
SHORTEST_PAUSE, LONGEST_PAUSE = 0.0005, 0.05  # seconds between two looks whether the others are there
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
        worker: None while there is no agent. starts: meetings that this rank has come to since the group was built, by
            the number of workers.
        serving: what runs for other ranks, by thread. tell: takes what a served function has printed.
        number: this process's worker id, None until it has one. meeting: where its agent has started.
        again: whether any worker had an agent before this.
        abandoned: agents that did not end.
    """

    def __init__(self) -> None:
        self.worker: Worker | None = None
        self.starts: Counter[int] = Counter()
        self.again = False
        self.number: int | None = None
        self.meeting = ""
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
    if not isinstance(rank, int) or not isinstance(world_size, (int, type(None))):
        refuse(
            "rank", "a number, and world_size, too", (rank, world_size), "Use rank=rank, world_size=world_size.", True
        )
    if not isinstance(rpc_backend_options, (rpc.TensorPipeRpcBackendOptions, type(None))):
        kind, advice = "rpc.TensorPipeRpcBackendOptions", "Use rpc.TensorPipeRpcBackendOptions(num_worker_threads=8)."
        refuse("rpc_backend_options", kind, rpc_backend_options, advice, wrong_type=True)
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
    with waiting_for(RemoteNote("init_rpc", "", range(NOTES.world_size))):
        ranks, names, AGENT.again = _introduce(name, number, workers)
        AGENT.meeting = _meeting(workers)
        options = private.options(rpc_backend_options, f"{SCHEME}://{AGENT.meeting}")
        start(Worker(name, number, ranks, names, options.num_worker_threads, options.rpc_timeout), options)


def _meeting(workers: int) -> str:
    """The name of the meeting of so many workers at which this rank is."""
    return f"rpc/{workers}/{AGENT.starts[workers]}"


def _introduce(name: str, number: int, workers: int) -> tuple[tuple[int, ...], tuple[str, ...], bool]:
    """Meet the other workers, and refuse a name that two have.

    Returns:
        the cluster's rank and the name of every worker, in the order of their ids, and whether any had an agent before.
    """
    own = json.dumps((NOTES.rank, name, AGENT.number is not None))
    other, keys = "", [f"worker{i}" for i in range(workers)]
    while other != own:
        AGENT.starts[workers] += 1
        store = dist.PrefixStore(_meeting(workers), private.default_store())
        other = store.compare_set(keys[number], "", own).decode()
        if other != own and not store.check(keys):  # it is no meeting of other ranks that is over
            advice = "Use rank=rank, world_size=world_size."
            refuse("rank", f"of no other worker, and rank {json.loads(other)[0]} has it", number, advice)
    ranks, names, again = zip(*(json.loads(store.get(key)) for key in keys), strict=True)
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
        AGENT.again, AGENT.meeting = True, "again"
        given = rpc.TensorPipeRpcBackendOptions(num_worker_threads=worker.threads, rpc_timeout=worker.timeout)
        options = private.options(given, f"{SCHEME}://{AGENT.meeting}")
    store = private.default_store()
    limit = store.timeout  # torch gives the whole connection the limit of a remote call
    private.use_plain_optimizers()
    AGENT.worker = worker  # others may call it before it knows that it has begun
    try:
        private.start(AGENT.init, worker.name, worker.number, len(worker.ranks), options)
        if AGENT.number is None:
            before = private.shared_store(store).add(f"rpc/processes/{worker.number}", 1) - 1
            private.skip_rrefs(before * RREFS_OF_PROCESS if AGENT.again else 0)
        AGENT.number = worker.number
    finally:
        AGENT.worker = worker if private.there() else None
        store.set_timeout(limit)


def rendezvous(url: str, *_: Any, **__: Any) -> Iterator[tuple[dist.Store, int, int]]:
    """torch's rendezvous for "distlab://<meeting>?rank=...&world_size=...": the cluster's store."""
    parts = urlsplit(url)
    given = dict(pair.split("=") for pair in parts.query.split("&"))
    store = dist.PrefixStore(f"{parts.netloc}{parts.path}", private.default_store())
    yield store, int(given["rank"]), int(given["world_size"])


def shutdown(graceful: bool = True, timeout: float = 0) -> None:
    """End RPC on this rank, as torch.distributed.rpc.shutdown does: when all workers have come, and no call is open.

    Runs on: every rank that is a worker.

    Args:
        graceful: whether to wait for the others. timeout: seconds of that wait; 0 for no limit.
    """
    worker = AGENT.worker
    waits = graceful and worker is not None
    with waiting_for(RemoteNote("shutdown", "", worker.ranks if waits else (), timeout > 0)):
        try:
            if waits:
                _end_together(worker, time.monotonic() + (timeout or math.inf))
        finally:
            AGENT.shutdown(graceful=False)
            AGENT.worker = None


def _end_together(worker: Worker, deadline: float) -> None:
    """Wait until all workers are here, and none of them waits for a call.

    torch counts its own waits for that by process, so that a rank that is new would wait for ever for the others.
    """
    for turn in itertools.count():
        store = dist.PrefixStore(f"{AGENT.meeting}/end/{turn}", private.default_store())
        _until(lambda: private.open_calls() == 0, deadline)
        _all_come(store, "came", len(worker.ranks), deadline)
        if turn == 0:
            private.drop_rrefs()
        store.add("calls", private.open_calls())  # also those that a function began which a rank has served meanwhile
        _all_come(store, "told", len(worker.ranks), deadline)
        if store.add("calls", 0) == 0:
            return


def _all_come(store: dist.Store, key: str, workers: int, deadline: float) -> None:
    store.add(key, 1)
    _until(lambda: store.add(key, 0) == workers, deadline)


def _until(holds: Callable[[], bool], deadline: float) -> None:
    """Wait for other workers, so that the watchdog can end it."""
    pause = SHORTEST_PAUSE
    while not holds():
        if time.monotonic() > deadline:
            raise RuntimeError("RPC timeout: not all workers have called shutdown, and ended their calls, in time.")
        time.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE)


def leave(shut: Callable[[], Any]) -> Worker | None:
    """Take the agent down; what it was, None where there is none.

    Functions that it serves are interrupted. One that does not end is left to itself, with the agent.

    Runs on: a rank, on its main thread, before the group is built anew.

    Args:
        shut: shuts every connection of this rank's down.
    """
    worker, AGENT.worker = AGENT.worker, None
    AGENT.starts.clear()
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
