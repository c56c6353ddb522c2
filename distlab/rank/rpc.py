"""Remote procedure calls: the life of this rank's agent, which makes and serves them.

Runs on every rank; the calls are in rpc_calls.py. `init_rpc` and `shutdown` replace torch's: the
agents meet at the cluster's store. When the connections between ranks are shut down, because a rank
was freed or has died, RPC ends on all of them, until the learner starts it again.
"""

import contextlib
import ctypes
import itertools
import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch.distributed as dist
from torch.distributed import rpc

from distlab.arguments import refuse, whole_number
from distlab.compat import torch_rpc as private
from distlab.rank import freed
from distlab.rank.cluster_store import connect_to_store
from distlab.rank.log import LOG, InCall, Note
from distlab.rank.meetings import MEETINGS
from distlab.rank.this_rank import THIS_RANK
from distlab.rank.waits import wait_until
from distlab.wire.messages import OTHER
from distlab.words import grouped, rank_list

RREFS_OF_PROCESS = 10_000  # numbers of RRefs reserved for a process that this one replaces
USUAL_NUMBERS = "Use rank=rank, world_size=world_size."
SERVED_END_SECONDS = 2.0  # for served functions to end when the agent is taken down
INTERRUPT_SECONDS = 0.2  # of those, before the functions are interrupted


class Worker(NamedTuple):
    """A worker as it introduces itself to the others.

    Attributes:
        number: its id.
        rank: its rank in the cluster.
        name: the name that init_rpc was given.
        generation: the generation of its process's last agent; -1 if there was none.
    """

    number: int
    rank: int
    name: str
    generation: int


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
if rpc.is_available():
    _torchs_shutdown = rpc.shutdown  # before a wrapper takes its place


def init_rpc(
    original: Any,
    name: str,
    backend: Any = None,
    rank: int = -1,
    world_size: int | None = None,
    rpc_backend_options: Any = None,
) -> None:
    """Start RPC on this rank, as torch.distributed.rpc.init_rpc does.

    The workers meet at the cluster's store.

    Runs on: every rank that is to be a worker; it waits for the others.

    Args:
        original: torch's own, which is not called.
        rank: the worker's id; by default this rank's number.
        world_size: number of workers; by default the number of ranks.
        rpc_backend_options: only the number of threads and the timeout are used.

    Raises:
        ArgumentError: a number or a name that two workers have.
        RuntimeError: a name that torch refuses, or RPC runs on this rank already.
    """
    size = world_size or THIS_RANK.world_size
    given = THIS_RANK.rank if rank == -1 else rank
    number = whole_number("rank", given, 0, size - 1, USUAL_NUMBERS)
    rpc.WorkerInfo(name, number)  # refuses a bad name, before the other workers meet this one
    _check_can_start()
    options = rpc_backend_options or rpc.TensorPipeRpcBackendOptions()
    with InCall(Note("init_rpc", OTHER, range(THIS_RANK.world_size))):
        this_one = Worker(number, THIS_RANK.rank, name, AGENT.generation)
        store, workers = _meet_workers(this_one, size)
        _start(this_one, store, workers, options)


def _start(this_one: Worker, store: dist.Store, workers: list[Worker], options: Any) -> None:
    """Start the agent of this rank, once all workers have met.

    Args:
        store: the store of these workers.
        options: those that init_rpc was given.
    """
    generations = [worker.generation for worker in workers]
    latest = max(generations)
    has_new_process = min(generations) < 0
    private.use_plain_optimizers()
    # all this before the agent starts: from then on others may call it
    AGENT.store = store
    AGENT.workers = {worker.name: worker.rank for worker in workers}
    AGENT.threads = options.num_worker_threads
    AGENT.is_first = latest < 0
    try:
        private.start_agent(store, this_one.name, this_one.number, len(workers), options)
        generation = latest + 1 if has_new_process else latest
        if AGENT.generation < 0:
            _skip_numbers(generation)
        AGENT.generation = generation
    finally:
        if not private.has_agent():
            AGENT.workers = {}


def _check_can_start() -> None:
    """Refuse a second agent, and one on a simulated network."""
    if AGENT.workers:
        advice = "Call rpc.shutdown() on every rank first."
        name_here = rpc.get_worker_info().name
        raise RuntimeError(
            f'RPC is already running on rank {THIS_RANK.rank}, as "{name_here}". {advice}'
        )
    if dist.is_initialized() and dist.get_backend(_world_of_cluster()) == "simulated":
        rest = "only what process groups send is simulated. Make a Cluster without a network."
        raise RuntimeError(f"There are no remote calls on a simulated network: {rest}")


def _world_of_cluster() -> Any:
    """The group of all ranks, also where a check has put its own in its place (trial.py).

    That one is always on the simulated backend, and leaves remote calls as they are.
    """
    return getattr(dist.group.WORLD, "outer", dist.group.WORLD)


def _skip_numbers(generation: int) -> None:
    """Leave out the numbers of RRefs that processes before this one may have used.

    The owners of RRefs remember those of the process that this one replaces.
    """
    for _ in range(generation * RREFS_OF_PROCESS):
        rpc.PyRRef(None)


def _store_of_workers() -> dist.Store:
    """The store in which workers meet: in a program, which may have no group, the cluster's."""
    meeting = THIS_RANK.meeting
    if not MEETINGS.is_program or meeting is None:
        return private.default_store()
    store = connect_to_store(meeting.host, meeting.port)
    return dist.PrefixStore(f"{meeting.name}/program", store)


