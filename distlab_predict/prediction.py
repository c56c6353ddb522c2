"""What a step takes on machines that are not there.

`Prediction` is made by predict.py, and asks timeline.py when it is first read. Runs on the
notebook's kernel.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from distlab.arguments import wrong
from distlab.simulated.devices import Device
from distlab.simulated.network import Network
from distlab.tables import ShownAsTable, Table, count, format_seconds
from distlab.traces.events import Moment, Part, moments
from distlab_predict import calibration, grounds, memory_shown, uncertainty
from distlab_predict.collectives import Collectives, collectives_of
from distlab_predict.costs import Costs
from distlab_predict.device_memory import Use, most_used
from distlab_predict.nodes import Kernel, Recording
from distlab_predict.timeline import Times, times_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

GIBIBYTE = 1 << 30
MEBIBYTE = 1 << 20

Span = tuple[float, float, str, str]  # begin, end, text and kind, as plotting.spans takes them


@dataclass(frozen=True, repr=False)
class Prediction(ShownAsTable):
    """A step of a program on machines that are not there: predicted, never measured.

    A notebook shows its table.

    Attributes:
        ranks: how many.
        network: of the machines.
        device: what each rank computes on.
        recordings: what the recorded ranks noted, a rank of each role.
        tokens: of all ranks together in a step; None if that was not said.
        slower: what would follow if costs were wrong: how many times longer they are, by what they
            rest on.
    """

    ranks: int
    network: Network
    device: Device
    recordings: Sequence[Recording]
    tokens: int | None = None
    slower: tuple[tuple[str, float], ...] = ()

    @cached_property
    def times(self) -> list[Times]:
        """Begin and end of each node of each recording, in seconds."""
        costs = Costs(self.network, self.device, self.ranks)
        return times_of(self.recordings, costs, dict(self.slower))

    @property
    def seconds(self) -> float:
        """How long the last step takes."""
        begin, end = self.window
        return end - begin

    @cached_property
    def window(self) -> tuple[float, float]:
        """Begin and end of the last step, in seconds.

        It begins when the one before has ended; the first one begins at 0.
        """
        begin = 0.0
        if all(len(recording.steps) > 1 for recording in self.recordings):
            begin = self._end(-2)
        return begin, self._end(-1)

    def _end(self, step: int) -> float:
        """When a step has ended on all recorded ranks; -1 is the last one."""
        ends: list[float] = []
        for recording, times in zip(self.recordings, self.times, strict=True):
            first, after_last = recording.steps[step]
            ends += [end for _, end in times[first:after_last]]
        return max(ends)

    # --- what it means, of the recorded rank that computes longest ---

    @cached_property
    def busiest(self) -> int:
        """The number of the recording whose device computes longest."""
        return max(range(len(self.recordings)), key=self._computing)

    def moments(self, number: int, *kinds: str) -> Iterator[Moment]:
        """When a recorded rank does what in the last step.

        Args:
            number: of the recording.
            kinds: what counts: "compute" when the device computes, "move" when it communicates.
        """
        return moments(part for part in self._parts(number) if part[0] in kinds)

    def _parts(self, number: int) -> Iterator[Part]:
        """What a recorded rank does, from when to when, cut to the last step."""
        step_begin, step_end = self.window
        nodes = self.recordings[number].nodes
        for node, (begin, end) in zip(nodes, self.times[number], strict=True):
            begin = max(begin, step_begin)
            end = min(end, step_end)
            if begin < end:
                kind = "compute" if isinstance(node, Kernel) else "move"
                yield kind, begin, end

    def _computing(self, number: int) -> float:
        """Seconds of the last step in which the device of a recorded rank computes."""
        moments = self.moments(number, "compute")
        return sum(until - since for since, until, _ in moments)

    @property
    def computing(self) -> float:
        """Seconds of the step in which the device computes."""
        return self._computing(self.busiest)

    @property
    def exposed(self) -> float:
        """Seconds of the step in which the device communicates and does not compute."""
        moments = self.moments(self.busiest, "compute", "move")
        return sum(until - since for since, until, going in moments if going == {"move"})

    @property
    def idle(self) -> float:
        """Seconds of the step in which the device does neither, as in a pipeline's bubble."""
        return max(0.0, self.seconds - self.computing - self.exposed)  # not -0.0 %, from rounding

    @property
    def flops(self) -> int:
        """Floating-point operations of the device in a step, without those that are repeated."""
        recording = self.recordings[self.busiest]
        first, after_last = recording.steps[-1]
        flops = 0
        for node in recording.nodes[first:after_last]:
            if isinstance(node, Kernel) and not node.again:
                flops += node.flops
        return flops

    @property
    def mfu(self) -> float:
        """The share of the device's FLOP/s that goes into the model: model FLOPs utilization."""
        return self.flops / self.seconds / self.device.flops

    @property
    def tokens_per_second(self) -> float | None:
        """Of one device; None if `tokens` was not said."""
        if self.tokens is None:
            return None
        return self.tokens / self.ranks / self.seconds

    @property
    def rate(self) -> float:
        """Tokens a second of each rank; steps a second, if tokens are not known."""
        tokens = self.tokens_per_second
        if tokens is None:
            return 1 / self.seconds
        return tokens

    @cached_property
    def use(self) -> Use:
        """What the recorded rank that needs most takes of its device's memory."""
        return most_used(self)

    @property
    def memory(self) -> dict[str, int]:
        """Bytes at the peak by what they are, of the recorded rank that needs most.

        On a named device they are all that is in its memory, what torch cannot use and what is not
        torch's as well; device_memory.py says what counts.
        """
        return self.use.sizes

    @property
    def reserved(self) -> int:
        """Bytes that torch reserves, as torch.cuda.max_memory_reserved has them."""
        return self.use.reserved

    @property
    def fits(self) -> bool | None:
        """Whether the program runs with the device's memory; None if its size is not known.

        It does, if the allocator can give back in time what it keeps for later; a step in which it
        must takes longer.
        """
        if self.device.memory is None:
            return None
        return self.use.needed <= self.device.memory

    def memory_by_line(self) -> Table:
        """What memory holds at its peak, by the line of the program that made it."""
        return memory_shown.by_line(self)

    def plot_memory(self) -> Axes:
        """Draw what the memory of the rank that needs most holds during the last step."""
        return memory_shown.plot(self)

    def calibrated(
        self, seconds: float | None = None, *, trace: str | Path | None = None
    ) -> Device:
        """This device, as a measured step of this program shows it.

        So one measurement is enough for predictions of other sizes and numbers of ranks.

        Args:
            seconds: of a step, measured or published: the device gets the efficiency at which the
                step takes so long.
            trace: a file of torch.profiler, .json or .json.gz, of one rank and with
                record_shapes=True: the device gets what its kernels and collectives took.

        Raises:
            ArgumentError: no efficiency makes the step as short, or as long; the file is no such
                trace, or is of another program; not one of the two is given.
        """
        if trace is not None and seconds is None:
            return calibration.from_trace(self, trace)
        if trace is None and seconds is not None:
            return calibration.from_seconds(self, seconds)
        wrong("calibrated takes either seconds or a trace: call prediction.calibrated(1.2).")

    # --- how sure it is ---

    @cached_property
    def longer(self) -> dict[str, uncertainty.Longer]:
        """By which share of itself the step takes longer if costs do, by what they rest on."""
        return uncertainty.longer_by_basis(self)

    @cached_property
    def interval(self) -> tuple[float, float]:
        """The shortest and the longest time, in seconds, that the step may take.

        Two measurements of three are expected inside; uncertainty.py says how wide it is, and why.
        """
        return uncertainty.interval(self)

    @property
    def rate_interval(self) -> tuple[float, float]:
        """The lowest and the highest `rate`."""
        shortest, longest = self.interval
        done = self.rate * self.seconds
        return done / longest, done / shortest

    def rests_on(self) -> Table:
        """What the time of the step rests on, and how wrong that may be."""
        return grounds.table(self)

    def collectives(self) -> Collectives:
        """How each collective of the step runs, what it takes, and what of it is exposed."""
        return collectives_of(self)

    # --- how it is shown ---

    def table(self) -> Table:
        """What a step takes."""
        rows = self._rate_rows()
        rows.append(("FLOP/s of the device's peak (MFU)", f"{self.mfu:.1%}"))
        rows.append(("computing", share_of_step(self, self.computing)))
        rows.append(("exposed communication", share_of_step(self, self.exposed)))
        rows.append(("idle", share_of_step(self, self.idle)))
        rows += self._memory_rows()
        machines = f"{count(self.ranks, 'rank')}, {self.network}"
        title = f"Predicted, not measured: {machines}"
        notes = tuple(dict.fromkeys(note for one in self.recordings for note in one.assumed))
        return Table(title, ("", "predicted"), tuple(rows), "lr", notes)

    def _rate_rows(self) -> list[tuple[str, str]]:
        """Rows on time, with the interval in the last one."""
        step = format_seconds(self.seconds)
        tokens = self.tokens_per_second
        if tokens is None:
            shortest, longest = self.interval
            between = (
                f"from {format_seconds(shortest).strip()} to {format_seconds(longest).strip()}"
            )
            return [("a step", f"{step.strip()}, {between}")]
        lowest, highest = self.rate_interval
        between = f"from {_three_digits(lowest)} to {_three_digits(highest)}"
        rate = f"{tokens:,.0f}, {between}"
        return [("a step", step), ("tokens a second, each device", rate)]

    def _memory_rows(self) -> list[tuple[str, str]]:
        """Rows on memory: the peak, its parts from the largest on, and whether it fits."""
        memory = self.memory
        peak = sum(memory.values())
        rows = [("memory at its peak", _in_unit_of(peak, peak))]
        for kind in sorted(memory, key=memory.__getitem__, reverse=True):
            rows.append((f"  {kind}", _in_unit_of(peak, memory[kind])))
        if self.device.memory is not None:
            fits = "yes"
            if not self.fits:
                fits = f"no, it has {gibibytes(self.device.memory)}"
            elif peak > self.device.memory:
                fits = "only after giving back what is kept for later"
            rows.append(("fits into the device", fits))
        return rows

    def plot(self) -> Axes:
        """Draw the last step of each recorded rank: when it computes, and when messages travel."""
        from distlab.plotting.lanes import spans

        lanes = {}
        for number, recording in enumerate(self.recordings):
            name = f"rank {recording.rank}"
            lanes[f"{name} computes"] = self._kernel_spans(number)
            lanes[f"{name}'s messages"] = self._message_spans(number)
        drawn = {name: bars for name, bars in lanes.items() if bars}
        title = f"predicted, not measured: a step on {count(self.ranks, 'rank')}"
        return spans(drawn, title=title)

    def _kernel_spans(self, number: int) -> list[Span]:
        """When a recorded rank computes, for a lane."""
        moments = self.moments(number, "compute")
        return [(since, until, "", "compute") for since, until, _ in moments]

    def _message_spans(self, number: int) -> list[Span]:
        """When messages of a recorded rank travel, for a lane: beside computing, or exposed."""
        bars = []
        for since, until, going in self.moments(number, "compute", "move"):
            if "move" in going:
                kind = "move" if "compute" in going else "exposed"
                bars.append((since, until, "", kind))
        return bars


def _in_unit_of(largest: float, num_bytes: float) -> str:
    """A size in the unit that suits the largest one of a column, or in MiB if it is far smaller."""
    if largest >= GIBIBYTE / 10 and not 0 < num_bytes < GIBIBYTE / 20:
        return gibibytes(num_bytes)
    if largest >= MEBIBYTE / 10:
        return f"{num_bytes / MEBIBYTE:,.1f} MiB"
    return f"{num_bytes / 1024:,.1f} KiB"


def _three_digits(value: float) -> str:
    """A rate, rounded: "4,310"."""
    digits = 2 - math.floor(math.log10(value))
    return f"{round(value, digits):,.{max(0, digits)}f}"


def gibibytes(num_bytes: float) -> str:
    """A number of bytes, in words: "9.0 GiB"."""
    return f"{num_bytes / GIBIBYTE:,.1f} GiB"


def share_of_step(prediction: Prediction, seconds: float) -> str:
    """How much of the step so many seconds are: "28.6%"."""
    return f"{seconds / prediction.seconds:.1%}"
