"""Waiting for ranks: interrupts that do no harm, replies as they arrive, and more patience on a
loaded machine.

Runs on the notebook's kernel, used by everything that starts, ends or waits for ranks.
"""

import contextlib
import glob
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from distlab.compat.ipyparallel import answers
from distlab.wire import seconds
from distlab.wire.channel import ControlChannel
from distlab.wire.messages import IDLE, STATUS, Answer

# --- interrupts ---


class _Gate:
    """A handler of SIGINT that holds the signal while it is closed, and passes it to `handler` when
    it is open.
    """

    def __init__(self, handler: Callable[..., Any]):
        self.handler, self.open, self.kept = handler, False, False

    def __call__(self, number: int, frame: Any) -> None:
        self.kept = not self.open
        if self.open:
            self.open = False  # the handling of the interrupt must not be interrupted either
            self.handler(number, frame)

    def turn(self, open_now: bool) -> None:
        self.open = open_now
        if open_now and self.kept:
            self(signal.SIGINT, None)


def held() -> contextlib.AbstractContextManager[None]:
    """An interrupt waits until this is over, or until something inside is `allowed` to be
    interrupted.

    A KeyboardInterrupt can come between any two steps of Python, for example after a process has
    been started and before it is noted, and then nothing would end that process. One that came
    before an error does not replace it. Python interrupts only the main thread, and only if SIGINT
    has a handler; elsewhere this changes nothing.
    """
    return _turned(False)


def allowed() -> contextlib.AbstractContextManager[None]:
    """Within `held`, a wait that may be interrupted; after an interrupt, everything is held again."""
    return _turned(True)


@contextlib.contextmanager
def _turned(open_now: bool) -> Iterator[None]:
    """Open or close the gate; whoever closes it first installs it, and removes it at the end."""
    handler = signal.getsignal(signal.SIGINT)
    first = not isinstance(handler, _Gate)
    in_main_thread = threading.current_thread() is threading.main_thread()
    if not in_main_thread or not callable(handler) or (first and open_now):
        yield
        return
    gate = _Gate(handler) if first else handler
    before = gate.open
    signal.signal(signal.SIGINT, gate)
    try:
        gate.turn(open_now)
        yield
    except KeyboardInterrupt:
        before = False
        raise
    finally:
        signal.signal(signal.SIGINT, handler)
        if not first:
            gate.turn(before)
    if first and gate.kept:
        handler(signal.SIGINT, None)


# --- replies ---


class Replies:
    """What some ranks have replied to what they were sent.

    Args:
        result: ipyparallel's AsyncResult.
        targets: its ranks.

    Attributes:
        futures: of each rank's reply.
    """

    def __init__(self, result: Any, targets: Sequence[int]):
        self.result = result
        self.futures = dict(zip(targets, answers(result), strict=True))

    def unfinished(self) -> list[int]:
        """The ranks that have not replied yet."""
        return [rank for rank, answer in self.futures.items() if not answer.done()]

    def so_far(self) -> dict[int, Any]:
        """The replies that have arrived; an exception object where ipyparallel reports one."""
        return {rank: a.exception() or a.result() for rank, a in self.futures.items() if a.done()}

    def within(self, limit: float) -> dict[int, Any]:
        """The replies that arrive within `limit` seconds."""
        self.result.wait(limit)
        return self.so_far()


# --- patience ---


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
