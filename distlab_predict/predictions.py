"""What `predict.sweep` has found: predictions of several numbers of ranks and several choices.

Made by predict.py. Runs on the notebook's kernel.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from distlab.tables import ShownAsTable, Table, format_seconds
from distlab.words import grouped
from distlab_predict.prediction import Prediction
from distlab_predict.prediction_shown import gibibytes, share_of_step, waits_for_launches

if TYPE_CHECKING:
    from matplotlib.axes import Axes

HEADS = ("ranks", "a step", "tokens/s each", "MFU", "exposed", "launches", "idle", "memory", "fits")


@dataclass(frozen=True)
class Case:
    """A number of ranks and a choice, with its prediction, or why there is none.

    Attributes:
        ranks: how many.
        choice: the arguments of the program, by name.
        prediction: None where the program failed.
        why: what it raised; "" where it did not.
    """

    ranks: int
    choice: dict[str, Any]
    prediction: Prediction | None
    why: str = ""

    @property
    def name(self) -> str:
        """The choice in words: "batch=2, mesh=(64, 8)"."""
        return ", ".join(f"{name}={value}" for name, value in self.choice.items())

    @property
    def fits(self) -> bool:
        """Whether it can be run: its memory is not known to be too much."""
        return self.prediction is not None and self.prediction.fits is not False

    @property
    def rate(self) -> float:
        """Tokens a second of each rank; steps a second, if tokens are not known; 0 if it failed."""
        if self.prediction is None:
            return 0.0
        return self.prediction.rate


class Predictions(ShownAsTable, tuple[Case, ...]):
    """Predictions of a program on several numbers of ranks and with several choices.

    A notebook shows its table.
    """

    def best(self, ranks: int | None = None) -> Case | None:
        """The case that fits and has the most tokens (or steps) a second; None if none fits.

        Args:
            ranks: of this many only; None for those of the most ranks.
        """
        if not ranks:
            ranks = max(case.ranks for case in self)
        fitting = [case for case in self if case.fits and case.ranks == ranks]
        return max(fitting, key=lambda case: case.rate, default=None)

    def table(self) -> Table:
        """A row for each case, without the columns that would be empty.

        Below are the reasons of those that fail.
        """
        cells = [_cells_of(case) for case in self]
        shown = []
        for head in HEADS:
            if any(row[head] for row in cells):
                shown.append(head)
        rows = []
        for case, row in zip(self, cells, strict=True):
            choice = [str(value) for value in case.choice.values()]
            rows.append((*choice, *[row[head] for head in shown]))
        heads = (*self[0].choice, *shown)
        notes = tuple(_reason_of(case) for case in self if case.prediction is None)
        title = f"Predicted, not measured{self._on_device()}"
        return Table(title, heads, tuple(rows), "r" * len(heads), notes)

    def _on_device(self) -> str:
        """The name of the device, for the table's title; "" if it has none."""
        for case in self:
            if case.prediction is not None and case.prediction.device.name:
                return f": {case.prediction.device.name}"
        return ""

    def plot(self) -> Axes:
        """Draw what each rank does a second against the number of ranks, a curve for a choice."""
        from distlab.plotting.curves import scaling

        points = []
        what = "steps"
        for case in self:
            if case.prediction is not None:
                points.append((case.name, (case.ranks, case.rate, case.fits)))
                if case.prediction.tokens:
                    what = "tokens"
        curves = grouped(points)
        return scaling(curves, "predicted, not measured", f"{what} a second of each rank")


def _reason_of(case: Case) -> str:
    """Why a case has failed: "8 ranks: batch=16: rank 0 raised ..."."""
    parts = [f"{case.ranks:,} ranks", case.name, case.why]
    return ": ".join(part for part in parts if part)


def _cells_of(case: Case) -> dict[str, str]:
    """The cells of a case, by their heads; "" where nothing is known."""
    cells = dict.fromkeys(HEADS, "")
    cells["ranks"] = f"{case.ranks:,}"
    step = case.prediction
    if step is None:
        cells["fits"] = "fails"
        return cells
    cells["a step"] = format_seconds(step.seconds)
    if step.tokens_per_second is not None:
        cells["tokens/s each"] = f"{step.tokens_per_second:,.0f}"
    cells["MFU"] = f"{step.mfu:.1%}"
    cells["exposed"] = share_of_step(step, step.exposed)
    if waits_for_launches(step):
        cells["launches"] = share_of_step(step, step.launches)
    cells["idle"] = share_of_step(step, step.idle)
    cells["memory"] = gibibytes(sum(step.memory.values()))
    cells["fits"] = _fits_in_words(step.fits)
    return cells


def _fits_in_words(fits: bool | None) -> str:
    if fits is None:
        return ""
    return "yes" if fits else "no"
