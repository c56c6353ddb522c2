"""What this rank knows of a process group by its name: its members, and whether its calls end soon.

Runs on every rank, on any thread; records.py, hooks.py, groups.py, checked_calls.py, world.py,
status.py and recording.py call it.
"""

from datetime import timedelta

import torch.distributed as dist

from distlab.compat import torch as private
from distlab.rank.this_rank import THIS_RANK

# A call with a shorter timeout than this is left to end by itself: whoever gives it one of seconds
# expects that it may be over, and handles the error. With one of minutes, as real scripts have,
# nobody would wait for it: it is judged.
SHORT = timedelta(seconds=10)


def members_of(name: str) -> tuple[int, ...]:
    """The ranks of the group with this name; none if there is no such group.

    Also none of a group whose making failed or was interrupted after torch had named it.
    """
    group = _group_of(name)
    if group is None:
        return ()
    try:
        ranks = dist.get_process_group_ranks(group)
    except KeyError:
        return ()
    return ranks_of_cluster(tuple(map(int, ranks)))  # new_group also takes numbers of numpy's


def ranks_of_cluster(numbers: tuple[int, ...]) -> tuple[int, ...]:
    """The ranks of the cluster that have these numbers in the world, where that is known."""
    rank_at = THIS_RANK.rank_at
    if not rank_at:
        return numbers
    return tuple(rank_at[number] for number in numbers)


def own_rank() -> int:
    """This rank, by the number under which `members_of` has it."""
    return ranks_of_cluster((dist.get_rank(),))[0]


def ends_soon_in(name: str) -> bool:
    """Whether the calls in the group with this name are left to end by themselves.

    They are also where nobody knows which ranks of the cluster are in the world.
    """
    if THIS_RANK.rank_at == ():
        return True
    group = _group_of(name)
    return group is not None and is_short(private.timeout_of(group))


def _group_of(name: str) -> dist.ProcessGroup | None:
    """The group with this name."""
    # a copy, because the watchdog's thread looks here as well
    for group, its_name in list(private.GROUP_NAMES.items()):
        if its_name == name:
            return group
    return None


def is_short(limit: timedelta) -> bool:
    """Whether a call with this timeout is left to end by itself.

    A timeout of zero means that there is none. The cluster's own timeout, however short, is not
    the learner's for this call, so a call with that one is judged.
    """
    return timedelta(0) < limit < min(SHORT, private.default_timeout())