def _meet_workers(worker: Worker, size: int) -> tuple[dist.Store, list[Worker]]:
    """Meet the other workers, and refuse a number or a name that two have.

    Returns:
        the store of these workers, and all of them, in the order of their numbers.
    """
    world = _store_of_workers()
    # they meet when this many have come; each next `size` of them have a meeting of their own
    came_before = world.add(f"rpc/{size}", 1) - 1
    meeting, seat = divmod(came_before, size)
    store = dist.PrefixStore(f"rpc/{size}/{meeting}", world)
    keys = [f"worker{number}" for number in range(size)]
    store.set(keys[seat], json.dumps(worker))
    _until(lambda: store.check(keys))
    introduced = [json.loads(store.get(key)) for key in keys]
    workers = sorted(Worker(*fields) for fields in introduced)
    numbers = [(one.number, one.rank) for one in workers]
    _refuse_shared("rank", numbers, USUAL_NUMBERS)
    names = [(one.name, one.rank) for one in workers]
    _refuse_shared("name", names, 'Use f"worker{rank}".')
    return store, workers


def _refuse_shared(what: str, given: list[tuple[Any, int]], advice: str) -> None:
    """Refuse a value of the argument `what` that several ranks have given."""
    for value, ranks in grouped(given).items():
        if len(ranks) > 1:
            whose = f"It is that of {rank_list(ranks)}."
            refuse(what, "different on every worker", value, f"{whose} {advice}")


def shutdown(original: Any, graceful: bool = True, timeout: float = 0) -> None:
    """End RPC on this rank, as torch.distributed.rpc.shutdown does.

    It ends once all workers are here and no call is open. Functions whose callers have stopped
    waiting are waited for here in Python: nothing could end a wait in C++.

    Runs on: every rank that is a worker.

    Args:
        original: torch's own, which is not called.
        graceful: whether to wait for the others.
        timeout: seconds of that wait; 0 for no limit.
    """
    ranks = list(AGENT.workers.values()) if graceful else []
    deadline = time.monotonic() + timeout if timeout else math.inf
    with InCall(Note("shutdown", OTHER, ranks, has_limit=timeout > 0)):
        try:
            if ranks and AGENT.store is not None:
                _end_together(AGENT.store, deadline)
            _until(lambda: private.threads_at_work() == 0, deadline)
        finally:
            _take_down()


def _end_together(workers_store: dist.Store, deadline: float) -> None:
    """Wait until all workers are here, and none of them waits for a call.

    torch counts its own waits for that by process, so that a new rank would wait for the others
    forever.

    Args:
        workers_store: the store of the workers of this agent.
    """
    for turn in itertools.count():
        store = dist.PrefixStore(f"end/{turn}", workers_store)
        _until(lambda: private.open_calls() == 0, deadline)
        _all_come(store, "came", deadline)
        if turn == 0 and AGENT.is_first:  # RRefs of a later agent live until its process ends
            private.drop_rrefs()
        # also the calls that a function has begun which a rank has served meanwhile
        store.add("calls", private.open_calls())
        _all_come(store, "counted", deadline)
        if store.add("calls", 0) == 0:
            return


def _all_come(store: dist.Store, key: str, deadline: float) -> None:
    """Wait until every worker has come here."""
    store.add(key, 1)
    _until(lambda: store.add(key, 0) == len(AGENT.workers), deadline)


def _until(condition: Callable[[], bool], deadline: float = math.inf) -> None:
    """Wait for other workers, in Python, so that the watchdog can end it."""
    if not wait_until(condition, freed.FROM_WORKERS, deadline - time.monotonic()):
        raise RuntimeError(
            "RPC timeout: not all workers called shutdown and ended their calls in time."
        )


def leave_rpc(shut: Callable[[], Any]) -> bool:
    """Take the agent down; return whether there was one.

    Runs on: a rank, on its main thread, before the group is rebuilt.

    Args:
        shut: shuts every connection of this rank down.
    """
    AGENT.workers = {}
    if not private.has_agent():
        return False
    LOG.freed += 1
    shut()
    with contextlib.suppress(RuntimeError):  # RRefs are left
        _take_down()
    return True


def _take_down() -> None:
    """End the agent.

    C++ would wait for the functions that it serves forever. They are interrupted, and if one does
    not end, it is abandoned with the agent.
    """
    AGENT.workers = {}
    _end_served()
    if private.threads_at_work():
        AGENT.abandoned.append(private.abandon())
        AGENT.serving = {}
    else:
        _torchs_shutdown(graceful=False)


def _end_served() -> None:
    """Return when no function is served any more, or after a while; interrupt them meanwhile."""
    began = time.monotonic()
    interrupted: set[int] = set()
    while private.threads_at_work():
        waited = time.monotonic() - began
        if waited >= SERVED_END_SECONDS:
            return
        time.sleep(0.005)
        if waited <= INTERRUPT_SECONDS:
            continue
        for thread in {*AGENT.serving} - interrupted:
            # one that waits in a call is freed with its connections
            if LOG.waiting_in.get(thread) is None:
                interrupted.add(thread)
                _interrupt(thread)


def _interrupt(thread: int) -> None:
    """Raise a KeyboardInterrupt in a thread, once it runs Python again."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(
        ctypes.c_ulong(thread), ctypes.py_object(KeyboardInterrupt)
    )
