"""The stacks of processes that run: `distlab explain --pids 123,124`, by py-spy.

Run by `distlab explain` in its own process, called by command.py.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import replace

import psutil

from distlab.errors import DistlabError
from distlab.scripts.explaining.stacks import Stack, read_stacks
from distlab.scripts.explaining.stacks_report import of_ranks

SECONDS = 30.0  # for one process: py-spy takes a tenth of a second where nothing is wrong
WITHOUT_PY_SPY = (
    "py-spy looks into running processes, and it is not installed here: pip install py-spy.\n"
    "Without it, a program that has called faulthandler.register(signal.SIGUSR1) writes its stack "
    "to stderr when it gets that signal, and distlab explain also reads that text.\n"
    "The signal ends a program that has not called it."
)
NOT_ALLOWED = (
    "py-spy may not look into process {pid}. Run this as root, or as the user who owns the process "
    "where the system allows that; a container needs --cap-add SYS_PTRACE."
)


def pids_given(text: str) -> list[int]:
    """The numbers of processes in a text such as "123,124".

    Raises:
        ArgumentTypeError: of argparse, which shows it: it is no such text.
    """
    numbers = text.replace(",", " ").split()
    if not numbers or not all(number.isdigit() for number in numbers):
        raise argparse.ArgumentTypeError(
            f"must be numbers of processes, got {text!r}. For example: --pids 123,124"
        )
    return [int(number) for number in numbers]


def of_processes(pids: Sequence[int]) -> str:
    """What the stacks of running processes show. A process of torchrun stands for its ranks.

    Raises:
        DistlabError: py-spy is missing or fails, or a process is not there.
    """
    program = shutil.which("py-spy")
    if program is None:
        raise DistlabError(WITHOUT_PY_SPY)
    stacks: dict[int, Stack] = {}
    world_size = 0
    for order, pid in enumerate(_ranks_among(pids)):
        environment = _environment(pid)
        rank = _whole_number(environment.get("RANK"), order)
        world_size = max(world_size, _whole_number(environment.get("WORLD_SIZE"), 0))
        if rank in stacks:
            raise DistlabError(
                f"Process {pid} belongs to another job, because rank {rank} is there already."
            )
        stacks[rank] = replace(_stack_of(program, pid), rank=rank)
    return of_ranks(dict(sorted(stacks.items())), world_size)


def _ranks_among(pids: Sequence[int]) -> list[int]:
    """The processes that are ranks: in the place of one that started ranks, these ranks."""
    found = []
    for pid in pids:
        if "RANK" in _environment(pid):
            found.append(pid)
            continue
        ranks = _ranks_below(pid)
        found += ranks or [pid]
    return found


def _ranks_below(pid: int) -> list[int]:
    """The child processes that are ranks, and none that these have started themselves."""
    ranks = []
    for child in psutil.Process(pid).children():
        try:
            is_rank = "RANK" in child.environ()
        except psutil.Error:  # it has ended, or belongs to somebody else
            continue
        if is_rank:
            ranks.append(child.pid)
    return ranks


def _environment(pid: int) -> dict[str, str]:
    """The environment of a process, as it was when the process began."""
    try:
        return psutil.Process(pid).environ()
    except psutil.NoSuchProcess as error:
        raise DistlabError(f"There is no process {pid}.") from error
    except psutil.AccessDenied:
        return {}


def _whole_number(text: str | None, otherwise: int) -> int:
    return int(text) if text and text.isdigit() else otherwise


def _stack_of(program: str, pid: int) -> Stack:
    """The stack of a process, with the values of its variables."""
    command = [program, "dump", "--locals", "--full-filenames", "--pid", str(pid)]
    environment = {**os.environ, "NO_COLOR": "1"}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=SECONDS, env=environment, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise DistlabError(
            f"py-spy did not finish within {SECONDS:g} s for process {pid}."
        ) from error
    stacks = read_stacks(done.stdout)
    if stacks:
        return stacks[0]
    words = " ".join(done.stderr.split())
    if "permission" in words.lower():
        raise DistlabError(NOT_ALLOWED.format(pid=pid))
    raise DistlabError(f"py-spy shows no stack of process {pid}: {words or 'it says nothing'}")
