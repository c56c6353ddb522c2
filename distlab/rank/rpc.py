"""Remote procedure calls: the life of this rank's agent, which makes and serves them. The calls are
in rpc_calls.py.

Runs on every rank. `init_rpc` and `shutdown` replace torch's: the agents meet at the cluster's
store. When the connections between ranks are shut down, because a rank was freed or has died, RPC
ends on all of them, until the learner starts it again.
"""

import contextlib
import ctypes
import itertools
import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch.distributed as dist
from torch.distributed import rpc

from distlab.arguments import refuse, whole_number
from distlab.compat import torch_rpc as private
from distlab.rank.log import LOG, Note, waits
from distlab.rank.this_rank import THIS_RANK
from distlab.rank.waits import wait_until
from distlab.wire.messages import OTHER
from distlab.words import grouped, rank_list

RREFS_OF_PROCESS = 10_000  # numbers of RRefs reserved for a process that this one replaces
FREED = "Freed while it waited for other workers."
NUMBERS = "Use rank=rank, world_size=world_size."
END_SECONDS = 2.0  # for served functions to end when the agent is taken down
INTERRUPT_SECONDS = 0.2  # of those, before the functions are interrupted


@dataclass
class Served:
    """A function that a thread of this rank runs for another rank."""

    caller: int
    function: str
    printed: list[str] = field(default_factory=list)


@dataclass
class Agent:
    """What this rank knows of its agent; one object a process, `AGENT`.

    Attributes:
        workers: the cluster's rank of each worker by name, in the order of their ids; empty while
            there is no agent.
        threads: how many calls it serves at a time.
        store: where the workers of this agent meet, and no others.
        generation: of the set of processes that had an agent last; -1 before the first.
        is_first: whether no worker's process has had an agent before.
        serving: what runs for other ranks, by thread.
        abandoned: agents that did not end.
    """

    workers: dict[str, int] = field(default_factory=dict)
    threads: int = 0
    store: dist.Store | None = None
    generation: int = -1
    is_first: bool = True
    serving: dict[int, Served] = field(default_factory=dict)
    abandoned: list[Any] = field(default_factory=list)


AGENT = Agent()
_shutdown = getattr(rpc, "shutdown", None)  # torch's own


def init_rpc(
    _: Any,
    name: str,
    backend: Any = None,
    rank: int = -1,
    world_size: int | None = None,
    rpc_backend_options: Any = None,
) -> None:
    """Start RPC on this rank, as torch.distributed.rpc.init_rpc does, meeting the others at the
    cluster's store.

    Runs on: every rank that is to be a worker; it waits for the others.

    Args:
        rank: the worker's id; by default this rank's number.
        world_size: number of workers; by default the number of ranks.
        rpc_backend_options: only the number of threads and the timeout are used.

    Raises:
        ArgumentError: a number or a name that two workers have.
        RuntimeError: a name that torch refuses, or RPC runs on this rank already.
    """
    size = world_size or THIS_RANK.world_size
    number = whole_number("rank", THIS_RANK.rank if rank == -1 else rank, 0, size - 1, NUMBERS)
    rpc.WorkerInfo(name, number)  # refuses a bad name, before the other workers meet this one
    if AGENT.workers:
        advice = "Call rpc.shutdown() on every rank first."
        raise RuntimeError(
            f'RPC is already running on rank {THIS_RANK.rank}, as "{rpc.get_worker_info().name}". {advice}'
        )
    if dist.get_backend() == "simulated":
        rest = "only what process groups send is simulated. Make a Cluster without a network."
        raise RuntimeError(f"There are no remote calls on a simulated network: {rest}")
    options = rpc_backend_options or rpc.TensorPipeRpcBackendOptions()
    with waits(Note("init_rpc", OTHER, range(THIS_RANK.world_size))):
        # others may call it as soon as it starts
        AGENT.workers, generations = _introduce(name, number, size)
        latest = max(generations)
        private.use_plain_optimizers()
        AGENT.threads, AGENT.is_first = options.num_worker_threads, latest < 0
        try:
            private.start(AGENT.store, name, number, size, options)
            generation = latest + (-1 in generations)
            # owners remember the numbers of RRefs from the process that this one replaces
            if AGENT.generation < 0:
                for _ in range(generation * RREFS_OF_PROCESS):
                    rpc.PyRRef(None)
            AGENT.generation = generation
        finally:
            if not private.there():
                AGENT.workers = {}


