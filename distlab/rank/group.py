"""The process group of this rank: joined, left and rebuilt.

Runs on every rank, called by entry.py. A rank's number goes where torchrun puts it: into RANK and
WORLD_SIZE.
"""

import importlib
import multiprocessing
import os
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist

from distlab.compat import torch as private
from distlab.devices import device_for
from distlab.errors import ClusterError
from distlab.rank import around_cells, checks, hooks, rpc, table, waits, watchdog
from distlab.rank.cluster_store import connect_to_store
from distlab.rank.log import LOG
from distlab.rank.meetings import MEETINGS
from distlab.rank.this_rank import THIS_RANK
from distlab.wire import faults
from distlab.wire.rendezvous import (
    INTERFACES,
    Joined,
    Meeting,
    address_towards,
    interface_of,
    this_machine,
)

# groups that were left, and until when their destructors may wait
_BLOCKED: list[tuple[float, dist.ProcessGroup]] = []

table.install_all()  # once for all ranks that are forked from this process


def become_rank(rank: int, meeting: Meeting) -> Joined:
    """Become rank `rank` of the group that meets at `meeting`, and define the names of a %%px cell.

    Runs on: every rank of the group (a rank that skips it hangs the rest until the timeout).
    """
    _set_environment(rank, meeting)
    THIS_RANK.rank = rank
    private.quiet_loggers()
    faults.enable_log(rank)
    _use_folder_of_cluster()
    watcher = watchdog.Watchdog(meeting)
    build(rank, meeting)
    watchdog.watch(watcher)
    sys.modules["__main__"].__dict__.update(
        rank=rank, world_size=meeting.world_size, torch=torch, dist=dist
    )
    return Joined(os.getpid(), this_machine())


def _set_environment(rank: int, meeting: Meeting) -> None:
    """Set the variables that torchrun would set, and the network's interface."""
    os.environ.update(place_variables(rank, meeting))
    if meeting.hosts and INTERFACES[0] not in os.environ:
        interface = interface_of(address_towards(meeting.channel[0]))
        os.environ.update(dict.fromkeys(INTERFACES, interface))
    # meant for the start of this process, not for programs that it starts
    os.environ.pop("PYTHONSAFEPATH", None)


def place_variables(rank: int, meeting: Meeting) -> dict[str, str]:
    """The variables of torchrun that say which rank of which world a process is."""
    host_of_rank = meeting.hosts or (0,) * meeting.world_size
    own_host = host_of_rank[rank]
    neighbours = [other for other, host in enumerate(host_of_rank) if host == own_host]
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(meeting.world_size),
        "LOCAL_RANK": str(neighbours.index(rank)),
        "LOCAL_WORLD_SIZE": str(len(neighbours)),
        "GROUP_RANK": str(own_host),
    }


def _use_folder_of_cluster() -> None:
    """Have multiprocessing keep its sockets in the cluster's folder, which is removed at the end.

    A rank is killed then, and would leave a folder of its own behind. Private: the name in a
    process's configuration.
    """
    folder = os.environ.get(faults.FOLDER_VARIABLE, "")
    if faults.CLUSTER_VARIABLE in os.environ and os.path.isdir(folder):
        vars(multiprocessing.current_process())["_config"]["tempdir"] = folder


