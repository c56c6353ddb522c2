"""More patience with ranks on a loaded machine: they are given time of their own, not of the clock.

Runs on the notebook's kernel; ranks.py makes one for each group of ranks that it waits for.
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
        # by rank, its own time when it was last seen idle or in an import
        self._excused: dict[int, float] = {}

    def own_time(self, rank: int) -> float:
        """Seconds of the rank's own time.

        Its main thread and the one that answers take turns, so the queues of both count.
        """
        pid = self._pids[rank]
        before = self._queued_before[rank]
        waits = {
            thread: queued - before.get(thread, 0.0) for thread, queued in _queued(pid).items()
        }
        of_main_thread = waits.pop(str(pid), 0.0)
        of_another = max(waits.values(), default=0.0)
        return self._clock() - of_main_thread - of_another

    def ask(self, limit: float, want: str = STATUS) -> dict[int, Answer]:
        """Ask the ranks as ControlChannel.ask does, again and for longer while one is only slow.

        A silent rank that often waits for a CPU is asked again.

        Args:
            limit: seconds of its own time in which each rank must answer.
            want: a question.
        """
        received = self._channel.ask(self._pids, limit, want)
        while True:
            silent = set(self._pids) - set(received)
            if not silent or self._clock() >= seconds.LIMIT:
                return received
            enough = min(limit, 0.75 * self._clock())
            if all(self.own_time(rank) >= enough for rank in silent):
                return received
            longer = min(2 * self._clock(), seconds.LIMIT)
            received |= self._channel.ask(silent, longer, want)

    def given_up(self, busy: Iterable[int]) -> set[int]:
        """The ranks of `busy` that have used up their time limit.

        The reply of an idle rank may come at any moment, and a rank that imports a library is not
        interrupted until it has: the limit of both counts from then.

        Args:
            busy: ranks that were to become free when this was made, and are not free yet.
        """
        own = {rank: self.own_time(rank) for rank in busy}
        late = {rank: self._pids[rank] for rank in own if own[rank] >= seconds.ASK_WHY}
        for rank, answer in Patience(self._channel, late).ask(seconds.ANSWER).items():
            status = answer.status
            if status is not None and (status.doing == IDLE or status.importing):
                self._excused[rank] = own[rank]
        if self._clock() >= seconds.LIMIT:
            return set(own)
        hopeless = set()
        for rank, used in own.items():
            limit = self._excused.get(rank, 0.0) + seconds.GIVE_UP
            if used >= min(limit, seconds.GIVE_UP_LATE):
                hopeless.add(rank)
        return hopeless

    def _clock(self) -> float:
        """Seconds since this was made."""
        return time.monotonic() - self._began


def _queued(pid: int | None) -> dict[str, float]:
    """The seconds that each thread of a process has waited for a CPU since it began.

    There are none for a process elsewhere.
    """
    waits: dict[str, float] = {}
    for name in glob.glob(f"/proc/{pid}/task/*/schedstat"):
        file = Path(name)
        with contextlib.suppress(OSError, ValueError, IndexError):  # the thread has ended
            nanoseconds = int(file.read_text().split()[1])
            waits[file.parent.name] = nanoseconds / 1e9
    return waits
