"""What a program finds on a rank, as if torchrun had started it there, and what is put back after.

Runs on every rank of a world, called by entry.py: environment variables, random states, and what is
set for all of torch.
"""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Iterator
from unittest import mock

import numpy as np
import torch
import torch.distributed as dist

from distlab.rank import group
from distlab.rank.cluster_store import connect_to_store
from distlab.rank.this_rank import THIS_RANK
from distlab.wire.rendezvous import Meeting, free_ports

PORT = "port of the program"  # in the store of a generation


@contextlib.contextmanager
def own_surroundings(rank: int) -> Iterator[None]:
    """Have a program find what torchrun would give it, and put everything back afterwards.

    Runs on: every rank of a world that has just been built.
    """
    with _variables_of_launch(rank), _own_random_states(), _own_defaults():
        yield


@contextlib.contextmanager
def _variables_of_launch(rank: int) -> Iterator[None]:
    """The environment variables that torchrun sets.

    A program that calls init_process_group by itself finds an address there. Its port is another
    one in each run, because groups that meet in one store under the same keys hang.
    """
    meeting = THIS_RANK.meeting
    if meeting is None:
        raise RuntimeError("this process has not joined a group")
    variables = group.place_variables(rank, meeting)
    variables["MASTER_ADDR"] = meeting.host
    variables["MASTER_PORT"] = _free_port(rank, meeting)
    with mock.patch.dict(os.environ, variables):
        yield


def _free_port(rank: int, meeting: Meeting) -> str:
    """A port that is free on the host of rank 0, the same on every rank of the world."""
    store = dist.PrefixStore(meeting.name, connect_to_store(meeting.host, meeting.port))
    if rank == 0:
        (port,) = free_ports(1, meeting.host)
        store.set(PORT, str(port))
    found: bytes = store.get(PORT)
    return found.decode()


@contextlib.contextmanager
def _own_random_states() -> Iterator[None]:
    """Have the rank's random numbers go on afterwards as if nothing had run."""
    of_python = random.getstate()
    of_numpy = np.random.get_state()
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        random.setstate(of_python)
        np.random.set_state(of_numpy)


@contextlib.contextmanager
def _own_defaults() -> Iterator[None]:
    """Put back what a program may set for all of torch, which the next run would find."""
    dtype = torch.get_default_dtype()
    gradients = torch.is_grad_enabled()
    deterministic = torch.are_deterministic_algorithms_enabled()
    only_warns = torch.is_deterministic_algorithms_warn_only_enabled()
    try:
        yield
    finally:
        torch.set_default_dtype(dtype)
        torch.set_grad_enabled(gradients)
        torch.use_deterministic_algorithms(deterministic, warn_only=only_warns)
