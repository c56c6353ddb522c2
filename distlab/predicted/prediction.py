"""`predict`: what a program would do on many ranks of described machines; `Prediction`: what came of it.

Runs on the notebook's kernel. The program itself runs in a process of its own (recorder.py).
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from distlab.diagnosis.failures import failure, rank_error
from distlab.errors import ArgumentError, ClusterError
from distlab.launch import fork_server
from distlab.plotting.units import Table, count, format_seconds
from distlab.predicted.costs import Costs
from distlab.predicted.nodes import Call, Kernel, Recording, Task
from distlab.predicted.timeline import Times, times_of
from distlab.simulated.network import Device, Network
from distlab.text import refuse, whole_number
from distlab.wire.messages import Failure
from distlab.wire.payload import bring_own_module, pack

if TYPE_CHECKING:
    from matplotlib.axes import Axes

EXAMPLE = 'Call distlab.predict(program, ranks=1024, network=Network("5 us", "50 GB/s"), device=Device("989 TFLOP/s")).'
MOST_ROLES = 64  # that are found by following messages
Interval = tuple[float, float]


@dataclass(frozen=True, repr=False)
class Prediction:
    """A step of a program on machines that are not there: predicted, never measured. A notebook shows its table.

    Attributes:
        ranks: how many.
        recordings: what the recorded ranks noted, a rank of each role.
        tokens: of all ranks together in a step; None if that was not said.
    """

    ranks: int
    network: Network
    device: Device
    recordings: Sequence[Recording]
    roles: Callable[[int], int]
    tokens: int | None = None

    @cached_property
    def times(self) -> list[Times]:
        """Begin and end of each node of each recording, in seconds."""
        return times_of(self.recordings, Costs(self.network, self.device), self.roles)

    @property
    def seconds(self) -> float:
        """Of the last step."""
        begin, end = self.window
        return end - begin

    @cached_property
    def window(self) -> Interval:
        """Begin and end of the last step: since the step before has ended, or else since it has begun."""
        ends = [max(self._ends(step)) for step in range(-min(2, self._steps), 0)]
        first = ends[0] if len(ends) == 2 else min(times[one.steps[-1][0]][0] for one, times in self._each())
        return first, ends[-1]

    @property
    def _steps(self) -> int:
        return min(len(recording.steps) for recording in self.recordings)

    def _each(self) -> Iterable[tuple[Recording, Times]]:
        return zip(self.recordings, self.times, strict=True)

    def _ends(self, step: int) -> list[float]:
        """When a step has ended on each recorded rank."""
        return [max(end for _, end in times[slice(*one.steps[step])]) for one, times in self._each()]

    # --- what it means, of the recorded rank that computes longest ---

    @cached_property
    def busiest(self) -> int:
        """The number of the recording whose device computes longest."""
        return max(range(len(self.recordings)), key=self._computing)

    def _computing(self, number: int) -> float:
        return length(self.intervals(number, Kernel))

    def intervals(self, number: int, kind: type) -> list[Interval]:
        """When a recorded rank computes, or communicates, in the last step."""
        begin, end = self.window
        nodes = zip(self.recordings[number].nodes, self.times[number], strict=True)
        clipped = [(max(since, begin), min(until, end)) for node, (since, until) in nodes if isinstance(node, kind)]
        return union((since, until) for since, until in clipped if since < until)

    @property
    def computing(self) -> float:
        """Seconds of the step in which the device computes."""
        return self._computing(self.busiest)

    @property
    def exposed(self) -> float:
        """Seconds of the step in which the device communicates and does not compute."""
        return length(without(*(self.intervals(self.busiest, kind) for kind in (Call, Kernel))))

    @property
    def idle(self) -> float:
        """Seconds of the step in which the device does neither: it waits for others, as in a pipeline's bubble."""
        return self.seconds - self.computing - self.exposed

    def _kernels(self) -> list[Kernel]:
        recording = self.recordings[self.busiest]
        return [node for node in recording.nodes[slice(*recording.steps[-1])] if isinstance(node, Kernel)]

    @property
    def flops(self) -> int:
        """Floating-point operations of the device in a step, without those that checkpointing repeats."""
        return sum(kernel.flops for kernel in self._kernels() if not kernel.again)

    @property
    def mfu(self) -> float:
        """The share of the device's operations a second that goes into the model (model FLOPs utilization)."""
        return self.flops / self.seconds / self.device.flops

    @property
    def tokens_per_second(self) -> float | None:
        """Of one device."""
        return None if self.tokens is None else self.tokens / self.ranks / self.seconds

    @property
    def memory(self) -> dict[str, int]:
        """Bytes at the peak by what they are, of the recorded rank that needs most."""
        return max((recording.peak for recording in self.recordings), key=lambda peak: sum(peak.values()))

    @property
    def fits(self) -> bool | None:
        """Whether that is within the device's memory; None if its size is not known."""
        return None if self.device.memory is None else sum(self.memory.values()) <= self.device.memory

    def table(self) -> Table:
        """What a step takes."""
        total, gigabyte = sum(self.memory.values()), 1 << 30
        rows = [("a step", format_seconds(self.seconds))]
        if self.tokens is not None:
            rows += [("tokens a second, each device", f"{self.tokens_per_second:,.0f}")]
        rows += [("FLOP/s of the device's peak (MFU)", f"{self.mfu:.1%}")]
        for what, name in (("computing", "computing"), ("exposed communication", "exposed"), ("idle", "idle")):
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
        """Draw the last step of each recorded rank: when it computes, and when its messages travel."""
        from distlab.plotting.lanes import spans

        lanes = {}
        for number, recording in enumerate(self.recordings):
            kernels, calls = (self.intervals(number, kind) for kind in (Kernel, Call))
            exposed = without(calls, kernels)
            lanes[f"rank {recording.rank} computes"] = [(*bar, "", "compute") for bar in kernels]
            hidden = [(*bar, "", "move") for bar in without(calls, exposed)]
            lanes[f"rank {recording.rank}'s messages"] = hidden + [(*bar, "", "exposed") for bar in exposed]
        title = f"predicted, not measured: a step on {count(self.ranks, 'rank')}"
        return spans({name: bars for name, bars in lanes.items() if bars}, title=title)

    def __repr__(self) -> str:
        return repr(self.table())

    def _repr_html_(self) -> str:
        return self.table()._repr_html_()