def _introduce(name: str, number: int, size: int) -> Any:
    """Meet the other workers, and refuse a number or a name that two have.

    Returns:
        the cluster's rank of every worker by name, and the generations of their last agents.
    """
    store, keys = private.default_store(), [f"worker{place}" for place in range(size)]
    # they meet when this many have come
    turn, place = divmod(store.add(f"rpc/{size}", 1) - 1, size)
    AGENT.store = dist.PrefixStore(f"rpc/{size}/{turn}", store)
    AGENT.store.set(keys[place], json.dumps((number, THIS_RANK.rank, name, AGENT.generation)))
    _until(lambda: AGENT.store.check(keys))
    numbers, ranks, names, generations = zip(
        *sorted(json.loads(AGENT.store.get(key)) for key in keys), strict=True
    )
    for what, values, advice in (
        ("rank", numbers, NUMBERS),
        ("name", names, 'Use f"worker{rank}".'),
    ):
        for value, those in grouped(zip(values, ranks, strict=True)).items():
            if len(those) > 1:
                refuse(
                    what,
                    "different on every worker",
                    value,
                    f"It is that of {rank_list(those)}. {advice}",
                )
    return dict(zip(names, ranks, strict=True)), generations


def shutdown(_: Any, graceful: bool = True, timeout: float = 0) -> None:
    """End RPC on this rank, as torch.distributed.rpc.shutdown does: once all workers are here and
    no call is open.

    Functions whose callers have stopped waiting are waited for here in Python: nothing could end a
    wait in C++.

    Runs on: every rank that is a worker.

    Args:
        graceful: whether to wait for the others.
        timeout: seconds of that wait; 0 for no limit.
    """
    ranks = [*AGENT.workers.values()] if graceful else []
    deadline = time.monotonic() + (timeout or math.inf)
    with waits(Note("shutdown", OTHER, ranks, has_limit=timeout > 0)):
        try:
            if ranks:
                _end_together(deadline)
            _until(lambda: private.threads_at_work() == 0, deadline)
        finally:
            _take_down()


def _end_together(deadline: float) -> None:
    """Wait until all workers are here, and none of them waits for a call.

    torch counts its own waits for that by process, so that a new rank would wait for the others
    forever.
    """
    for turn in itertools.count():
        store = dist.PrefixStore(f"end/{turn}", AGENT.store)
        _until(lambda: private.open_calls() == 0, deadline)
        _all_come(store, "came", deadline)
        if turn == 0 and AGENT.is_first:  # in a later agent of a process they live until it ends
            private.drop_rrefs()
        # including those begun by a function that a rank has served meanwhile
        store.add("calls", private.open_calls())
        _all_come(store, "counted", deadline)
        if store.add("calls", 0) == 0:
            return


def _all_come(store: dist.Store, key: str, deadline: float) -> None:
    store.add(key, 1)
    _until(lambda: store.add(key, 0) == len(AGENT.workers), deadline)


def _until(holds: Callable[[], bool], deadline: float = math.inf) -> None:
    """Wait for other workers, in Python, so that the watchdog can end it."""
    if not wait_until(
        lambda seconds: holds() or time.sleep(seconds), FREED, deadline - time.monotonic()
    ):
        raise RuntimeError(
            "RPC timeout: not all workers called shutdown and ended their calls in time."
        )


def leave(shut: Callable[[], Any]) -> bool:
    """Take the agent down; return whether there was one.

    Runs on: a rank, on its main thread, before the group is rebuilt.

    Args:
        shut: shuts every connection of this rank down.
    """
    AGENT.workers = {}
    if not private.there():
        return False
    LOG.freed += 1
    shut()
    with contextlib.suppress(RuntimeError):  # RRefs are left
        _take_down()
    return True


def _take_down() -> None:
    """End the agent. Functions that it serves are interrupted; one that does not end is abandoned
    with the agent.

    C++ would wait for them forever.
    """
    AGENT.workers = {}
    began, interrupted = time.monotonic(), set()
    while private.threads_at_work() and (waited := time.monotonic() - began) < END_SECONDS:
        time.sleep(0.005)
        for thread in {*AGENT.serving} - interrupted:
            if LOG.waiting_in.get(thread) is None and waited > INTERRUPT_SECONDS:
                interrupted.add(thread)
                ctypes.pythonapi.PyThreadState_SetAsyncExc(
                    ctypes.c_ulong(thread), ctypes.py_object(KeyboardInterrupt)
                )
    if private.threads_at_work():
        AGENT.abandoned.append(private.abandon())
        AGENT.serving = {}
    else:
        _shutdown(graceful=False)
