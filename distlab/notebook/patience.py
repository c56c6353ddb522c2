"""More patience with ranks on a loaded machine: they are given time of their own, not of the clock.

Runs on the notebook's kernel; ranks.py makes one for each group of ranks that it waits for.
"""

import contextlib
import glob
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from distlab.notebook import seconds
from distlab.wire.channel import ControlChannel
from distlab.wire.messages import IDLE, STATUS, Answer


class Patience:
    """Patience with some ranks, from now on; a rank's clock stands still while it waits for a CPU.

    On a loaded machine a rank spends most of the time in the queue for a CPU, where it can neither
    act nor answer. Linux counts how long each thread has been in that queue; elsewhere, a rank's
    own time is that of the clock.

    Source: the second number in /proc/PID/task/TID/schedstat, Linux's
    Documentation/scheduler/sched-stats.rst.

    Args:
        channel: to the watchdogs of the ranks.
        pids: process numbers by rank; None for a rank on another host, whose own time is that of
            the clock.
    """

    def __init__(self, channel: ControlChannel, pids: Mapping[int, int | None]):
        self._channel = channel
        self._pids = pids
        self._began = time.monotonic()
        self._queued_before = {rank: _queued(pid) for rank, pid in pids.items()}
        # The own time of a rank when it was last seen idle or in an import.
        self._excused: dict[int, float] = {}

    def own_time(self, rank: int) -> float:
        """Seconds of the rank's own time: the clock's, without those spent in the queue for a CPU.

        Its main thread and the one that answers take turns, so the queues of both count. Which of
        the other threads answers is not known here: the longest of their queues is taken.
        """
        pid = self._pids[rank]
        before = self._queued_before[rank]
        of_main_thread = 0.0
        of_another = 0.0
        for thread, queued in _queued(pid).items():
            waited = queued - before.get(thread, 0.0)
            if thread == pid:
                of_main_thread = waited
            else:
                of_another = max(of_another, waited)
        return self._clock() - of_main_thread - of_another

    def ask(self, limit: float, want: str = STATUS) -> dict[int, Answer]:
        """Ask the ranks as ControlChannel.ask does, again and for longer while one is only slow.

        A silent rank that often waits for a CPU is asked again.

        Args:
            limit: seconds of its own time in which each rank must answer.
            want: a question.
        """
        received = self._channel.ask(self._pids, limit, want)
        silent = set(self._pids) - set(received)
        while silent and self._clock() < seconds.LIMIT:
            enough = min(limit, 0.75 * self._clock())
            if all(self.own_time(rank) >= enough for rank in silent):
                break
            longer = min(2 * self._clock(), seconds.LIMIT)
            received |= self._channel.ask(silent, longer, want)
            silent -= set(received)
        return received

    def given_up(self, busy: Iterable[int]) -> set[int]:
        """The ranks of `busy` that have used up their time limit.

        The reply of an idle rank may come at any moment, and a rank that imports a library is not
        interrupted until it has: the limit of both counts from then.

        Args:
            busy: ranks that were to become free when this was made, and are not free yet.
        """
        own_times = {rank: self.own_time(rank) for rank in busy}
        self._excuse(own_times)
        if self._clock() >= seconds.LIMIT:
            return set(own_times)
        hopeless = set()
        for rank, own_time in own_times.items():
            limit = self._excused.get(rank, 0.0) + seconds.GIVE_UP
            if own_time >= min(limit, seconds.GIVE_UP_LATE):
                hopeless.add(rank)
        return hopeless

    def _excuse(self, own_times: Mapping[int, float]) -> None:
        """Ask ranks that are late what they do, and note which ones are idle or in an import."""
        late: dict[int, int | None] = {}
        for rank, own_time in own_times.items():
            if own_time >= seconds.ASK_WHY:
                late[rank] = self._pids[rank]
        for rank, answer in Patience(self._channel, late).ask(seconds.ANSWER).items():
            status = answer.status
            if status is None:
                continue
            if status.doing == IDLE or status.importing:
                self._excused[rank] = own_times[rank]

    def _clock(self) -> float:
        """Seconds since this was made."""
        return time.monotonic() - self._began


def _queued(pid: int | None) -> dict[int, float]:
    """The seconds that each thread of a process has waited for a CPU since it began.

    Nothing is known of a process elsewhere, whose number is None here.
    """
    waits: dict[int, float] = {}
    if pid is None:
        return waits
    # not Path.glob, which raises if the process ends meanwhile
    for name in glob.glob(f"/proc/{pid}/task/*/schedstat"):
        file = Path(name)
        with contextlib.suppress(OSError, ValueError, IndexError):  # the thread has ended
            nanoseconds = int(file.read_text().split()[1])
            waits[int(file.parent.name)] = nanoseconds / 1e9
    return waits
