"""Where a program's own groups meet: at the cluster's store, whatever address the program names.

Runs on every rank, called by program.py; table.py puts `on_rendezvous` in the place of torch's
function. A store of the program's own would need a free port for each of its groups, and keys that
nobody has used: groups that meet under used keys hang.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch.distributed as dist

from distlab.rank.cluster_store import connect_to_store
from distlab.rank.this_rank import THIS_RANK


@dataclass
class Meetings:
    """How the program of this rank meets the other ranks; one object a process, `MEETINGS`.

    Attributes:
        at_cluster: whether its groups meet at the cluster's store.
        numbers: of the groups that it makes, in this generation.
    """

    at_cluster: bool = False
    numbers: Iterator[int] = field(default_factory=itertools.count)


MEETINGS = Meetings()


def meet_at_store_of_cluster() -> None:
    """Have groups that the program makes meet at the cluster's store from now on."""
    MEETINGS.at_cluster = True
    MEETINGS.numbers = itertools.count()


def on_rendezvous(
    original: Callable[..., Any],
    url: str,
    rank: int = -1,
    world_size: int = -1,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """rendezvous, which gives a store, a rank and a world size to init_process_group."""
    meeting = THIS_RANK.meeting
    if not MEETINGS.at_cluster or meeting is None:
        return original(url, rank, world_size, *args, **kwargs)
    if rank < 0:
        rank = int(os.environ["RANK"])
    if world_size < 0:
        world_size = int(os.environ["WORLD_SIZE"])
    store = connect_to_store(meeting.host, meeting.port)
    name = f"{meeting.name}/program/{next(MEETINGS.numbers)}"
    return iter([(dist.PrefixStore(name, store), rank, world_size)])
