"""`Prediction`: what a step takes on machines that are not there; `Predictions`: what predict.sweep
has found.

Runs on the notebook's kernel.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from distlab.errors import ArgumentError
from distlab.simulated.network import Device, Network
from distlab.tables import ShownAsTable, Table, count, format_seconds
from distlab.traces.events import Moment, moments
from distlab.words import grouped
from distlab_predict.costs import Costs
from distlab_predict.nodes import Kernel, Recording
from distlab_predict.timeline import Times, times_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

HEADS = ("ranks", "a step", "tokens/s each", "MFU", "exposed", "idle", "memory", "fits")


@dataclass(frozen=True, repr=False)
class Prediction(ShownAsTable):
    """A step of a program on machines that are not there: predicted, never measured. A notebook
    shows its table.

    Attributes:
        ranks: how many.
        recordings: what the recorded ranks noted, a rank of each role.
        tokens: of all ranks together in a step; None if that was not said.
    """

    ranks: int
    network: Network
    device: Device
    recordings: Sequence[Recording]
    tokens: int | None = None

    @cached_property
    def times(self) -> list[Times]:
        """Begin and end of each node of each recording, in seconds."""
        return times_of(self.recordings, Costs(self.network, self.device, self.ranks))

    @property
    def seconds(self) -> float:
        """Of the last step."""
        begin, end = self.window
        return end - begin

    @cached_property
    def window(self) -> tuple[float, float]:
        """Begin and end of the last step: it begins when the one before has ended, and the first
        one at 0.
        """
        several = all(len(recording.steps) > 1 for recording in self.recordings)
        return self._end(-2) if several else 0.0, self._end(-1)

    def _end(self, step: int) -> float:
        """When a step has ended on all recorded ranks."""
        both = zip(self.recordings, self.times, strict=True)
        return max(end for one, times in both for _, end in times[slice(*one.steps[step])])

    # --- what it means, of the recorded rank that computes longest ---

    @cached_property
    def busiest(self) -> int:
        """The number of the recording whose device computes longest."""
        return max(range(len(self.recordings)), key=self._computing)

    def moments(self, number: int, *kinds: str) -> Iterator[Moment]:
        """When a recorded rank does what in the last step: it computes, "compute", or communicates,
        "move".
        """
        begin, end = self.window
        nodes = zip(self.recordings[number].nodes, self.times[number], strict=True)
        parts = (
            ("compute" if isinstance(node, Kernel) else "move", *times) for node, times in nodes
        )
        clipped = (
            (what, max(since, begin), min(until, end))
            for what, since, until in parts
            if what in kinds
        )
        return moments(part for part in clipped if part[1] < part[2])

    def _computing(self, number: int) -> float:
        return sum(until - since for since, until, _ in self.moments(number, "compute"))

    @property
    def computing(self) -> float:
        """Seconds of the step in which the device computes."""
        return self._computing(self.busiest)

    @property
    def exposed(self) -> float:
        """Seconds of the step in which the device communicates and does not compute."""
        both = self.moments(self.busiest, "compute", "move")
        return sum(until - since for since, until, going in both if going == {"move"})

    @property
    def idle(self) -> float:
        """Seconds of the step in which the device does neither: it waits for others, as in a
        pipeline's bubble.
        """
        return max(0.0, self.seconds - self.computing - self.exposed)  # not -0.0 %, from rounding

    @property
    def flops(self) -> int:
        """Floating-point operations of the device in a step, without those that checkpointing
        repeats.
        """
        recording = self.recordings[self.busiest]
        nodes = recording.nodes[slice(*recording.steps[-1])]
        return sum(node.flops for node in nodes if isinstance(node, Kernel) and not node.again)

    @property
    def mfu(self) -> float:
        """The share of the device's operations a second that goes into the model (model FLOPs
        utilization).
        """
        return self.flops / self.seconds / self.device.flops

    @property
    def tokens_per_second(self) -> float | None:
        """Of one device."""
        return None if self.tokens is None else self.tokens / self.ranks / self.seconds

    @property
    def memory(self) -> dict[str, int]:
        """Bytes at the peak by what they are, of the recorded rank that needs most; see memory.py
        for what counts.
        """
        return max(
            (recording.peak for recording in self.recordings), key=lambda peak: sum(peak.values())
        )

    @property
    def fits(self) -> bool | None:
        """Whether that is within the device's memory; None if its size is not known."""
        return (
            None if self.device.memory is None else sum(self.memory.values()) <= self.device.memory
        )

    def calibrated(self, seconds: float) -> Device:
        """This device, with the efficiency at which the step takes so long: from one measurement,
        all else follows.

        Args:
            seconds: of a step, measured or published.

        Raises:
            ArgumentError: no efficiency makes the step as short, or as long.
        """
        low, high = 0.01, 1.0
        slow, fast = (
            replace(self, device=replace(self.device, efficiency=one)).seconds
            for one in (low, high)
        )
        if not fast <= seconds <= slow:
            limits = f"{format_seconds(fast).strip()} and {format_seconds(slow).strip()}"
            raise ArgumentError(
                f"seconds must be between {limits}: a step with all of the FLOP/s, and with 1 %."
            )
        for _ in range(20):
            middle = (low + high) / 2
            takes = replace(self, device=replace(self.device, efficiency=middle)).seconds
            low, high = (low, middle) if takes < seconds else (middle, high)
        return replace(self.device, efficiency=round(high, 4))

    def table(self) -> Table:
        """What a step takes."""
        total, gigabyte = sum(self.memory.values()), 1 << 30
        rows = [("a step", format_seconds(self.seconds))]
        if self.tokens is not None:
            rows += [("tokens a second, each device", f"{self.tokens_per_second:,.0f}")]
        rows += [("FLOP/s of the device's peak (MFU)", f"{self.mfu:.1%}")]
        for what, name in (
            ("computing", "computing"),
            ("exposed communication", "exposed"),
            ("idle", "idle"),
        ):
            rows += [(what, f"{getattr(self, name) / self.seconds:.1%}")]
        rows += [("memory at its peak", f"{total / gigabyte:,.1f} GiB")]
        largest = sorted(self.memory.items(), key=lambda item: -item[1])
        rows += [(f"  {kind}", f"{size / gigabyte:,.1f} GiB") for kind, size in largest]
        if self.fits is not None:
            has = f"{self.device.memory / gigabyte:,.1f} GiB"
            rows += [("fits into the device", "yes" if self.fits else f"no, it has {has}")]
        title = f"Predicted, not measured: {count(self.ranks, 'rank')}, {self.network}"
        return Table(title, ("", "predicted"), tuple(rows), "lr")

    def plot(self) -> Axes:
        """Draw the last step of each recorded rank: when it computes, and when its messages
        travel.
        """
        from distlab.plotting.lanes import spans

        lanes = {}
        for number, recording in enumerate(self.recordings):
            kernels = self.moments(number, "compute")
            lanes[f"rank {recording.rank} computes"] = [
                (since, until, "", "compute") for since, until, _ in kernels
            ]
            lanes[f"rank {recording.rank}'s messages"] = [
                (since, until, "", "move" if "compute" in going else "exposed")
                for since, until, going in self.moments(number, "compute", "move")
                if "move" in going
            ]
        title = f"predicted, not measured: a step on {count(self.ranks, 'rank')}"
        return spans({name: bars for name, bars in lanes.items() if bars}, title=title)


