"""One cell: sent to its ranks, waited for, freed if it cannot go on, shown, and judged.

Runs on the notebook's kernel; called by cluster.py for `run`, `push` and `pull`, and by magics.py
for %%px.
"""

from __future__ import annotations

import functools
import linecache
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar

from distlab import arguments
from distlab.compat.ipyparallel import Replies
from distlab.compat.ipython import somebody_watches
from distlab.debugger import turns
from distlab.diagnosis import proof, report
from distlab.diagnosis.nccl_report import Portability
from distlab.diagnosis.needs import Need
from distlab.notebook import display, freeing, interrupts, questions, seconds
from distlab.notebook.checked import portability_of, show_findings
from distlab.notebook.failed_cell import FailedCell
from distlab.notebook.held_ranks import HeldRanks
from distlab.notebook.live import Live
from distlab.notebook.ranks import Ranks, has_failed
from distlab.notebook.unmatched import rebuild_without_unmatched
from distlab.rank import entry
from distlab.simulated import begin_cell
from distlab.wire.messages import SILENT, RankStatus


@dataclass(frozen=True)
class Options:
    """How a cell is to run.

    Attributes:
        timeout: seconds before its ranks are freed; None waits without a limit.
        check: whether the ranks compare the arguments of their calls.
        quiet: whether it is one call of many, and concerns its own ranks alone: neither the newest
            lines nor what was left unmatched are shown, and other ranks do not decide whether it
            can go on.
        source: the text of a %%px cell, its first line included; "" for a function.
        pauses: whether it may come to a breakpoint: then the groups' timeouts do not count.
        lines: of files that the ranks do not have, for the debugger.
        debug: whether a rank that raises opens the debugger.
    """

    timeout: float | None = None
    check: bool = False
    quiet: bool = False
    source: str = ""
    pauses: bool = False
    lines: Mapping[str, list[str]] = field(default_factory=dict)
    debug: bool = False


def may_pause(code: bytes) -> bool:
    """Whether code may come to a breakpoint().

    Args:
        code: the cell's text; or a packed function, with the learner's own functions that it calls.
    """
    return b"breakpoint" in code or b"set_trace" in code


def source_lines_of(function: Any) -> dict[str, list[str]]:
    """The source of the file, or the notebook's cell, that a function is in."""
    code = getattr(function, "__code__", None)
    if code is None:
        return {}
    return {code.co_filename: linecache.getlines(code.co_filename)}


AnyCell = TypeVar("AnyCell", bound="Cell")


