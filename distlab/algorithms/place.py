"""Where the ranks of a group are: on one machine, with memory that they share, or not; asked once for each group.

Runs on every rank of a group. The first question makes the group's memory, for which its ranks talk to each other.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import socket
import sys
import tempfile
import weakref
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from distlab.algorithms.segment import Segment, bytes_for


@dataclass(frozen=True)
class Place:
    """What the ranks of a group know of where they run; the same on all but for the segment's own view.

    `segment` is None where they cannot share memory, and `why` says so. `crowded`: a machine has more ranks than cores.
    """

    segment: Segment | None
    why: str
    crowded: bool


# by group, and gone with it: a segment is as long there as the group that it belongs to
_PLACES: weakref.WeakKeyDictionary[Any, Place] = weakref.WeakKeyDictionary()


def place_of(group: Any) -> Place:
    """The place of a group; the first call makes its segment.

    Runs on: every rank of the group (a rank that skips the first call hangs the rest until the timeout).
    """
    if group not in _PLACES:
        _PLACES[group] = _find(group)
    return _PLACES[group]


def _find(group: Any) -> Place:
    """Rank 0 makes a file, every rank maps it, and hears how that went on the others."""
    ranks, path, why, segment = dist.get_process_group_ranks(group), None, "", None
    me = f"rank {ranks[group.rank()]} on {socket.gethostname()}"
    if group.rank() == 0:
        try:
            path = _create(bytes_for(len(ranks)))
        except OSError as error:
            why = f"{me} cannot make a file for {bytes_for(len(ranks))} bytes: {error}"
    try:
        given = [path, why]
        dist.broadcast_object_list(given, group=group, group_src=0)
        if given[0] is not None:
            try:
                segment = _map(given[0], group, ranks)
            except OSError as error:
                why = f"{me} cannot open the file of rank {ranks[0]}: {error}"
        answers: list[Any] = [None] * len(ranks)
        dist.all_gather_object(answers, (why or given[1], socket.gethostname(), _cores()), group=group)
    finally:
        if path is not None:
            os.unlink(path)
    hosts = [host for _, host, _ in answers]
    crowded = any(hosts.count(host) > cores for _, host, cores in answers)
    why = next((why for why, _, _ in answers if why), "")
    return Place(None if why else segment, why, crowded)


def _create(num_bytes: int) -> str:
    """The path of a new file of zeros.

    It is written in full: memory that the system cannot give is an error here, and would end the process later.
    """
    # on Linux a file system in memory, which no other machine sees as it may see a temporary folder
    folder = "/dev/shm" if sys.platform == "linux" else tempfile.gettempdir()
    descriptor, path = tempfile.mkstemp(prefix="distlab-", dir=folder)
    try:
        with open(descriptor, "wb") as file:
            file.write(bytes(num_bytes))
    except BaseException:
        os.unlink(path)
        raise
    return path


def _map(path: str, group: Any, ranks: list[int]) -> Segment:
    """This rank's view of the memory in the file."""
    rank = group.rank()
    file = open(path, "r+b", buffering=0)  # noqa: SIM115 - closed with the segment
    memory = mmap.mmap(file.fileno(), bytes_for(len(ranks)))
    # as long as its process lives, a rank holds a lock on its byte of the file
    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, rank)

    def lives(other: int) -> bool:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, other)
        except OSError:
            return True
        fcntl.lockf(file, fcntl.LOCK_UN, 1, other)
        return False

    timeout = group._get_backend(torch.device("cpu")).options._timeout.total_seconds()
    segment = Segment(memory, rank, ranks, timeout, lives)
    weakref.finalize(segment, file.close)
    return segment


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
