"""What this rank knows of a process group by its name: its members, and whether its calls end soon.

Runs on every rank, on any thread; records.py, hooks.py, status.py and recording.py call it.
"""

from datetime import timedelta

import torch.distributed as dist

from distlab.compat import torch as private

# A call with a shorter timeout than this is left to end by itself: whoever gives it one of seconds
# expects that it may be over, and handles the error. With one of minutes, as real scripts have,
# nobody would wait for it: it is judged.
SHORT = timedelta(seconds=10)


def members_of(name: str) -> tuple[tuple[int, ...], bool]:
    """Ranks of the group with this name, and whether its timeout is short."""
    # a copy, because the watchdog's thread looks here as well
    for group, its_name in list(private.GROUP_NAMES.items()):
        if its_name == name:
            # new_group also takes numbers of numpy's
            members = tuple(map(int, dist.get_process_group_ranks(group)))
            return members, is_short(private.timeout_of(group))
    return (), False


def is_short(limit: timedelta) -> bool:
    """Whether a call with this timeout is left to end by itself.

    One with the cluster's is not. Zero means none.
    """
    return timedelta(0) < limit < min(SHORT, private.default_timeout())
