"""What `predict.plan` has found: the best layout, the runner-up, and the reasons.

Made by predict.py. Runs on the notebook's kernel.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from distlab.simulated.network import Device, Network
from distlab.tables import ShownAsTable, Table, count, format_seconds
from distlab_predict.layouts import MARGIN, Layout, Step, words_of
from distlab_predict.prediction_shown import devices, gibibytes
from distlab_predict.reasons import (
    TOO_CLOSE,
    WORTH_SAYING,
    changes,
    nothing_fits,
    percent,
    what_binds,
    why_slower,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HEADS = ("a step", "tokens/s each", "MFU", "computing", "exposed", "launches", "idle", "memory", "")
MOST_ROWS = 10
MOST_TOO_LARGE = 3  # rows of layouts that would be faster and do not fit
MOST_REASONS = 4  # that are listed
LONGEST_REASON = 160  # characters
RULE = (
    "By the rule: where changing one argument has done something to at least 3 pairs of layouts, "
    "it does at least as much to others."
)


@dataclass(frozen=True, repr=False)
class Plan(ShownAsTable):
    """The best layout of a program that fits, and why: predicted, never measured.

    A notebook shows its table.

    Attributes:
        layouts: all of them: predicted, refused, or left out.
        network: of the machines.
        device: what each rank computes on.
        width: how many times as long as predicted the best layout may take, or as short.
        lead: how many times as fast as the runner-up the best layout must be to be called better.
        not_tried: how many layouts are missing, since the search was interrupted.
    """

    layouts: Sequence[Layout]
    network: Network
    device: Device
    width: float = 1 + MARGIN
    lead: float = 1 + MARGIN
    not_tried: int = 0

    @cached_property
    def predicted(self) -> list[Layout]:
        """The layouts that were predicted, the fastest first."""
        known = [layout for layout in self.layouts if layout.step is not None]
        return sorted(known, key=lambda layout: layout.rate, reverse=True)

    @property
    def best(self) -> Layout | None:
        """The layout that fits and has the most tokens (or steps) a second; None if none fits."""
        return self._fitting(0)

    @property
    def runner_up(self) -> Layout | None:
        """The next best layout that fits; None if there is none."""
        return self._fitting(1)

    def _fitting(self, place: int) -> Layout | None:
        fitting = [layout for layout in self.predicted if layout.fits]
        if len(fitting) <= place:
            return None
        return fitting[place]

    @property
    def is_too_close(self) -> bool:
        """Whether the runner-up is so near to the best layout that only a measurement can tell."""
        best = self.best
        other = self.runner_up
        if best is None or other is None:
            return False
        return best.rate < other.rate * self.lead

    @property
    def rate_interval(self) -> tuple[float, float]:
        """The lowest and the highest rate that the best layout may have; zeros if none fits."""
        best = self.best
        if best is None:
            return 0.0, 0.0
        return best.rate / self.width, best.rate * self.width

    @property
    def why(self) -> str:
        """Why the best layout is better than the runner-up; why there is none, if none fits."""
        best = self.best
        other = self.runner_up
        if best is None or best.step is None:
            return nothing_fits(self._nearest())
        if other is None or other.step is None:
            return "No other layout fits."
        slower = percent(1 - other.rate / best.rate)
        return f"{changes(best, other)}: {slower} slower, {why_slower(best.step, other.step)}"

    @property
    def binds(self) -> str:
        """What keeps the best layout from being faster.

        It is "memory", "exposed communication", "launches by the processor", "idle time" (as in a
        pipeline's bubble) or "computing"; "memory" as well where nothing fits, and "" where nothing
        could be predicted.
        """
        if self.best is not None:
            what, _ = what_binds(self.best, self.layouts)
            return what
        return "memory" if self.predicted else ""

    @property
    def refused(self) -> Counter[str]:
        """How many layouts were refused for which reason, by `allowed` or by the program."""
        reasons: Counter[str] = Counter()
        for layout in self.layouts:
            if layout.step is None and not layout.is_left_out:
                first, *_ = layout.why.strip().splitlines()
                reasons[first[:LONGEST_REASON]] += 1
        return reasons

    @property
    def left_out(self) -> list[Layout]:
        """The layouts that were not tried, since they cannot be the best by the search's rule."""
        return [layout for layout in self.layouts if layout.is_left_out]

    def _nearest(self) -> Layout:
        """The layout that needs least memory; one without a step, if none was predicted."""
        return min(self.predicted or self.layouts, key=_needed)

    # --- how it is shown ---

    def table(self) -> Table:
        """The fastest layouts, and below them the reasons."""
        shown = self._shown()
        names = self._varying()
        cells = [_cells_of(layout) for layout in shown]
        heads = [head for head in HEADS if any(row[head] for row in cells)]
        rows = []
        for layout, row in zip(shown, cells, strict=True):
            row[""] = self._verdict(layout)
            choice = [str(layout.choice[name]) for name in names]
            rows.append((*choice, *[row[head] for head in heads], row[""]))
        on = devices(self.layouts[0].ranks, self.device)
        title = f"Predicted, not measured: {on}, {self.network}"
        sides = "r" * (len(names) + len(heads)) + "l"
        return Table(title, (*names, *heads, ""), tuple(rows), sides, tuple(self._notes()))

    def _varying(self) -> list[str]:
        """The arguments that have more than one value, or all if none has."""
        first = self.layouts[0].choice
        varying = []
        for name, value in first.items():
            if any(layout.choice[name] != value for layout in self.layouts):
                varying.append(name)
        return varying or list(first)

    def _shown(self) -> list[Layout]:
        """The layouts of the table: the fastest that fit, and a few that would be faster."""
        best = self.best
        if best is None:
            return sorted(self.predicted, key=_needed)[:MOST_ROWS]
        faster = [one for one in self.predicted if not one.fits and one.rate > best.rate]
        fitting = [layout for layout in self.predicted if layout.fits]
        shown = faster[:MOST_TOO_LARGE]
        return shown + fitting[: MOST_ROWS - len(shown)]

    def _verdict(self, layout: Layout) -> str:
        """What is said of a layout, at the end of its row."""
        words = []
        if layout is self.best:
            words.append("best")
        elif layout is self.runner_up:
            words.append("runner-up")
        elif not layout.fits:
            words.append("does not fit")
        if layout.step is not None and layout.step.is_near_limit:
            words.append("memory too close to call")
        return ", ".join(words)

    def _notes(self) -> list[str]:
        """Sentences below the table."""
        best = self.best
        notes = []
        if best is None:
            notes.append(self.why)
        else:
            what, sentences = what_binds(best, self.layouts)
            notes.append(f"Best: {self._named(best)}, {self._interval_in_words()}.")
            notes.append(f"What binds is {what}: {'; '.join(sentences)}.")
            if self.runner_up is not None:
                notes.append(f"Runner-up: {self.why}.")
            if self.is_too_close:
                notes.append(f"The two are {TOO_CLOSE}.")
        return notes + self._count_notes()

    def _named(self, layout: Layout) -> str:
        """A layout by the arguments that vary."""
        return words_of({name: layout.choice[name] for name in self._varying()})

    def _interval_in_words(self) -> str:
        low, high = self.rate_interval
        if self.best is None or self.best.step is None or self.best.step.tokens is None:
            return (
                f"a step in {format_seconds(1 / high).strip()} to {format_seconds(1 / low).strip()}"
            )
        return f"{low:,.0f} to {high:,.0f} tokens/s of each rank"

    def _count_notes(self) -> list[str]:
        """What became of all layouts."""
        left_out = len(self.left_out)
        refused = self.refused
        parts = [f"{len(self.predicted)} predicted"]
        if refused:
            parts.append(f"{refused.total()} refused")
        if left_out:
            parts.append(f"{left_out} left out by the rule")
        notes = [f"{count(len(self.layouts), 'layout')}: {', '.join(parts)}."]
        if self.not_tried:
            notes.append(f"Interrupted: {count(self.not_tried, 'other layout')} not tried.")
        if left_out:
            notes.append(RULE)
        for reason, number in refused.most_common(MOST_REASONS):
            notes.append(f"Refused, {number}: {reason}")
        return notes

    def plot(self) -> Figure:
        """Draw a map of the layouts over the two arguments that matter most.

        A cell has the best layout with its two values; it is hatched where none of them fits. The
        best layout of all has a ring.

        Returns:
            The figure; a notebook shows it if it is the last value of a cell.
        """
        from distlab_predict.plan_maps import draw_map

        on = devices(self.layouts[0].ranks, self.device)
        return draw_map(self.layouts, self._varying(), self.best, on)


def _needed(layout: Layout) -> float:
    return 0.0 if layout.step is None else layout.step.needed


def _cells_of(layout: Layout) -> dict[str, str]:
    """The cells of a layout, by their heads; "" where nothing is known."""
    cells = dict.fromkeys(HEADS, "")
    step = layout.step
    if step is None:
        return cells
    cells["a step"] = format_seconds(step.seconds)
    if step.tokens is not None:
        cells["tokens/s each"] = f"{layout.rate:,.0f}"
    cells["MFU"] = f"{step.mfu:.1%}"
    cells["computing"] = _share(step, step.computing)
    cells["exposed"] = _share(step, step.exposed)
    if step.launches > WORTH_SAYING * step.seconds:
        cells["launches"] = _share(step, step.launches)
    cells["idle"] = _share(step, step.idle)
    cells["memory"] = gibibytes(step.num_bytes)
    return cells


def _share(step: Step, seconds: float) -> str:
    return f"{seconds / step.seconds:.1%}"