def length(intervals: Iterable[Interval]) -> float:
    """Seconds in intervals that do not overlap."""
    return sum(end - begin for begin, end in intervals)


def without(these: Iterable[Interval], others: Iterable[Interval]) -> list[Interval]:
    """The moments of these intervals that are in none of the others, which do not overlap."""
    left, others = [], list(others)
    for begin, end in these:
        for since, until in others:
            if since < end and until > begin:
                left += [(begin, since)] if since > begin else []
                begin = until
        left += [(begin, end)] if begin < end else []
    return left


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """The same moments, in intervals that do not overlap."""
    joined: list[Interval] = []
    for begin, end in sorted(intervals):
        if joined and begin <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(end, joined[-1][1])
        else:
            joined.append((begin, end))
    return joined


def predict(
    program: Callable[[int, int], Any],
    ranks: int,
    network: Network,
    device: Device,
    *,
    roles: Sequence[int] | None = None,
    tokens: int | None = None,
) -> Prediction:
    """What a training program would do on many ranks of machines that are not there.

    One rank runs the program's real code, with torch's sharding and its own order of calls, on tensors that have shapes
    and no data; then what it called is timed on the described machines. Where ranks send messages, as the stages of a
    pipeline do, one rank of each role runs.

    Runs on: the notebook's kernel; the program in a process of its own, which ends with the call.

    Args:
        program: called with (rank, world_size), as by Cluster.run: makes the model, shards it, and takes a step of an
            optimizer, or better two, as the first one has no prefetched parameters. The last step counts.
        ranks: the size of the world.
        network: of the machines; its hosts, if it has any, have so many ranks in all.
        device: what each rank computes on.
        roles: ranks that run; the others do what the last one of these before them does. None: rank 0, the ranks that
            it sends messages to, and so on.
        tokens: of all ranks together in a step, for `tokens_per_second`.

    Raises:
        ArgumentError: an argument breaks its rule, or the program's ranks would wait for each other forever.
        RankError: the program raised, or needs the value of a tensor; the message has the line.
    """
    if not callable(program):
        refuse("program", "a function of (rank, world_size)", program, EXAMPLE, wrong_type=True)
    whole_number("ranks", ranks, 1)
    for name, value, kind in (("network", network, Network), ("device", device, Device)):
        if not isinstance(value, kind):
            refuse(name, f"a {kind.__name__}", value, EXAMPLE, wrong_type=True)
    network.check_size(ranks)
    if tokens is not None:
        whole_number("tokens", tokens, 1)
    if roles is not None and not (isinstance(roles, Sequence) and roles and not isinstance(roles, str)):
        refuse("roles", "a list of ranks", roles, "For example: roles=[0, 8].", wrong_type=True)
    for rank in roles or ():
        whole_number("roles", rank, 0, ranks - 1, "For example: roles=[0, 8].")
    recordings = recorded(program, ranks, roles)
    if roles is None and len(recordings) > MOST_ROLES:
        roles_are = f"program must have at most {MOST_ROLES} ranks that send each other messages, if roles is not given"
        raise ArgumentError(f"{roles_are}. Where all ranks do the same, call predict(..., roles=[0]).")
    known = sorted(recording.rank for recording in recordings)

    def role_of(rank: int) -> int:
        return max((one for one in known if one <= rank), default=known[0])

    prediction = Prediction(ranks, network, device, recordings, role_of, tokens)
    if not all(recording.steps for recording in recordings):
        raise ArgumentError("program must take a step: call a module, and an optimizer's step(). " + EXAMPLE)
    try:
        prediction.times  # noqa: B018 - so that what cannot be timed is said here
    except ValueError as error:
        raise ArgumentError(f"program must end: {error}.") from None
    return prediction


def recorded(program: Callable[[int, int], Any], ranks: int, roles: Sequence[int] | None) -> list[Recording]:
    """What the ranks that run have noted."""
    bring_own_module(program)
    header, buffers = pack(program, "program")
    task = pickle.dumps(
        Task(header, [bytes(buffer) for buffer in buffers], ranks, roles and tuple(roles), MOST_ROLES + 1)
    )
    command = fork_server.command("distlab.predicted.recorder")
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}  # the program finds a CPU everywhere
    done = subprocess.run(command, input=task, capture_output=True, check=False, env=environment)
    try:
        outcomes = pickle.loads(done.stdout)
    except Exception as error:
        words = done.stderr.decode(errors="replace")[-2000:]
        raise ClusterError(f"The program's process ended ({done.returncode}):\n{words}") from error
    failures = [failure(outcome) for outcome in outcomes if isinstance(outcome, Failure)]
    if failures:
        raise rank_error(failures, [one.rank for one in failures], False, "")
    sys.stdout.write("".join(outcome.printed for outcome in outcomes[:1]))
    return outcomes
