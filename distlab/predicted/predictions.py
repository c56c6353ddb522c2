"""`Predictions`: what predict.sweep has found, as a table and as curves. Runs on the notebook's kernel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from distlab.plotting.units import Table, format_seconds
from distlab.predicted.prediction import Prediction

if TYPE_CHECKING:
    from matplotlib.axes import Axes

HEADS = ("ranks", "a step", "tokens/s each", "MFU", "exposed", "idle", "memory", "fits")


@dataclass(frozen=True)
class Case:
    """A number of ranks and a choice, with its prediction, or why there is none."""

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
        """Tokens a second of each rank; steps a second, if tokens are not known."""
        step = self.prediction
        return 1 / step.seconds if step.tokens is None else step.tokens_per_second


@dataclass(frozen=True, repr=False)
class Predictions(Sequence[Case]):
    """Predictions of a program on several numbers of ranks and with several choices. A notebook shows its table."""

    cases: Sequence[Case]

    def __len__(self) -> int:
        return len(self.cases)

    def __getitem__(self, place: Any) -> Any:
        return self.cases[place]

    def best(self, ranks: int | None = None) -> Case | None:
        """The case that fits and has the most tokens (or steps) a second; None if none fits.

        Args:
            ranks: of this many only; None for those of the most ranks.
        """
        ranks = ranks or max(case.ranks for case in self.cases)
        fitting = [case for case in self.cases if case.fits and case.ranks == ranks]
        return max(fitting, key=lambda case: case.rate, default=None)

    def table(self) -> Table:
        """A row for each case; those that fail have their reason below."""
        rows = [(*map(str, case.choice.values()), *_cells(case)) for case in self.cases]
        failed = [case for case in self.cases if case.prediction is None]
        notes = [": ".join(filter(None, (f"{case.ranks:,} ranks", case.name, case.why))) for case in failed]
        names = tuple(self.cases[0].choice)
        sides = "r" * (len(names) + len(HEADS))
        return Table("Predicted, not measured", (*names, *HEADS), tuple(rows), sides, tuple(notes))

    def plot(self) -> Axes:
        """Draw what each rank does a second against the number of ranks, a curve for each choice."""
        from distlab.plotting.curves import scaling

        curves = {}
        for case in self.cases:
            if case.prediction:
                curves.setdefault(case.name, []).append((case.ranks, case.rate, case.fits))
        what = "tokens" if any(case.prediction.tokens for case in self.cases if case.prediction) else "steps"
        return scaling(curves, "predicted, not measured", f"{what} a second of each rank")

    def __repr__(self) -> str:
        return repr(self.table())

    def _repr_html_(self) -> str:
        return self.table()._repr_html_()


def _cells(case: Case) -> tuple[str, ...]:
    step = case.prediction
    if step is None:
        return (f"{case.ranks:,}", *[""] * (len(HEADS) - 2), "fails")
    each = "" if step.tokens is None else f"{step.tokens_per_second:,.0f}"
    shares = (f"{share:.1%}" for share in (step.mfu, step.exposed / step.seconds, step.idle / step.seconds))
    memory = f"{sum(step.memory.values()) / (1 << 30):,.1f} GiB"
    fits = "" if step.fits is None else "yes" if step.fits else "no"
    return (f"{case.ranks:,}", format_seconds(step.seconds), each, *shares, memory, fits)
