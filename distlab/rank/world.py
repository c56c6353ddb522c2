"""The begin and the end of the world, by the learner's own calls or by torch's.

Runs on every rank; table.py puts these functions in the place of torch's.
"""

from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from distlab.compat import torch as private
from distlab.rank.groups import wait_until_connected
from distlab.rank.log import LOG, InCall, Note
from distlab.rank.meetings import INIT, MEETINGS
from distlab.rank.membership import members_of
from distlab.rank.this_rank import THIS_RANK
from distlab.wire.messages import OTHER


def on_init(original: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    """init_process_group, before which the cluster's own group is left.

    So the code of a tutorial or a script, which makes its group itself, runs in a cell as it is.
    """
    if THIS_RANK.gives_way and dist.is_initialized():
        note = Note(INIT, OTHER)
        LOG.destroyed = note  # it explains what happens to ranks that still use that group
        private.leave_all_groups()
        LOG.forget()
        LOG.destroyed = note
    THIS_RANK.gives_way = False
    MEETINGS.joined = ()
    MEETINGS.world = ""
    original(*args, **kwargs)
    # there is one again, and every rank has come: the end of the one before explains nothing now
    LOG.destroyed = None
    THIS_RANK.rank_at = _ranks_of_world()
    THIS_RANK.world = MEETINGS.world


def _ranks_of_world() -> tuple[int, ...] | None:
    """The ranks of the cluster in the learner's world, see `ThisRank`."""
    if MEETINGS.joined:
        return MEETINGS.joined
    numbers = (dist.get_rank(), dist.get_world_size())
    if numbers == (THIS_RANK.rank, THIS_RANK.world_size):
        return None
    return ()


def on_destroy(original: Callable[..., Any], group: Any = None, *args: Any, **kwargs: Any) -> None:
    """destroy_process_group, which closes this rank's connections: ranks that wait for it fail.

    Only the end of the world is remembered. A smaller group that is gone is no reason for what
    happens in others.
    """
    note = Note("destroy_process_group", OTHER)
    is_world = group is None or group is dist.group.WORLD
    is_learners = bool(note.lines)  # and not distlab's own
    if is_world and is_learners:
        LOG.destroyed = LOG.destroyed or note
    names = dict(private.GROUP_NAMES)
    # of all groups, because the end of the world is the end of each
    for name in names.values():
        LOG.members[name] = members_of(name)
    if is_learners:
        with InCall(note):
            wait_until_connected(names.values() if is_world else [names.get(group, "")])
    original(group, *args, **kwargs)
