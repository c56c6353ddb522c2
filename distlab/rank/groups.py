"""The groups that this rank makes with new_group: noted, and compared with the other ranks'.

Runs on every rank; table.py puts `on_make_group` in the place of the function of torch that
new_group, new_subgroups and device meshes call.

torch numbers the groups that every rank makes, and gloo's members find each other by that number.
Ranks that make other groups under one number would connect to the wrong ranks: a sum is wrong, or a
rank waits in gloo for a connection that no rank opens. So the first rank that makes a group writes
its members into the store of the world, and each other rank compares. Then the members wait for
each other here, in Python, as they would in gloo; other ranks do not wait.
"""

import contextlib
import inspect
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from distlab.compat import torch as private
from distlab.diagnosis.new_groups import differing_groups, words_of_groups
from distlab.errors import MismatchError
from distlab.rank import freed
from distlab.rank.log import LOG, InCall, Note
from distlab.rank.membership import is_short, ranks_of_cluster
from distlab.rank.this_rank import THIS_RANK
from distlab.rank.waits import wait_until
from distlab.wire.codec import from_json, to_json
from distlab.wire.messages import NEW_GROUP, NewGroup
from distlab.wire.source import line_of

NEW_GROUP_KEYS = "distlab/new_group"  # in the store of the world
# how long a member waits, before it leaves groups, for others that have yet to connect them
CONNECTING_SECONDS = 10.0
# by the name of a group that this rank has connected, whether every member has
_all_connected: dict[str, Callable[[], bool]] = {}


def on_make_group(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """torch's function that makes a group, with a note.

    Raises:
        MismatchError: another rank makes another group there.
    """
    bound = inspect.signature(original).bind(*args, **kwargs)
    given = bound.arguments
    named = str(given["backend"])
    if THIS_RANK.backend:  # distlab run --backend
        given["backend"] = dist.Backend(THIS_RANK.backend)
        args = bound.args
        kwargs = bound.kwargs
    members = tuple(map(int, given["global_ranks_in_group"]))
    if not members:  # the world, after which groups are numbered from 1 again
        LOG.forget_groups()
        LOG.new_groups.clear()
        # in the store of an earlier world, also that of the rank which this process was forked from
        LOG.meetings.clear()
        _all_connected.clear()
        _note_backend(str(given["group_name"]), named)
        return original(*args, **kwargs)
    _note_backend(str(given["group_name"]), named)
    # before a forked process writes into the store of the ranks
    LOG.check_not_of_parent(dist.group.WORLD)
    name = str(given["group_name"])
    limit = given.get("timeout") or private.default_timeout()
    ranks = ranks_of_cluster(members)
    note = _note_of_new_group(name, ranks, limit)
    line = line_of(*note.lines[0]) if note.lines else None
    group = NewGroup(THIS_RANK.rank, name, ranks, len(private.GROUP_NAMES), line)
    with InCall(note):
        _begin_group(group)
        store = given["store"]
        try:
            if not private.is_shared(store):
                return original(*args, **kwargs)
            _compare(store, group)
            connects = private.connects_when_made(str(given["backend"]))
            if not connects or dist.get_rank() not in members:
                return original(*args, **kwargs)
            _wait_for_members(store, group, limit)
            try:
                return original(*args, **kwargs)
            finally:
                _say_connected(store, group)  # one that has failed needs the others no more
        except MismatchError:
            raise  # the group stays in the log: the report compares it with the other ranks'
        except BaseException:
            # a rank that is freed has begun it nevertheless, which a report needs
            if not LOG.closed:
                LOG.new_groups.remove(group)
            raise


def _note_backend(group: str, backend: str) -> None:
    """Note the backend that the program names for a group, whatever it gets, if that is NCCL."""
    if backend.lower() == "nccl":
        LOG.nccl_groups.add(group)


def _note_of_new_group(name: str, members: tuple[int, ...], limit: timedelta) -> Note:
    note = Note("", NEW_GROUP, members, has_limit=is_short(limit))
    note.group = name
    note.sequence = int(name) if name.isdigit() else 0
    return note


def _begin_group(group: NewGroup) -> None:
    LOG.check_open()
    LOG.new_groups.append(group)


def _compare(store: dist.Store, group: NewGroup) -> None:
    """Raise a MismatchError if the rank that first made a group with this number made another."""
    key = f"{NEW_GROUP_KEYS}/{group.name}"
    first = from_json(store.compare_set(key, "", to_json(group)))
    records = differing_groups({first.rank: (first,), group.rank: (group,)})
    if records:
        raise MismatchError(words_of_groups(records))


def _wait_for_members(store: dist.Store, group: NewGroup, limit: timedelta) -> None:
    """Wait until every member has come here with this group, which each will then connect.

    The same name may come again: a group that only its members make has it again after it was
    destroyed.
    """
    key = f"{NEW_GROUP_KEYS}/{group.name}/members"
    expected = (LOG.meetings[group.name] + 1) * len(group.members)

    def all_have_come() -> bool:
        return store.add(key, 0) >= expected

    store.add(key, 1)
    try:
        if not wait_until(all_have_come, freed.FROM_NEW_GROUP, limit.total_seconds()):
            milliseconds = limit.total_seconds() * 1000
            raise RuntimeError(
                f"Timed out waiting {milliseconds:.0f}ms for the other members of a new group."
            )
    except BaseException:
        with contextlib.suppress(RuntimeError):  # the store is gone
            store.add(key, -1)
        raise
    LOG.meetings[group.name] += 1


def _say_connected(store: dist.Store, group: NewGroup) -> None:
    """Tell the other members that this rank has connected the group."""
    key = f"{NEW_GROUP_KEYS}/{group.name}/connected"
    expected = LOG.meetings[group.name] * len(group.members)
    with contextlib.suppress(RuntimeError):  # the store is gone
        store.add(key, 1)
    _all_connected[group.name] = lambda: store.add(key, 0) >= expected


def wait_until_connected(names: Iterable[str]) -> None:
    """Before this rank leaves groups: wait a while until every member has connected them.

    gloo has connected two ranks as soon as one of them has seen so. If that one closes its
    connections then, new_group of the other, which the system has let wait for a CPU, fails with
    "Connection closed by peer". It was seen on a busy machine in one of fifty cells that make
    groups and destroy them at once.

    Runs on: a rank, in a call that is noted; where the rank is freed, it leaves them at once.
    """
    conditions = [_all_connected.pop(name) for name in list(names) if name in _all_connected]
    if LOG.of_parent:  # the connection to the store is that of the rank
        return

    def all_connected() -> bool:
        return all(condition() for condition in conditions)

    with contextlib.suppress(RuntimeError):  # this rank was freed, or the store is gone
        wait_until(all_connected, freed.FROM_NEW_GROUP, CONNECTING_SECONDS)
