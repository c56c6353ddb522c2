"""A person's own program on this rank: it finds what torchrun would give it, and makes its groups.

Runs on every rank, called by entry.py for scripts/run.py. The cluster's group is left before the
program runs; the notebook rebuilds it when it needs it.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import runpy
import sys
import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from distlab.compat import torch as private
from distlab.rank import group, meetings
from distlab.rank.log import LOG
from distlab.rank.this_rank import THIS_RANK
from distlab.wire.program import Program, pipe_of

TORCH_TIMEOUT = timedelta(minutes=30)  # of a group, unless a program says another one
LAUNCH = "distlab"  # the name of the run, and of torchrun's role


def run_program(rank: int, world_size: int, program: Program) -> None:
    """Run a program as `__main__`, and return when it has ended.

    What it raises goes on, SystemExit too unless it says success.

    Runs on: every rank of the cluster, on its main thread.
    """
    leave_to_program()
    os.chdir(program.folder)
    with (
        _own_streams(rank, program.streams),
        _variables(rank, program),
        _own_arguments(program),
        _end_of_process(),
    ):
        try:
            _run(program)
        except SystemExit as end:
            if end.code is not None and end.code != 0:
                raise


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


def _run(program: Program) -> None:
    """Run the program, and wait for its threads, as Python does before it ends."""
    before = set(threading.enumerate())
    if program.is_module:
        sys.path.insert(0, program.folder)
        runpy.run_module(program.name, run_name="__main__", alter_sys=True)
    else:
        sys.path.insert(0, os.path.dirname(os.path.abspath(program.name)))
        runpy.run_path(program.name, run_name="__main__")
    for thread in set(threading.enumerate()) - before:
        if not thread.daemon:
            thread.join()


@contextlib.contextmanager
def _variables(rank: int, program: Program) -> Iterator[None]:
    """The environment variables that torchrun sets."""
    meeting = THIS_RANK.meeting
    if meeting is None:
        raise RuntimeError("this process has not joined a group")
    os.environ.update(
        group.place_variables(rank, meeting),
        ROLE_RANK=str(rank),
        ROLE_WORLD_SIZE=str(meeting.world_size),
        ROLE_NAME="default",
        GROUP_WORLD_SIZE="1",
        MASTER_ADDR=meeting.host,
        MASTER_PORT=str(meeting.port),
        TORCHELASTIC_RUN_ID=LAUNCH,
        TORCHELASTIC_RESTART_COUNT="0",
        TORCHELASTIC_MAX_RESTARTS="0",
        TORCHELASTIC_USE_AGENT_STORE="True",
        TORCH_NCCL_ASYNC_ERROR_HANDLING="1",
        **program.environment,
    )
    yield


@contextlib.contextmanager
def _own_arguments(program: Program) -> Iterator[None]:
    """`sys.argv` and `sys.path` as the program expects them, and `__main__` put back."""
    argv = sys.argv
    path = list(sys.path)
    main = sys.modules["__main__"]
    sys.argv = [program.name, *program.arguments]
    try:
        yield
    finally:
        sys.argv = argv
        sys.path[:] = path
        sys.modules["__main__"] = main


@contextlib.contextmanager
def _own_streams(rank: int, folder: str) -> Iterator[None]:
    """stdout and stderr, of Python and of compiled code, into the launcher's pipes."""
    if not folder:
        yield
        return
    kept: dict[str, Any] = {}
    for number, name in ((1, "stdout"), (2, "stderr")):
        descriptor = os.dup(number)
        pipe = os.open(pipe_of(folder, rank, name), os.O_WRONLY)
        os.dup2(pipe, number)
        os.close(pipe)
        kept[name] = (descriptor, getattr(sys, name))
        stream = open(number, "w", buffering=1, closefd=False, errors="backslashreplace")  # noqa: SIM115
        setattr(sys, name, stream)
    try:
        yield
    finally:
        for number, name in ((1, "stdout"), (2, "stderr")):
            descriptor, stream = kept[name]
            with contextlib.suppress(Exception):  # a program may have put anything there
                getattr(sys, name).flush()
            setattr(sys, name, stream)
            os.dup2(descriptor, number)
            os.close(descriptor)


@contextlib.contextmanager
def _end_of_process() -> Iterator[None]:
    """Call at the end what the program has registered for the end of its process, which goes on."""
    registered: list[Any] = []
    own_register = atexit.register

    def register(function: Any, *args: Any, **kwargs: Any) -> Any:
        registered.append((function, args, kwargs))
        return function

    atexit.register = register  # type: ignore[assignment]
    try:
        yield
    finally:
        atexit.register = own_register
        for function, args, kwargs in reversed(registered):
            function(*args, **kwargs)
