"""Processes that wait for the next `distlab.spawn`: a fork server with torch, and its controller.

Runs in the process that calls `distlab.spawn`, called by spawn.py and testing/plugin.py. Each call
forks ranks of its own from them, which end with the call.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace

import psutil

from distlab.notebook.plan import Plan
from distlab.notebook.processes import Processes
from distlab.notebook.starting import start_processes

# how the names of variables begin that Python, torch and the libraries below them read only once
READ_AT_START = (
    "ATEN",
    "CUDA",
    "GLOO",
    "GOMP",
    "KINETO",
    "KMP",
    "LD_",
    "MALLOC",
    "MKL",
    "NCCL",
    "OMP",
    "OPENBLAS",
    "PYTHON",
    "PYTORCH",
    "TORCH",
)


@dataclass(frozen=True)
class Warm:
    """Processes that no call uses.

    Attributes:
        processes: the processes.
        plan: how they were started.
        variables: those that were read at their start.
        owner: number of the process that started them.
    """

    processes: Processes
    plan: Plan
    variables: Mapping[str, str]
    owner: int


WAITING: list[Warm] = []


def read_at_start() -> dict[str, str]:
    """The variables of this process that a running process would not read again."""
    return {name: os.environ[name] for name in os.environ if name.startswith(READ_AT_START)}


def take(plan: Plan) -> Processes:
    """Processes without ranks that can fork those of this plan: an earlier call's, or new ones."""
    variables = read_at_start()
    for warm in list(WAITING):
        if warm.owner != os.getpid():  # this process was forked from the one that has them
            WAITING.remove(warm)
            continue
        if warm.processes.can_fork and plan.starts_like(warm.plan) and warm.variables == variables:
            WAITING.remove(warm)
            return warm.processes
    return start_processes(replace(plan, n=0))


def keep(processes: Processes, plan: Plan, variables: Mapping[str, str]) -> None:
    """End the ranks of a call, and keep what has forked them for the next one.

    Args:
        processes: those of the call.
        plan: how they were started.
        variables: what `read_at_start` returned then.
    """
    try:
        processes.end_engines()
    except (RuntimeError, psutil.Error):  # one of them has died
        processes.stop()
        return
    if not WAITING:
        atexit.register(end_all)
    WAITING.append(Warm(processes, plan, variables, os.getpid()))


def end_all() -> None:
    """End all processes that wait."""
    atexit.unregister(end_all)
    while WAITING:
        warm = WAITING.pop()
        if warm.owner == os.getpid():
            warm.processes.stop()