class Cell:
    """Code that was sent to some ranks: waited for, shown and judged at its end.

    `run`, `push`, `pull` and %%px all come this way.

    Args:
        ranks: the ranks of the cluster.
        targets: those that run it.
        options: how it is to run.
        sent: their replies.
        lost_before: ranks that had died before it was sent.
        end_of_checks: the replies to the end of checked mode; None where it was not checked.
    """

    def __init__(
        self,
        ranks: Ranks,
        targets: list[int],
        options: Options,
        sent: Replies,
        lost_before: set[int],
        end_of_checks: Replies | None,
    ):
        self._ranks = ranks
        self._targets = targets
        self._options = options
        self._sent = sent
        self._lost_before = lost_before
        self._end_of_checks = end_of_checks
        # Of a checked cell that has succeeded, what it did that NCCL may not do.
        self.portability: Portability | None = None
        self._place = display.Place()
        watched = targets if options.quiet else range(ranks.plan.n)
        self._watch = DeadlockWatch(functools.partial(ranks.states, watched))
        self._began = time.monotonic()
        # Turns at the debuggers of ranks that are at breakpoints; None until the first one.
        self._turns: turns.Turns | None = None
        # What a person sees who waits; None until it is first shown.
        self._live: Live | None = None
        # What the ranks did when the first one had failed or died.
        self._at_first_failure: dict[int, RankStatus] = {}
        # Ranks that wait on although they are freed; None until another one has failed.
        self._held: HeldRanks | None = None

    @classmethod
    def send(
        cls: type[AnyCell],
        ranks: Ranks,
        targets: list[int],
        send: Callable[[Any], Any],
        options: Options,
    ) -> AnyCell:
        """Send code to ranks when they are ready for it, and return the cell that runs.

        Afterwards the ranks are as before, also if the code cannot be sent.

        Args:
            ranks: the ranks of the cluster.
            targets: those that run it.
            send: sends the code through an ipyparallel DirectView of the targets; returns its
                AsyncResult.
            options: how it is to run.
        """
        if options.timeout is not None:
            options = replace(options, timeout=arguments.seconds("timeout", options.timeout))
        ranks.ready(targets)
        lost_before = set(ranks.lost)
        view = ranks.client.direct_view(targets)
        if ranks.plan.network is not None:
            view.apply_async(begin_cell, time.monotonic_ns())
        end_of_checks = None
        try:
            if options.check:
                view.apply_async(entry.begin_checks, *ranks.arguments_for_checks())
            if options.pauses:
                view.apply_async(
                    entry.set_pauses,
                    limit=seconds.PAUSE,
                    after_failure=options.debug,
                    lines=options.lines,
                )
            sent = Replies(send(view), targets)
        finally:
            if options.pauses:
                view.apply_async(
                    entry.set_pauses, limit=ranks.plan.timeout, after_failure=False, lines={}
                )
            if options.check:
                end_of_checks = Replies(view.apply_async(entry.end_checks), targets)
        return cls(ranks, targets, options, sent, lost_before, end_of_checks)

    # --- waiting ---

    def finish(self) -> list[Any]:
        """Wait for the ranks, show what they wrote, and return their replies.

        These are in the order of the targets.

        Raises:
            RankError, RankDied, DeadlockError, RankTimeout, Interrupted (a KeyboardInterrupt).
            ClusterError: the process that carries messages between notebook and ranks has ended.
        """
        if self._ranks.preemption is not None:
            self._ranks.preemption.begin_cell(self._sent)
        try:
            self._wait()
            replies = self._replies()
            self._end_checks()
            if self._ranks.may_have_unmatched:
                rebuild_without_unmatched(self._ranks, print_report=not self._options.quiet)
            if self.portability is not None:
                show_findings(self.portability)
            return replies
        finally:
            if self._ranks.preemption is not None:
                self._ranks.preemption.end_cell(self._sent, self._at_first_failure)
            self._place.erase()

    def _end_checks(self) -> None:
        """Wait for the end of checked mode, which makes the calls that it held back for others."""
        if self._end_of_checks is not None:
            replies = self._end_of_checks.within(seconds.LAST_FAILURE)
            self.portability = portability_of(replies)

    def _wait(self) -> None:
        """Wait for the ranks; free them and raise if they cannot go on, or have no more time.

        The callers hold interrupts back; here they are allowed where they do no harm.
        """
        was_interrupted = False
        try:
            done = self._all_reply()
        except KeyboardInterrupt:
            done = False
            was_interrupted = True
        late = self._sent.unfinished()
        replaced: dict[int, str] = {}
        if not done:
            if not self._watch.needs:
                self._watch.states = self._watch.ask(patient=True)
            turns.end_debuggers(self._ranks.channel)
            # A rank that has died never replies. One outside of the cell counts as well: any death
            # ends `_all_reply`, because ranks of the cell may need the one that is gone.
            self._ranks.dead.wait_for_deaths(range(self._ranks.plan.n))
            replaced = freeing.bring_back(self._ranks, self._sent, self._watch.states)
        duration = time.monotonic() - self._began
        self._show()
        if not done:
            raise self._failed_cell().error_of_late(late, replaced, duration, was_interrupted)

    def _all_reply(self) -> bool:
        """Wait until every rank has replied.

        Returns False if they take too long or cannot go on, or if one has died.
        """
        limit = self._options.timeout or math.inf
        duration = 0.0
        while duration < limit:
            with interrupts.allowed():
                if self._sent.result.wait(min(seconds.TICK, limit - duration)):
                    return True
            self._ranks.raise_if_unreachable()
            self._ranks.channel.receive(0)
            self._let_person_type()
            duration = time.monotonic() - self._began
            died = self._ranks.dead.newly_dead()
            if died or self._a_rank_has_failed():
                if not self._at_first_failure:
                    self._at_first_failure = self._watch.ask(patient=False)
                late = self._sent.unfinished()
                self._ranks.free(late)
                if died:
                    limit = min(limit, duration + seconds.AFTER_DEATH)
                elif self._are_held_too_long(late):
                    return False
            elif duration < limit and self._watch.look():
                return False
            if self._ranks.preemption is not None:
                self._ranks.preemption.look(self._sent, self._watch.states)
            if not self._options.quiet and somebody_watches():
                self._show_live(duration)
        return False

    def _are_held_too_long(self, late: list[int]) -> bool:
        """Whether ranks that were freed just now, as another one has failed, wait on for long."""
        if self._held is None:
            self._held = HeldRanks(self._ranks)
        return self._held.look(late)

    def _let_person_type(self) -> None:
        """Ask the person for lines while debuggers of ranks wait for one.

        That time does not count as the cell's.
        """
        while self._ranks.channel.asks:
            began = time.monotonic()
            if self._turns is None:
                self._turns = turns.Turns(self._ranks.channel)
            self._turns.take()
            self._began += time.monotonic() - began

    def _show_live(self, duration: float) -> None:
        """Show a person what the ranks are doing; the picture comes later than the words."""
        states = self._watch.states
        if self._live is None:
            ask_memory = functools.partial(questions.megabytes_by_rank, self._ranks, seconds.ANSWER)
            self._live = Live(ask_memory)
        self._live.look(duration, states)
        picture = ""
        if duration >= seconds.PICTURE_AFTER:
            picture = self._live.picture(duration, states)
        if duration >= seconds.LIVE_AFTER:
            doing = f"{duration:.0f} s: {report.brief(states)}"
            display.show_live(self._place, doing, picture, self._sent.result, self._targets)

    def _show(self) -> None:
        """Show what the ranks wrote; a rank that has died never sends the end of it."""
        all_there = set(self._targets) <= set(self._ranks.client.ids)
        limit = seconds.AFTER_DEATH
        if all_there and not self._sent.unfinished():
            limit = seconds.OUTPUT
        with interrupts.allowed():
            served = self._ranks.printed()
            display.show(self._sent.result, self._targets, self._place, limit, served)

    # --- the outcome ---

    def _replies(self) -> list[Any]:
        """The replies of a cell that has ended, in the targets' order.

        RankError or RankDied if a rank has failed.
        """
        if self._a_rank_has_failed():
            raise self._failed_cell().error()
        replies: list[Any] = self._sent.result.get(return_exceptions=True)
        return replies

    def _a_rank_has_failed(self) -> bool:
        """Whether one of the replies so far is that a rank raised or died."""
        return any(has_failed(reply) for reply in self._sent.so_far().values())

    def _failed_cell(self) -> FailedCell:
        """This cell, with what is known of why it failed."""
        held_too_long = self._held is not None and self._held.too_long
        return FailedCell(
            ranks=self._ranks,
            targets=self._targets,
            sent=self._sent,
            lost_before=self._lost_before,
            source=self._options.source,
            is_checked=self._options.check,
            timeout=None if held_too_long else self._options.timeout,
            states=self._watch.states,
            needs=self._watch.needs,
            at_first_failure=self._at_first_failure,
        )


class AskRanks(Protocol):
    """Asks ranks what they are doing; see `Ranks.states`."""

    def __call__(self, *, patient: bool) -> dict[int, RankStatus]:
        """The status of each rank."""


class DeadlockWatch:
    """What the ranks of a cluster were doing at the last look, and since when nothing has moved.

    Args:
        ask: returns what the ranks are doing; its argument `patient` says whether a rank that only
            waits for a CPU gets more time.

    Attributes:
        states: by rank, from the last look.
        needs: why no rank can go on; empty until it is proven.
    """

    def __init__(self, ask: AskRanks):
        self.ask = ask
        self._since = time.monotonic()
        self.states: dict[int, RankStatus] = {}
        self.needs: dict[int, Need] = {}

    def look(self) -> bool:
        """Ask every rank; True if there is a deadlock, and nothing has moved for a while."""
        before = self.states
        began = time.monotonic()
        was_silent = any(state.doing == SILENT for state in before.values())
        self.states = self.ask(patient=was_silent)
        needs = proof.proof(self.states)
        if needs is None or not proof.unmoved(before, self.states):
            self._since = began
        elif time.monotonic() - self._since >= seconds.UNMOVED:
            self.needs = needs
        return bool(self.needs)
