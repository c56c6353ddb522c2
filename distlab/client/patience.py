"""How long the notebook waits for ranks that it has asked for something: by a rank's own time, not by the clock alone.

Runs on the notebook's kernel, called by ranks.py. On a loaded machine a rank spends most seconds in
the queue for a CPU, where it can neither act nor answer; its own time leaves these out. Linux tells how long each
thread has been in that queue; where it does not, own time is the clock's.

Source: the second number in /proc/PID/task/TID/schedstat, Linux's Documentation/scheduler/sched-stats.rst.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable, Mapping

from distlab.wire.channel import PATIENCE_SECONDS as LOOK_SECONDS
from distlab.wire.channel import ControlChannel
from distlab.wire.messages import IDLE, STATUS, Answer

AGAIN_SECONDS = 0.2  # before a rank that does not come back is asked again
ASK_SECONDS = 1.0  # of its own time, before a rank that does not come back is asked why
PATIENCE_SECONDS = 2.0  # of its own time, before a rank that does not come back is given up
LONG_PATIENCE_SECONDS = 10.0  # the same for one that was idle, its message under way, or in an import
LIMIT_SECONDS = 60.0  # by the clock, for every rank


class Patience:
    """With some ranks, from now on, by a clock for each that stands still while the rank waits for a CPU.

    Args:
        channel: to their watchdogs. pids: their process numbers by rank; None of one on another host, whose own time
            is the clock's.
    """

    def __init__(self, channel: ControlChannel, pids: Mapping[int, int | None]):
        self._channel, self._pids, self._began = channel, pids, time.monotonic()
        self._before = {rank: _queued(pid) for rank, pid in pids.items()}
        self._excused: dict[int, float] = {}  # of its own time, when a rank was last about to come back

    def own_time(self, rank: int) -> float:
        """Seconds of the rank's own time. Its main thread and the one that answers take turns: both queues count."""
        pid, before = self._pids[rank], self._before[rank]
        waits = {task: seconds - before.get(task, 0.0) for task, seconds in _queued(pid).items()}
        of_main = waits.pop(str(pid), 0.0)
        return self._clock() - of_main - max(waits.values(), default=0.0)

    def ask(self, seconds: float, want: str = STATUS) -> dict[int, Answer]:
        """As ControlChannel.ask, and again, longer each time, while a rank is silent that mostly waits for a CPU.

        Args:
            seconds: what each rank has to answer, of its own time.
        """
        answers = self._channel.ask(self._pids, seconds, want)
        while (silent := set(self._pids) - set(answers)) and self._clock() < LIMIT_SECONDS:
            if all(self.own_time(rank) >= min(seconds, self._clock() / 2) for rank in silent):
                break
            answers |= self._channel.ask(silent, min(2 * self._clock(), LIMIT_SECONDS), want)
        return answers

    def given_up(self, busy: Iterable[int]) -> set[int]:
        """The ranks among `busy`, asked to come back when this was made, that had time for it and will not."""
        own = {rank: self.own_time(rank) for rank in busy}
        late = {rank: self._pids[rank] for rank in own if own[rank] >= ASK_SECONDS}
        for rank, answer in Patience(self._channel, late).ask(LOOK_SECONDS).items():
            if answer.status is not None and (answer.status.doing == IDLE or answer.status.importing):
                self._excused[rank] = own[rank]
        if self._clock() >= LIMIT_SECONDS:
            return set(own)
        long_enough = {rank: self._excused.get(rank, 0.0) + PATIENCE_SECONDS for rank in own}
        return {rank for rank in own if own[rank] >= min(long_enough[rank], LONG_PATIENCE_SECONDS)}

    def _clock(self) -> float:
        return time.monotonic() - self._began


def _queued(pid: int | None) -> dict[str, float]:
    """The seconds that each thread of a process has waited for a CPU since it began."""
    waits: dict[str, float] = {}
    if pid is None:
        return waits
    with contextlib.suppress(OSError, ValueError, IndexError):
        for task in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(FileNotFoundError), open(f"/proc/{pid}/task/{task}/schedstat") as file:
                waits[task] = int(file.read().split()[1]) / 1e9
    return waits
