"""More patience with ranks on a loaded machine: their own time, without the wait for a CPU.

Runs on the notebook's kernel, called by ranks.py.
"""

import contextlib
import glob
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from distlab.wire import seconds
from distlab.wire.channel import ControlChannel
from distlab.wire.messages import IDLE, STATUS, Answer


class Patience:
    """Patience with some ranks, from now on; each has a clock that stands still while the rank
    waits for a CPU.

    On a loaded machine a rank spends most of the time in the queue for a CPU, where it can neither
    act nor answer. Linux counts how long each thread has been in that queue; elsewhere, a rank's
    own time is that of the clock.

    Source: the second number in /proc/PID/task/TID/schedstat, Linux's
    Documentation/scheduler/sched-stats.rst.

    Args:
        channel: to their watchdogs.
        pids: their process numbers by rank; None for one on another host, whose own time is that of
            the clock.
    """

    def __init__(self, channel: ControlChannel, pids: Mapping[int, int | None]):
        self._channel, self._pids, self._began = channel, pids, time.monotonic()
        self._before = {rank: _queued(pid) for rank, pid in pids.items()}
        # by rank, its own time when it was last seen idle or in an import
        self._excused: dict[int, float] = {}

    def own_time(self, rank: int) -> float:
        """Seconds of the rank's own time. Its main thread and the one that answers take turns: both
        queues count.
        """
        pid, before = self._pids[rank], self._before[rank]
        waits = {task: queued - before.get(task, 0.0) for task, queued in _queued(pid).items()}
        return self._clock() - waits.pop(str(pid), 0.0) - max(waits.values(), default=0.0)

    def ask(self, limit: float, want: str = STATUS) -> dict[int, Answer]:
        """Like ControlChannel.ask, repeated, longer each time, while a silent rank often waits for
        a CPU.

        Args:
            limit: seconds of its own time in which each rank must answer.
            want: a question.
        """
        received = self._channel.ask(self._pids, limit, want)
        while (silent := set(self._pids) - set(received)) and self._clock() < seconds.LIMIT:
            if all(self.own_time(rank) >= min(limit, 0.75 * self._clock()) for rank in silent):
                break
            received |= self._channel.ask(silent, min(2 * self._clock(), seconds.LIMIT), want)
        return received

    def given_up(self, busy: Iterable[int]) -> set[int]:
        """Those of `busy`, which were to become free when this was made, that had the time to and
        will not.
        """
        own = {rank: self.own_time(rank) for rank in busy}
        late = {rank: self._pids[rank] for rank in own if own[rank] >= seconds.ASK_WHY}
        for rank, answer in Patience(self._channel, late).ask(seconds.ANSWER).items():
            if answer.status is not None and (
                answer.status.doing == IDLE or answer.status.importing
            ):
                self._excused[rank] = own[rank]
        if self._clock() >= seconds.LIMIT:
            return set(own)
        limits = {rank: self._excused.get(rank, 0.0) + seconds.GIVE_UP for rank in own}
        return {rank for rank in own if own[rank] >= min(limits[rank], seconds.GIVE_UP_LATE)}

    def _clock(self) -> float:
        return time.monotonic() - self._began


def _queued(pid: int | None) -> dict[str, float]:
    """The seconds that each thread of a process has waited for a CPU since it began; none for a
    process elsewhere.
    """
    waits: dict[str, float] = {}
    for file in map(Path, glob.glob(f"/proc/{pid}/task/*/schedstat")):
        with contextlib.suppress(OSError, ValueError, IndexError):  # the thread has ended
            waits[file.parent.name] = int(file.read_text().split()[1]) / 1e9
    return waits
