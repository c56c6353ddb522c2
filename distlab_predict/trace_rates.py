"""What a rank's trace says of the kernels and calls of a prediction.

Called by calibration.py, on the notebook's kernel. The program of the trace is the one of the
prediction, on as many ranks:

- A product of matrices is found by its shape, which the trace has. All other kernels are found by
  their operator: the n-th one of a step in the trace is the n-th one of the recorded step. Where
  the numbers do not fit, all of an operator get its mean.
- An operator that the recorder does not see, such as `linear`, is taken apart.
- What the trace has beyond that is the time of the kernels that were not found in it, by their
  bytes: a compiler, or an optimizer, has given them other names. An optimizer on CPUs goes through
  its parameters one by one, and is predicted as on a GPU, where it takes lists of them.

What it says of other sizes, simulated/measured.py knows.
"""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from distlab.arguments import wrong
from distlab.simulated.measured import KernelTime, Measured
from distlab.words import grouped
from distlab_predict.kineto import Operator, Trace
from distlab_predict.kineto_file import HOW
from distlab_predict.nodes import PRODUCT, Kernel, Recording
from distlab_predict.trace_calls import calls_in

if TYPE_CHECKING:
    from distlab_predict.prediction import Prediction

LEAST_MATCHED = 0.5  # of the kernels' time; below it the trace is of another program
# arguments of products: which two are multiplied
FACTORS = {"mm": (0, 1), "bmm": (0, 1), "addmm": (1, 2), "baddbmm": (1, 2), "_scaled_mm": (0, 1)}


def match(trace: Trace, prediction: Prediction) -> Measured:
    """Find the kernels and calls of a prediction in a trace.

    Args:
        trace: of one rank.
        prediction: of the same program on as many ranks.

    Raises:
        ArgumentError: most of its kernels are not of this program.
    """
    recording = _recording(trace, prediction)
    search = _Search.of(recording)
    for operator in trace.operators:
        search.add(operator)
    matched = search.matched.seconds() + search.listed.seconds()
    total = matched + search.unmatched.seconds()
    if not total:
        wrong(f"The trace {trace.source} has no kernel that took time. {HOW}")
    share = matched / total
    if share < LEAST_MATCHED:
        names = ", ".join(search.unmatched.longest()[:3])
        wrong(
            f"The trace {trace.source} is of another program: the predicted one has {share:.0%} of "
            f"its kernels by their time, and no {names}. Predict the program that was traced, in "
            "the same size and on as many ranks."
        )
    calls = calls_in(trace, prediction, recording)
    step = trace.seconds / search.steps()
    return Measured(tuple(search.kernels()), tuple(calls), trace.source, share, step)


def _recording(trace: Trace, prediction: Prediction) -> Recording:
    """The recording of the trace's rank, or of the last one before it, which has its role."""
    found = prediction.recordings[0]
    for recording in sorted(prediction.recordings, key=lambda one: one.rank):
        if recording.rank <= (trace.rank or 0):
            found = recording
    return found


# --- kernels ---


class _Times:
    """How long operators of a trace took.

    Now and then one takes a thousand times as long as others like it, when its process had to wait
    for a core. So all that are alike, in name and sizes, count as much as their median.
    """

    def __init__(self) -> None:
        self._of_alike: defaultdict[tuple[str, str], list[float]] = defaultdict(list)

    def add(self, operator: Operator) -> None:
        """Note how long an operator took."""
        self._of_alike[operator.name, repr(operator.dims)].append(operator.seconds)

    def seconds(self) -> float:
        """Of all of them."""
        return sum(self._by_name().values())

    def longest(self) -> list[str]:
        """The names of operators, the one that took most time first."""
        seconds = self._by_name()
        return sorted(seconds, key=seconds.__getitem__, reverse=True)

    def _by_name(self) -> dict[str, float]:
        seconds: defaultdict[str, float] = defaultdict(float)
        for (name, _), took in self._of_alike.items():
            seconds[name] += statistics.median(took) * len(took)
        return seconds


