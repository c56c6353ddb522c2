"""A person's program on the ranks: waited for, ended where it cannot go on, and judged.

Runs in the launcher's process, called by running.py. It is a cell of a cluster that has no other
one, so nothing is rebuilt after it; and its ranks end as processes of a program do.
"""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from distlab.debugger import turns
from distlab.diagnosis import afterwards
from distlab.diagnosis.endings import SIGNALLED, ending_of
from distlab.diagnosis.endings import Ending as EndOfProcess
from distlab.errors import DistlabError
from distlab.notebook import interrupts, seconds
from distlab.notebook.cell import Cell
from distlab.notebook.failed_cell import FailedCell
from distlab.scripts.ending import STEP, Ending
from distlab.scripts.requests import Requests
from distlab.wire import messages
from distlab.wire.messages import Failure

ALIKE = 1.0  # after the first failure, for others to fail alike, before they are asked to end

# why the wait for a program was over
ENDED = "ended"
FAILED = "failed"
STUCK = "stuck"
LATE = "late"
INTERRUPTED = "interrupted"
BY_SIGNAL = "by a signal"


@dataclass(frozen=True)
class FailedProgram(FailedCell):
    """What is known of a program that failed or could not go on.

    Attributes:
        asked: the ranks that were asked to end: how they did is no failure.
        last_of: the end of what a rank has written on stderr.
    """

    asked: frozenset[int] = field(default_factory=frozenset)
    last_of: Callable[[int], str] = lambda rank: ""

    def _rebuild(self) -> afterwards.EndedWithGroup:
        """Nothing: no other cell comes."""
        return afterwards.EndedWithGroup()

    def _raised(self) -> list[Failure]:
        return [one for one in super()._raised() if one.rank not in self.asked]

    def _died(self, replaced: Mapping[int, str]) -> dict[int, EndOfProcess]:
        """How ranks have died; gloo and C++ write why on stderr, which leads to the terminal."""
        dead = self.ranks.dead
        died = {}
        for rank, ending in super()._died(replaced).items():
            if rank in self.asked:
                continue
            written = self.last_of(rank)
            died[rank] = ending
            if ending.status > SIGNALLED:
                died[rank] = ending_of(SIGNALLED - ending.status, written, dead.faults.get(rank))
            dead.last_lines[rank] = written
        return died


class Output(Protocol):
    """Where a program writes: a `Terminal`, or nothing that could say what was written."""

    def settle(self) -> None:
        """Return when all that was written is shown."""

    def last_of(self, rank: int) -> str:
        """What a rank has written last on stderr; "" if that is not known."""


class ProgramCell(Cell):
    """A program that was sent to all ranks.

    `attend` says who waits for it.
    """

    def attend(self, terminal: Output, requests: Requests, grace: float) -> None:
        """Say where it writes, what asks it to end, and how long it may take for that."""
        self._terminal = terminal
        self._requests = requests
        self._ending = Ending(self._ranks, self._sent, grace, self._look_at_preemption)
        self._why = ENDED
        self._failed_first: list[int] = []

    @property
    def failed_first(self) -> list[int]:
        """The ranks that had failed when the first failure was seen."""
        return self._failed_first

    @property
    def ending(self) -> Ending:
        """The end of the ranks that have not ended by themselves."""
        return self._ending

    def finish(self) -> list[Any]:
        """Wait for the program, and return the ranks' replies.

        If a signal has ended it, those of ranks that have failed may be among them.
        """
        preemption = self._ranks.preemption
        if preemption is not None:
            preemption.begin_cell(self._sent)
        try:
            return self._ended()
        finally:
            if preemption is not None:
                preemption.end_cell(self._sent, self._at_first_failure)

    def _look_at_preemption(self) -> None:
        if self._ranks.preemption is not None:
            self._ranks.preemption.look(self._sent, self._watch.states)

    def _ended(self) -> list[Any]:
        """Wait until all ranks have ended or are ended; see `finish`."""
        self._why = self._watch_program()
        self._requests.is_heeded = False
        turns.end_debuggers(self._ranks.channel)
        late = self._sent.unfinished()
        if self._why == FAILED:
            self._ending.end(signal.SIGTERM, ALIKE, messages.FREE_WAITING)
        elif self._why == BY_SIGNAL:
            number = self._requests.number
            # Python ignores SIGPIPE
            self._ending.end(signal.SIGTERM if number == signal.SIGPIPE else number)
        elif self._why == INTERRUPTED:
            self._look_again()
            self._ending.end(signal.SIGINT)
        elif self._why in (STUCK, LATE):
            self._look_again()
            self._ending.end(signal.SIGTERM, ALIKE if self._why == STUCK else 0.0)
        self._raise_failures(late)
        self._end_checks()
        return list(self._sent.so_far().values())

    def _watch_program(self) -> str:
        """Return when all ranks have ended, or have to be ended, and why."""
        limit = self._options.timeout or math.inf
        self._requests.is_heeded = True
        next_look = self._began + seconds.TICK
        try:
            while True:
                with interrupts.allowed():
                    if self._sent.result.wait(STEP):
                        return FAILED if self._has_failures() else ENDED
                self._ranks.raise_if_unreachable()
                if self._requests.number:
                    return BY_SIGNAL
                if self._has_failures():
                    self._at_first_failure = self._watch.ask(patient=False)
                    return FAILED
                if time.monotonic() < next_look:
                    continue
                next_look = time.monotonic() + seconds.TICK
                self._look_at_preemption()
                self._ranks.channel.receive(0)
                self._let_person_type()
                if time.monotonic() - self._began >= limit:
                    return LATE
                if self._watch.look():
                    return STUCK
        except KeyboardInterrupt:
            return BY_SIGNAL if self._requests.number else INTERRUPTED

    def _has_failures(self) -> bool:
        """Whether a rank has raised or died; the first time, which ones are kept."""
        found = set(self._ranks.dead.newly_dead())
        for rank, reply in self._sent.so_far().items():
            if isinstance(reply, Exception) or reply[0].failure is not None:
                found.add(rank)
        if found and not self._failed_first:
            self._failed_first = sorted(found)
        return bool(found)

    def _let_person_type(self) -> None:
        if self._ranks.channel.asks:
            self._terminal.settle()
        super()._let_person_type()

    def _look_again(self) -> None:
        """See what ranks do that are to be ended, unless a proof has just said it."""
        if not self._watch.needs:
            self._watch.states = self._watch.ask(patient=True)

    def _raise_failures(self, late: list[int]) -> None:
        """Raise the error for a program that did not end well, unless a signal has ended it."""
        error: DistlabError | KeyboardInterrupt | None = None
        if self._why == FAILED:
            error = self._failed_cell().error()
        elif self._why in (STUCK, LATE, INTERRUPTED):
            duration = time.monotonic() - self._began
            is_interrupt = self._why == INTERRUPTED
            error = self._failed_cell().error_of_late(late, {}, duration, is_interrupt)
        if error is not None:
            raise error

    def _failed_cell(self) -> FailedProgram:
        known = vars(super()._failed_cell())
        self._terminal.settle()
        asked = frozenset(self._ending.asked)
        return FailedProgram(**known, asked=asked, last_of=self._terminal.last_of)
