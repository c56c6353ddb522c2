"""What a step takes on machines that are not there.

`Prediction` is made by predict.py, and asks timeline.py when it is first read. Runs on the
notebook's kernel.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from distlab.arguments import wrong
from distlab.simulated.devices import Device
from distlab.simulated.network import Network
from distlab.tables import ShownAsTable, Table
from distlab.traces.events import Moment, Part, moments
from distlab_predict import calibration, grounds, memory_shown, prediction_shown, uncertainty
from distlab_predict.collectives import Collectives, collectives_of
from distlab_predict.costs import Costs
from distlab_predict.device_memory import Use, uses_of
from distlab_predict.nodes import Kernel, Recording
from distlab_predict.timeline import Timeline, Times, timeline_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True, repr=False)
class Prediction(ShownAsTable):
    """A step of a program on machines that are not there: predicted, never measured.

    A notebook shows its table. Times are in seconds, of the last step that the program took, and
    sizes in bytes. Shares of the step are of the recorded rank whose device computes longest, and
    memory is of the one that needs most.

    Attributes:
        ranks: how many.
        network: of the machines.
        device: what each rank computes on.
        recordings: what the recorded ranks noted, a rank of each role.
        tokens: of all ranks together in a step; None if that was not said.
        slower: (basis, factor) of costs that take so many times longer here than usual. Intervals
            are found by trying this, see uncertainty.py; () in a prediction that is shown.
    """

    ranks: int
    network: Network
    device: Device
    recordings: Sequence[Recording]
    tokens: int | None = None
    slower: tuple[tuple[str, float], ...] = ()

    @cached_property
    def timeline(self) -> Timeline:
        """When nodes run, and when they wait to be launched."""
        costs = Costs(self.network, self.device, self.ranks)
        return timeline_of(self.recordings, costs, dict(self.slower))

    @property
    def times(self) -> list[Times]:
        """Begin and end of each node of each recording, in seconds."""
        return self.timeline.times

    @property
    def seconds(self) -> float:
        """How long the last step takes."""
        begin, end = self.window
        return end - begin

    @cached_property
    def window(self) -> tuple[float, float]:
        """Begin and end of the last step, in seconds.

        It begins when the one before has ended; the first one begins at 0.

        Raises:
            ArgumentError: nothing in it takes time on these machines.
        """
        begin = 0.0
        if all(len(recording.steps) > 1 for recording in self.recordings):
            begin = self._end(-2)
        end = self._end(-1)
        if end <= begin:
            wrong(
                "No operator of a step takes time on this device. Bytes take time with "
                'Device("989 TFLOP/s", memory_bandwidth="3.35 TB/s"), or Device.named("H100").'
            )
        return begin, end

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
            kinds: what counts: "compute" when the device computes, "move" when it communicates,
                "launch" when it could do one of them, and nothing is launched.
        """
        return moments(part for part in self._parts(number) if part[0] in kinds)

    def _parts(self, number: int) -> Iterator[Part]:
        """What a recorded rank does, from when to when, cut to the last step."""
        nodes = self.recordings[number].nodes
        for node, span in zip(nodes, self.times[number], strict=True):
            kind = "compute" if isinstance(node, Kernel) else "move"
            yield from self._in_step(kind, span)
        for span in self.timeline.late[number]:
            yield from self._in_step("launch", span)

    def _in_step(self, kind: str, span: tuple[float, float]) -> Iterator[Part]:
        """The part of a span that is in the last step, if there is any."""
        step_begin, step_end = self.window
        begin = max(span[0], step_begin)
        end = min(span[1], step_end)
        if begin < end:
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
    def launches(self) -> float:
        """Seconds of the step in which the device waits for its processor to launch something."""
        moments = self.moments(self.busiest, "compute", "move", "launch")
        return sum(until - since for since, until, going in moments if going == {"launch"})

    @property
    def idle(self) -> float:
        """Seconds of the step in which the device has nothing to do, as in a pipeline's bubble."""
        rest = self.seconds - self.computing - self.exposed - self.launches
        return max(0.0, rest)  # not -0.0 %, from rounding

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
    def uses(self) -> list[Use]:
        """What each recorded rank takes of its device's memory."""
        return uses_of(self)

    @property
    def use(self) -> Use:
        """What the recorded rank that takes most has of its device's memory."""
        return max(self.uses, key=lambda use: use.total)

    @property
    def needed(self) -> int:
        """Bytes of a device's memory without which one of the recorded ranks cannot run.

        That may be another rank than the one that takes most, whose allocator keeps more for later.
        """
        return max(use.needed for use in self.uses)

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
        return self.needed <= self.device.memory

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
        return prediction_shown.table(self)

    def plot(self) -> Axes:
        """Draw the last step of each recorded rank: when it computes, and when messages travel."""
        return prediction_shown.plot(self)
