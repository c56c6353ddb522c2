"""How long the notebook waits for ranks that it has asked for something: by a rank's own time, not by the clock alone.

Runs on the notebook's kernel, called by ranks.py and cell.py. On a loaded machine a rank spends most seconds in the
queue for a CPU, where it can neither act nor answer; its own time leaves these out. Linux tells how long each thread
has been in that queue; where it does not, own time is the clock's.

Source: the second number in /proc/PID/task/TID/schedstat, Linux's Documentation/scheduler/sched-stats.rst.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable, Mapping
from typing import Any

from distlab.line import PATIENCE_SECONDS as LOOK_SECONDS
from distlab.line import Line

AGAIN_SECONDS = 0.2  # before a rank that does not come back is asked again
ASK_SECONDS = 1.0  # of its own time, before a rank that does not come back is asked why
PATIENCE_SECONDS = 2.0  # of its own time, before a rank that does not come back is given up
LONG_PATIENCE_SECONDS = 10.0  # the same for one that was idle, its message under way, or in an import
LIMIT_SECONDS = 60.0  # by the clock, for every rank


class OwnTime:
    """A clock for each rank that stands still while the rank waits for a CPU; it begins when it is made.

    Args:
        pids: process numbers by rank.
    """

    def __init__(self, pids: Mapping[int, int]):
        self._pids, self._began = pids, time.monotonic()
        self._before = {rank: _queued(pid) for rank, pid in pids.items()}

    def clock(self) -> float:
        """Seconds by the clock."""
        return time.monotonic() - self._began

    def of(self, rank: int) -> float:
        """Seconds of the rank's own time; its threads wait for one another, so the longest queue counts."""
        before = self._before[rank]
        waits = [seconds - before.get(task, 0.0) for task, seconds in _queued(self._pids[rank]).items()]
        return self.clock() - max(waits, default=0.0)


def _queued(pid: int) -> dict[str, float]:
    """The seconds that each thread of a process has waited for a CPU since it began."""
    waits = {}
    with contextlib.suppress(OSError, ValueError, IndexError):
        for task in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(FileNotFoundError), open(f"/proc/{pid}/task/{task}/schedstat") as file:
                waits[task] = int(file.read().split()[1]) / 1e9
    return waits


class Patience:
    """With ranks that were asked to come back, from now on.

    Args:
        line: to their sentinels. pids: their process numbers by rank.
    """

    def __init__(self, line: Line, pids: Mapping[int, int]):
        self._line, self._pids, self._time = line, pids, OwnTime(pids)
        self._excused: dict[int, float] = {}  # of its own time, when a rank was last about to come back

    def given_up(self, busy: Iterable[int]) -> set[int]:
        """The ranks among `busy` that had time to come back, and will not."""
        own = {rank: self._time.of(rank) for rank in busy}
        asked = {rank: self._pids[rank] for rank in own if own[rank] >= ASK_SECONDS}
        for rank, answer in (ask(self._line, asked, LOOK_SECONDS) if asked else {}).items():
            if answer.get("doing") == "idle" or answer.get("importing", False):
                self._excused[rank] = own[rank]
        clock = self._time.clock()
        return {rank for rank in own if has_had_time(own[rank], self._excused.get(rank, 0.0), clock)}


def has_had_time(own: float, excused: float, clock: float) -> bool:
    """Whether a rank that has not come back after these seconds will not.

    Args:
        own: seconds of its own time. excused: until when of these it was idle or in an import. clock: all seconds.
    """
    return own - excused >= PATIENCE_SECONDS or own >= LONG_PATIENCE_SECONDS or clock >= LIMIT_SECONDS


def ask(line: Line, pids: Mapping[int, int], seconds: float, **what: Any) -> dict[int, dict[str, Any]]:
    """As Line.ask, and again, longer each time, while a rank is silent that mostly waits for a CPU.

    Args:
        pids: process numbers of the ranks that are asked. seconds: what each has to answer, of its own time.
    """
    own, answers = OwnTime(pids), line.ask(pids, seconds, **what)
    while own.clock() < LIMIT_SECONDS and any(
        own.of(rank) < min(seconds, own.clock() / 2) for rank in pids if rank not in answers
    ):
        longer = min(2 * own.clock(), LIMIT_SECONDS)
        answers |= line.ask(set(pids) - set(answers), longer, **what)
    return dict(sorted(answers.items()))