@dataclass
class _Search:
    """Looks for a program's kernels in a trace.

    Attributes:
        recorded: the kernels of its last step, by their name.
        products: those that multiply matrices, by their shape and number format.
        found: operators of the trace, by the name of the recorded ones.
        times: of the kernels that are known one by one, in seconds.
        matched: of all operators that were found.
        unmatched: of those that the program does not have.
        listed: of those that it calls for lists of tensors.
    """

    recorded: dict[str, list[Kernel]]
    products: dict[Hashable, Kernel]
    found: defaultdict[str, list[Operator]] = field(default_factory=lambda: defaultdict(list))
    times: list[tuple[Kernel, float]] = field(default_factory=list)
    matched: _Times = field(default_factory=_Times)
    unmatched: _Times = field(default_factory=_Times)
    listed: _Times = field(default_factory=_Times)

    @classmethod
    def of(cls, recording: Recording) -> _Search:
        """A search for the kernels of a recording."""
        first, after_last = recording.steps[-1]
        step = [node for node in recording.nodes[first:after_last] if isinstance(node, Kernel)]
        products: dict[Hashable, Kernel] = {}
        for kernel in step:
            if kernel.kind == PRODUCT:
                products[kernel.shape, kernel.dtype] = kernel
        return cls(grouped((_alike(kernel.name), kernel) for kernel in step), products)

    def add(self, operator: Operator) -> None:
        """Look at an operator of the trace, or at what it has called."""
        if _alike(operator.name) in self.recorded:
            self._take(operator)
            return
        if _of_lists(operator.name) & self.recorded.keys():
            self.listed.add(operator)
            return
        if not operator.parts:
            self.unmatched.add(operator)
        for part in operator.parts:
            self.add(part)

    def _take(self, operator: Operator) -> None:
        """Note an operator that the program calls by this name."""
        shape = _product(operator)
        if operator.seconds <= 0:
            return
        if shape is None:
            self.found[_alike(operator.name)].append(operator)
        elif (shape, _dtype(operator)) in self.products:
            kernel = self.products[shape, _dtype(operator)]
            self.times.append((kernel, operator.seconds))
        else:
            self.unmatched.add(operator)
            return
        self.matched.add(operator)

    def steps(self) -> int:
        """How many steps the trace has: how often most of a step's operators were found in it."""
        counts = Counter(_alike(kernel.name) for kernel, _ in self.times)
        for name, operators in self.found.items():
            counts[name] += len(operators)
        often = [count / len(self.recorded[name]) for name, count in counts.items()]
        return max(1, round(statistics.median(often)))

    def kernels(self) -> Iterator[KernelTime]:
        """What the trace says of each kernel of the program."""
        times = list(self.times)
        for name, operators in self.found.items():
            times += _in_order(self.recorded[name], operators)
        times += self._others(times)
        for kernel, took in grouped((_plain(kernel), took) for kernel, took in times).items():
            yield KernelTime(
                kernel.name,
                kernel.kind,
                kernel.shape,
                kernel.dtype,
                kernel.flops,
                kernel.num_bytes,
                statistics.median(took),
                len(took),
            )

    def _others(self, times: Sequence[tuple[Kernel, float]]) -> Iterator[tuple[Kernel, float]]:
        """The kernels that were not found, with their share of the time that is left.

        Args:
            times: of those that were found.
        """
        found = {_alike(kernel.name) for kernel, _ in times}
        missing = []
        for name, kernels in self.recorded.items():
            if name not in found:
                missing += [kernel for kernel in kernels if not kernel.flops]
        num_bytes = sum(kernel.num_bytes for kernel in missing)
        if not num_bytes:
            return
        seconds = self.unmatched.seconds() + self.listed.seconds()
        per_byte = seconds / self.steps() / num_bytes
        for kernel in missing:
            if kernel.num_bytes and per_byte:
                yield kernel, kernel.num_bytes * per_byte


def _alike(name: str) -> str:
    """The name that operators have in common which devices call differently."""
    if "scaled_dot_product" in name:
        return "attention backward" if "backward" in name else "attention"
    return name


def _of_lists(name: str) -> set[str]:
    """The names of an operator that does the same to each tensor of a list."""
    name = f"_foreach_{name.rstrip('_')}"
    return {name, f"{name}_"}


def _plain(kernel: Kernel) -> Kernel:
    """A kernel without what differs between kernels that are alike."""
    return replace(kernel, after=(), again=False, line="")


def _product(operator: Operator) -> tuple[int, ...] | None:
    """The shape of a product of matrices, as of nodes.Kernel; None if it is none."""
    if operator.name not in FACTORS:
        return None
    left, right = FACTORS[operator.name]
    if min(len(operator.dims), len(operator.dtypes)) <= right:
        return None
    if len(operator.dims[left]) < 2 or len(operator.dims[right]) < 2:
        return None
    *batch, m, k = operator.dims[left]
    n = operator.dims[right][-1]
    return (batch[0] if batch else 1, m, n, k)


def _dtype(operator: Operator) -> str:
    """The number format of what a product multiplies."""
    left, _ = FACTORS[operator.name]
    return operator.dtypes[left]


def _in_order(
    recorded: Sequence[Kernel], operators: Sequence[Operator]
) -> Iterable[tuple[Kernel, float]]:
    """Which of an operator's kernels took how long."""
    steps = len(operators) // len(recorded)
    if steps * len(recorded) == len(operators):
        pairs = list(zip(list(recorded) * steps, operators, strict=True))
        if _agree(pairs):
            return [(kernel, operator.seconds) for kernel, operator in pairs]
    # a part of a step, or other kernels as well
    mean = statistics.fmean(operator.seconds for operator in operators)
    flops = statistics.fmean(kernel.flops for kernel in recorded)
    num_bytes = statistics.fmean(kernel.num_bytes for kernel in recorded)
    usual = replace(recorded[0], shape=(), flops=round(flops), num_bytes=round(num_bytes))
    return [(usual, mean)]


def _agree(pairs: Iterable[tuple[Kernel, Operator]]) -> bool:
    """Whether operators with the same sizes are kernels with the same bytes."""
    num_bytes: dict[Any, int] = {}
    for kernel, operator in pairs:
        sizes = repr(operator.dims)
        if num_bytes.setdefault(sizes, kernel.num_bytes) != kernel.num_bytes:
            return False
    return True
