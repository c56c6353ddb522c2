"""Starting the recording on the ranks, ending it, and gathering what they recorded.

Runs on the notebook's kernel, called by cluster.py; tracing.py and clock.py answer on the ranks.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from distlab import interrupts
from distlab.errors import ClusterError
from distlab.ranks import Ranks
from distlab.remote import on_rank
from distlab.trace import Trace
from distlab.trace.clocks import Offset, Round, estimate

SECONDS = 30.0  # that a rank has to begin, and to tell what it recorded


@dataclass
class Recorder:
    """The recording on some ranks of a cluster.

    Attributes:
        missing: why there is nothing of a rank, in words, by rank. offsets: of the ranks' clocks, by rank.
    """

    ranks: Ranks
    targets: list[int]
    missing: dict[int, str] = field(default_factory=dict)
    offsets: dict[int, Offset] = field(default_factory=dict)
    _clocks: dict[int, str] = field(default_factory=dict)
    _before: dict[int, list[Round]] = field(default_factory=dict)

    def start(self) -> None:
        """Begin on every target, or on none.

        Raises:
            ClusterError: a rank cannot record, for example since it is being profiled already.
        """
        self._clocks = self._demand("tracing.start")
        if len({*self._clocks.values()}) > 1:
            self._demand("tracing.stop")  # what is sent to compare the clocks is no part of the trace
            try:
                self._before = self._compare_clocks()
            except Exception as error:
                advice = "Call cluster.heal(), or trace the ranks of one machine."
                words = f"The clocks of the ranks' machines cannot be compared: {error}."
                raise ClusterError(f"{words} {advice}") from error
            self._demand("tracing.start")

    def _demand(self, name: str) -> dict[int, Any]:
        told = self._ask(self.targets, name)
        if self.missing:
            rank, why = next(iter(self.missing.items()))
            self._ask(list(told), "tracing.stop")
            advice = "End what keeps it, or call cluster.restart()."
            raise ClusterError(f"rank {rank} cannot be traced: {why}. {advice}")
        return told

    def finish(self, trace: Trace) -> None:
        """End the recording, and give the trace what was recorded, whatever happens meanwhile."""
        recorded: dict[int, dict[str, Any]] = {}
        try:
            recorded = self.stop()
        finally:
            for rank in {*self.targets} - {*recorded} - {*self.missing}:
                self.missing[rank] = "it was not asked, since that was interrupted"
            trace.finish(recorded, self.missing, self.offsets)

    def stop(self) -> dict[int, dict[str, Any]]:
        """End the recording; what each rank recorded, by rank. Ranks that cannot tell are in `missing` then."""
        told = self._ask(self.targets, "tracing.stop")
        for rank in [rank for rank, recorded in told.items() if recorded is None]:
            self.missing[rank] = "its process ended, and another took its place"
        after: dict[int, list[Round]] = {}
        if self._before and not self.missing and not self.ranks.broken:
            with contextlib.suppress(Exception):  # the first comparison is enough, without the drift
                after = self._compare_clocks()
        for first, rounds in self._before.items():
            offset = estimate(rounds, after.get(first, ()))
            self.offsets |= {rank: offset for rank in self.targets if self._clocks[rank] == self._clocks[first]}
        return {rank: recorded for rank, recorded in told.items() if recorded is not None}

    def _compare_clocks(self) -> dict[int, list[Round]]:
        """Compare the clock of the first target with that of the first rank on each other machine."""
        firsts = list({clock: rank for rank, clock in reversed(self._clocks.items())}.values())
        here, others = self.targets[0], [rank for rank in firsts if rank != self.targets[0]]
        if not others:
            return {}
        answers = [self.ranks.client[rank].apply_async(on_rank, "clock.pong", here) for rank in others]
        asked = self.ranks.client[here].apply_async(on_rank, "clock.ping", others)
        try:
            with interrupts.allowed():
                for answer in answers:
                    answer.get(timeout=SECONDS)
                return asked.get(timeout=SECONDS)
        except Exception:
            self.ranks.free_all()  # one may wait for an answer still
            raise

    def _ask(self, targets: Sequence[int], name: str) -> dict[int, Any]:
        """What <name>() returns on each target that answers in time; why the others do not is in `missing`."""
        there = [rank for rank in targets if self._is_there(rank)]
        asked = {rank: self.ranks.client[rank].apply_async(on_rank, name) for rank in there}
        deadline = time.monotonic() + SECONDS
        told = {}
        for rank, result in asked.items():
            try:
                with interrupts.allowed():
                    told[rank] = result.get(timeout=max(0.0, deadline - time.monotonic()))
            except TimeoutError:
                self.missing[rank] = f"no answer came within {SECONDS:g} s"
            except Exception as error:
                # a RuntimeError is tracing.py's own word
                self.missing[rank] = getattr(error, "evalue", f"{type(error).__name__}: {error}")
        return told

    def _is_there(self, rank: int) -> bool:
        if rank in self.ranks.lost:
            self.missing[rank] = f"it {self.ranks.lost[rank]}"
        elif self.ranks.stopped:
            self.missing[rank] = "the cluster was stopped before the end of the trace"
        elif rank not in self.ranks.client.ids:
            self.missing[rank] = f"it {self.ranks.note_death(rank)}"
        return rank not in self.missing
