"""Where the groups that a program makes by itself meet: at the cluster's store, by one rule.

Runs on every rank: table.py puts `on_rendezvous` and `on_make_store` in the place of torch's
functions, program.py and spawned.py say when a person's whole program runs, and world.py maps the
ranks of a world to those of the cluster.

The rule. A world that is named by an address, env:// or tcp://, meets at the cluster's store, and
not at a port that rank 0 would open at that address. A port may be taken, by another notebook or by
the program's own last run, and the wait for a rank that never comes would be one in C++ that nobody
could explain. torch itself reads the URL, the environment and the arguments before that, so that
what is wrong with them is said in its words. Two kinds of calls are left to torch altogether. What
has a meeting place of its own keeps it: a store that is given, and file://. And in a cell, a call
with a timeout of ten seconds or less opens real ports: whoever gives one wants to see how a real
rendezvous ends, as lab 30 does. In a program, which `distlab run` or `spawn` runs, only the first
kind is. A cell need not set MASTER_ADDR and MASTER_PORT, which a program that a launcher starts
finds; a spawned function sets them, as under torch's own spawn.

Ranks meet under keys that nobody has used, because gloo hangs on those of an earlier world: under
the address, the size of the world, and how often its number has come there. So worlds may follow
each other at one address, and be smaller than the cluster, or number its ranks in another order.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from unittest import mock

import torch.distributed as dist

from distlab.rank import freed
from distlab.rank.cluster_store import connect_to_store
from distlab.rank.log import LOG, InCall, Note
from distlab.rank.membership import SHORT, is_short
from distlab.rank.this_rank import THIS_RANK
from distlab.rank.waits import wait_until
from distlab.wire.messages import OWN_WORLD
from distlab.wire.rendezvous import Meeting

INIT = "init_process_group"
# names of this machine by which the ranks of one world may call it
HERE = ("localhost", "127.0.0.1", "::1", "0.0.0.0")


@dataclass
class Meetings:
    """How the program of this rank meets the other ranks; one object a process, `MEETINGS`.

    Attributes:
        is_program: whether a person's whole program runs, and not a cell.
        serves: whether init_process_group is looking for its store now.
        joined: the ranks of the cluster in the world that has met last, by their numbers in it.
        world: a name of that world.
    """

    is_program: bool = False
    serves: bool = False
    joined: tuple[int, ...] = ()
    world: str = ""


MEETINGS = Meetings()


# --- what runs in the place of torch's functions ---


def on_rendezvous(
    original: Callable[..., Any], url: str, *args: Any, **kwargs: Any
) -> Iterator[Any]:
    """rendezvous, which gives a store, a rank and a world size to init_process_group."""
    MEETINGS.joined = ()
    MEETINGS.world = ""
    if not _meets_here(kwargs.get("timeout")):
        return original(url, *args, **kwargs)
    MEETINGS.serves = True
    try:
        with _address_of_cluster():
            # a generator, which does its work now
            return iter([next(original(url, *args, **kwargs))])
    finally:
        MEETINGS.serves = False


def _meets_here(limit: timedelta | None) -> bool:
    """Whether a world with this timeout meets at the cluster's store, if it names an address."""
    if THIS_RANK.meeting is None or LOG.of_parent:  # this is no rank, or a child of one
        return False
    return MEETINGS.is_program or limit is None or limit > SHORT


@contextlib.contextmanager
def _address_of_cluster() -> Iterator[None]:
    """In a cell, the address of the cluster's store, unless the cell has set another one."""
    meeting = THIS_RANK.meeting
    if MEETINGS.is_program or meeting is None:
        yield
        return
    address = {"MASTER_ADDR": meeting.host, "MASTER_PORT": str(meeting.port)}
    missing = {name: value for name, value in address.items() if not os.environ.get(name)}
    with mock.patch.dict(os.environ, missing):
        yield


def on_make_store(
    original: Callable[..., Any],
    host: str,
    port: int,
    rank: int,
    world_size: int,
    timeout: timedelta,
    *args: Any,
    **kwargs: Any,
) -> dist.Store:
    """torch's function that makes the store of a world whose address was read."""
    meeting = THIS_RANK.meeting
    if not MEETINGS.serves or meeting is None:
        return original(host, port, rank, world_size, timeout, *args, **kwargs)
    place = "this machine" if host in HERE or host == meeting.host else host
    note = Note("", OWN_WORLD, range(THIS_RANK.world_size), has_limit=is_short(timeout))
    note.op = note.op or INIT
    note.group = f"{place}, port {port}"
    note.number = rank
    note.world_size = world_size
    with InCall(note):
        LOG.check_open()
        return _meet(note, meeting, timeout)


# --- the meeting ---


def _meet(note: Note, meeting: Meeting, limit: timedelta) -> dist.Store:
    """Wait until every number of a world was taken by a rank, and return the world's store.

    Raises:
        DistStoreError: they were not within the limit; in torch's own words.
    """
    store = connect_to_store(meeting.host, meeting.port)
    place = f"{meeting.name}/program/{note.group}/{note.world_size}"
    came = f"{place}/came/{note.number}"
    note.sequence = store.add(came, 1)
    world = dist.PrefixStore(f"{place}/{note.sequence}", store)
    world.set(f"rank/{note.number}", str(THIS_RANK.rank))
    counts = int(0 <= note.number < note.world_size)  # others wait, and a report says why
    world.add("there", counts)

    def all_have_come() -> bool:
        return world.add("there", 0) >= note.world_size

    try:
        if not wait_until(all_have_come, freed.from_processes(note.op), limit.total_seconds()):
            raise dist.DistStoreError(
                f"Timed out after {limit.total_seconds():.0f} seconds waiting for clients. "
                f"{world.add('there', 0)}/{note.world_size} clients joined."
            )
    except BaseException:
        with contextlib.suppress(RuntimeError):  # the store is gone
            world.add("there", -counts)
            store.add(came, -1)
        raise
    LOG.worlds.append(note)
    numbers = [f"rank/{number}" for number in range(note.world_size)]
    MEETINGS.joined = tuple(int(world.get(number)) for number in numbers)
    MEETINGS.world = f"{note.group}/{note.world_size}/{note.sequence}/"
    return world