# --- of several numbers of ranks, and with several choices ---


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


class Predictions(ShownAsTable, tuple[Case, ...]):
    """Predictions of a program on several numbers of ranks and with several choices. A notebook
    shows its table.
    """

    def best(self, ranks: int | None = None) -> Case | None:
        """The case that fits and has the most tokens (or steps) a second; None if none fits.

        Args:
            ranks: of this many only; None for those of the most ranks.
        """
        ranks = ranks or max(case.ranks for case in self)
        fitting = [case for case in self if case.fits and case.ranks == ranks]
        return max(fitting, key=lambda case: case.rate, default=None)

    def table(self) -> Table:
        """A row for each case; those that fail have their reason below. Columns that are empty are
        left out.
        """
        cells = [_cells(case) for case in self]
        shown = [place for place in range(len(HEADS)) if any(row[place] for row in cells)]
        rows = [
            (*map(str, case.choice.values()), *(row[place] for place in shown))
            for case, row in zip(self, cells, strict=True)
        ]
        failed = [case for case in self if case.prediction is None]
        notes = [
            ": ".join(filter(None, (f"{case.ranks:,} ranks", case.name, case.why)))
            for case in failed
        ]
        heads = (*self[0].choice, *(HEADS[place] for place in shown))
        return Table("Predicted, not measured", heads, tuple(rows), "r" * len(heads), tuple(notes))

    def plot(self) -> Axes:
        """Draw what each rank does a second against the number of ranks, a curve for each choice."""
        from distlab.plotting.curves import scaling

        found = [case for case in self if case.prediction]
        curves = grouped((case.name, (case.ranks, case.rate, case.fits)) for case in found)
        what = "tokens" if any(case.prediction.tokens for case in found) else "steps"
        return scaling(curves, "predicted, not measured", f"{what} a second of each rank")


def _cells(case: Case) -> tuple[str, ...]:
    step = case.prediction
    if step is None:
        return (f"{case.ranks:,}", *[""] * (len(HEADS) - 2), "fails")
    each = "" if step.tokens is None else f"{step.tokens_per_second:,.0f}"
    shares = (
        f"{share:.1%}"
        for share in (step.mfu, step.exposed / step.seconds, step.idle / step.seconds)
    )
    memory = f"{sum(step.memory.values()) / (1 << 30):,.1f} GiB"
    fits = "" if step.fits is None else "yes" if step.fits else "no"
    return (f"{case.ranks:,}", format_seconds(step.seconds), each, *shares, memory, fits)