def build(rank: int, meeting: Meeting) -> None:
    """Leave the groups, whatever state they are in, and build the default one.

    Runs on: every rank of the group.
    """
    waits.close_blocked_groups()
    _keep_blocked_groups()
    # of a new rank, those of an earlier notebook, which has detached from this engine
    private.leave_all_groups()
    private.unbind_default_arguments()
    # a learner's failed init_process_group has used one up on this rank only
    private.number_next_group()
    LOG.forget()
    MEETINGS.is_program = False
    THIS_RANK.rank_at = None
    THIS_RANK.world = ""
    THIS_RANK.world_size = meeting.world_size
    THIS_RANK.meeting = meeting
    limit = timedelta(seconds=meeting.timeout)
    private.set_default_timeout(limit)
    if not meeting.builds:
        return
    # the store is already running; its keys are new each time, because used ones hold stale
    # addresses
    store = dist.PrefixStore(meeting.name, connect_to_store(meeting.host, meeting.port))
    if meeting.init_method == "env":
        os.environ.update(MASTER_ADDR=meeting.host, MASTER_PORT=str(meeting.port))
    is_by_file = meeting.init_method == "file"
    # objects and barriers travel through the current GPU, which is 0 at first
    if meeting.backend == "nccl":
        torch.cuda.set_device(device_for(rank))
    backend = _name_of_backend(meeting.backend)
    _wait_for_all_ranks(store, rank, meeting)
    dist.init_process_group(
        backend,
        init_method=f"file://{meeting.name}" if is_by_file else None,
        store=None if is_by_file else store,
        rank=rank,
        world_size=meeting.world_size,
        timeout=limit,
    )
    hooks.install_patches(hooks.patches_of(type(dist.group.WORLD)))
    # only here: torch's own init_process_group was called above. A group of simulated machines
    # stays, because the learner's would know no virtual time.
    THIS_RANK.gives_way = meeting.backend != "simulated"


def _keep_blocked_groups() -> None:
    """Keep groups in which a collective may wait behind a send whose Work was dropped.

    They are kept until it has timed out. Nothing else ends its wait, and the group's destructor
    would wait for it with Python's lock held, so that not even the watchdog could answer.
    """
    now = time.monotonic()
    _BLOCKED[:] = [(until, group) for until, group in _BLOCKED if until > now]
    with_dropped = {kind.group for kind in list(LOG.messages.dropped) if kind.is_send}
    for group, name in private.GROUP_NAMES.items():
        has_open_call = any(not call.done for call in list(LOG.collectives[name]))
        # nothing here knows whether what C++ has begun has ended
        may_wait = has_open_call or name in LOG.shared_with_cpp
        if name in with_dropped and may_wait:
            _BLOCKED.append((now + private.timeout_of(group).total_seconds(), group))


def _wait_for_all_ranks(store: dist.Store, rank: int, meeting: Meeting) -> None:
    """Wait until every rank is about to build the group.

    The timeout of the group is a learner's for their calls, two seconds, say, and limits the
    building, too: on a busy machine the ranks start further apart.
    """
    keys = [f"here/{other}" for other in range(meeting.world_size)]
    store.set(keys[rank], "")
    store.wait(keys, timedelta(seconds=meeting.patience))


def _name_of_backend(backend: str) -> str:
    """The name of a backend, which is itself where torch knows it.

    For a module it is the module's NAME, which the module registers when it is imported.

    Raises:
        ClusterError: the module does not do so.
    """
    if hasattr(dist.Backend, backend.upper()):
        return backend
    name = getattr(importlib.import_module(backend), "NAME", "")
    if name.lower() not in dist.Backend.backend_list:
        raise ClusterError(
            f"The module {backend} must register a backend when it is imported, "
            "dist.Backend.register_backend(NAME, ...), and have its name as NAME, "
            f"got {name!r}"
        )
    return name


def rebuild(rank: int, meeting: Meeting, whole: bool) -> Joined:
    """Leave the group, and RPC if its connections were shut down, and build the group again.

    Variables stay.

    Runs on: every rank of the group.

    Args:
        whole: whether the connections between the ranks are intact; if some were shut down, remote
            calls end as well.
    """
    watcher = watchdog.running()
    if watcher is None:
        raise ClusterError(f"Rank {rank} is cut off from the notebook, which will replace it.")
    watcher.settle()
    left_rpc = False
    if not whole:
        left_rpc = rpc.leave_rpc(watcher.connections.shut)
    checks.stop_checking()
    # it may wait in the store, whose client serves one thread at a time
    if not whole and waits.has_abandoned_wait():
        watcher.connections.shut(with_store=True)
    has_subgroups = len(private.GROUP_NAMES) > 1
    around_cells.restore_environment()
    build(rank, meeting)
    watcher.connections.store_port = meeting.port
    return Joined(os.getpid(), this_machine(), has_subgroups, left_rpc)
