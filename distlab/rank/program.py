"""A person's own program on this rank: it finds what torchrun would give it, and makes its groups.

Runs on every rank, called by entry.py for scripts/run.py. The cluster's group is left before the
program runs. What Python does when a program ends is done here, because the rank's process lives
on: main.py runs the program, streams.py has its stdout and stderr.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import warnings
from collections.abc import Iterator
from datetime import timedelta

from distlab.compat import torch as private
from distlab.rank import group, meetings
from distlab.rank.cluster_store import connect_to_store
from distlab.rank.log import LOG
from distlab.rank.main_module import run_as_main
from distlab.rank.script_streams import own_streams
from distlab.rank.this_rank import THIS_RANK
from distlab.wire.program import Program

TORCH_TIMEOUT = timedelta(minutes=30)  # of a group, unless a program says another one


def run_program(rank: int, world_size: int, program: Program) -> None:
    """Run a program as `__main__`, and return when it has ended.

    What it raises goes on, and a SystemExit whose code is a number other than 0.

    Runs on: every rank of the cluster, on its main thread.
    """
    leave_to_program()
    THIS_RANK.backend = program.backend
    if program.backend:  # torch says so of the one that is not used
        warnings.filterwarnings("ignore", "Attempted to get default timeout for nccl")
    os.chdir(program.folder)
    with own_streams(rank, program), _variables(rank, program):
        run_as_main(program, functools.partial(_is_first_to_write, program.writes_all))


def _is_first_to_write(writes_all: bool, text: str) -> bool:
    """Whether no other rank has written this text: ranks that fail alike write one traceback.

    Args:
        writes_all: whether each rank writes its own, as where each has files of its own.
    """
    meeting = THIS_RANK.meeting
    if writes_all or meeting is None:
        return True
    digest = hashlib.sha256(text.encode(errors="replace")).hexdigest()
    store = connect_to_store(meeting.host, meeting.port)
    return bool(store.add(f"{meeting.name}/written/{digest}", 1) == 1)


def leave_to_program() -> None:
    """Leave the groups, so that a program can make its own as in a process that was just started.

    Runs on: every rank, before a program of a person's runs.
    """
    private.leave_all_groups()
    private.number_next_group()
    private.set_default_timeout(TORCH_TIMEOUT)
    LOG.forget()
    THIS_RANK.gives_way = False
    meetings.MEETINGS.is_program = True


@contextlib.contextmanager
def _variables(rank: int, program: Program) -> Iterator[None]:
    """The environment variables that torchrun sets."""
    meeting = THIS_RANK.meeting
    if meeting is None:
        raise RuntimeError("this process has not joined a group")
    for name in program.unset:
        os.environ.pop(name, None)
    os.environ.update(
        group.place_variables(rank, meeting),
        ROLE_RANK=str(rank),
        ROLE_WORLD_SIZE=str(meeting.world_size),
        ROLE_NAME=program.role,
        GROUP_WORLD_SIZE="1",
        MASTER_ADDR=meeting.host,
        MASTER_PORT=str(meeting.port),
        TORCHELASTIC_RUN_ID=program.run_id,
        TORCHELASTIC_RESTART_COUNT="0",
        TORCHELASTIC_MAX_RESTARTS="0",
        TORCHELASTIC_USE_AGENT_STORE="True",
        TORCHELASTIC_ERROR_FILE=os.devnull,
        TORCH_NCCL_ASYNC_ERROR_HANDLING="1",
    )
    os.environ.update(program.environment)
    yield
