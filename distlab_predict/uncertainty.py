"""How far a prediction may be off, and how far two of them may be off from each other.

Called by prediction.py, on the notebook's kernel. What a kernel or a call costs rests on something
(`Cost.basis`), and UNCERTAINTIES says how wrong that may be. Costs of one basis are wrong together,
so the step is timed again with all of them slower, and the differences are combined as independent
ones: the root of the sum of their squares. Two measurements of three are expected inside.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from distlab.simulated.measured import Measured
from distlab_predict.costs import Cost, Costs
from distlab_predict.nodes import Kernel, Node
from distlab_predict.timeline import LAUNCH

if TYPE_CHECKING:
    from distlab_predict.prediction import Prediction


class Uncertainty(NamedTuple):
    """How wrong all costs of a basis may be, as shares of them.

    Attributes:
        common: of all costs alike; a measured step shows it.
        own: of each shape or size by itself, which a measured step of another program does not
            show.
        why: where the numbers come from.
    """

    common: float
    own: float
    why: str

    @property
    def both(self) -> float:
        """The two together."""
        return math.hypot(self.common, self.own)


# Two runs of one row in TorchTitan's paper and in its repository differ by 0.1 to 8 %, most of them
# by less than 2 %.
RUNS = 0.01
# From 8 to 128 GPUs, TorchTitan's 8B lost 2.3 % more than predicted, as hosts disturb each other.
DOUBLED = 0.005  # for each doubling of the ranks
# "shape": two of three of the products in tests/unit/simulated/measured_products.py, without A100s,
# are within 8 %, and within 7 % of their device's mean.
# "bytes": distlab/simulated/known_devices.py says what copies reach.
# "peak": the efficiencies that published steps calibrate in benchmarks/README.md, 0.52 to 0.87.
# "network": two of three of the times in tests/unit/predict/published_nccl.py are within 14 %, and
# two of three of the rows' means within 10 %.
# "launch": an estimate of how much processors differ, and versions of torch; the published steps in
# tests/cluster/predict/test_launch_bound.py are within 1.2.
# "measured": the second run of a trace's program, in benchmarks/from_trace.py. "scaled" and
# "extrapolated" are estimates, and its rows of other sizes are within them.
UNCERTAINTIES = {
    "measured": Uncertainty(0.01, 0.01, "the same kernel differs from run to run"),
    "scaled": Uncertainty(0.01, 0.05, "scaled from measured sizes near it"),
    "extrapolated": Uncertainty(0.05, 0.15, "by the law that fits the measured sizes"),
    "shape": Uncertainty(0.06, 0.05, "two of three published products are within 8 %"),
    "bytes": Uncertainty(0.08, 0.05, "copies reach 81 to 92 % of the bandwidth"),
    "peak": Uncertainty(0.25, 0.06, "published steps reach 52 to 87 % of the peak"),
    "network": Uncertainty(0.1, 0.09, "two of three of nccl-tests' times are within 14 %"),
    "launch": Uncertainty(0.5, 0.1, "processors and versions of torch differ by a factor of 1.5"),
    "unknown": Uncertainty(1.0, 0.0, "nobody knows their operations"),
}
LEAST_SHARE = 1e-4  # of the step; a basis with less is left out
# Costs are tried so much slower at most, and larger differences follow in proportion: more than all
# of the peak would be needed to make up for kernels that are much slower.
MOST_TRIED = 0.1


# --- one prediction ---


def interval(prediction: Prediction) -> tuple[float, float]:
    """The shortest and the longest time that a step may take, in seconds.

    If the step of a trace was longer than its kernels and calls explain, any other step may also be
    so much longer; the same is true of a shorter one.
    """
    squares = RUNS**2
    calibrated = dict(prediction.device.if_slower)
    for basis, step in prediction.longer.items():
        known = UNCERTAINTIES[basis]
        if basis == LAUNCH:
            continue
        if basis in calibrated:
            squares += (step.together * known.common) ** 2
            squares += (step.alone * known.own) ** 2
        else:
            squares += (step.alone * known.both) ** 2
    shorter, longer = _not_explained(prediction.device.measured)
    quicker, slower = _by_launches(prediction)
    least = prediction.seconds / (1 + math.sqrt(squares + shorter**2 + quicker**2))
    most = prediction.seconds * (1 + math.sqrt(squares + longer**2 + slower**2))
    return least, most


def _by_launches(prediction: Prediction) -> tuple[float, float]:
    """By which shares a step may be shorter, and longer, with another processor.

    They are not alike: one that launches do not bind is no shorter with a quicker processor, and
    may be longer with a slower one.
    """
    if LAUNCH not in prediction.longer:
        return 0.0, 0.0
    factor = 1 + UNCERTAINTIES[LAUNCH].both
    quicker = replace(prediction, slower=((LAUNCH, 1 / factor),)).seconds
    slower = replace(prediction, slower=((LAUNCH, factor),)).seconds
    return max(0.0, prediction.seconds / quicker - 1), max(0.0, slower / prediction.seconds - 1)


def _not_explained(measured: Measured | None) -> tuple[float, float]:
    """By which shares a traced step was shorter, and longer, than its kernels and calls explain."""
    if measured is None or not measured.explained:
        return 0.0, 0.0
    ratio = measured.step / measured.explained
    return max(0.0, 1 / ratio - 1), max(0.0, ratio - 1)


class Longer(NamedTuple):
    """By which share of itself a step takes longer if costs of a basis do, for a share of theirs.

    Attributes:
        alone: if nothing else changes.
        together: if the device was calibrated by a measured step, it would have another efficiency
            then; without such a step it is `alone`.
    """

    alone: float
    together: float


def longer_by_basis(prediction: Prediction) -> dict[str, Longer]:
    """How much longer a step takes for costs of each basis, one after the other."""
    usual = prediction.seconds
    found = {}
    for basis in bases(prediction):
        change = _tried(basis)
        slower = slowed(prediction, basis).seconds
        alone = (slower / usual - 1) / change
        together = alone
        efficiency = dict(prediction.device.if_slower).get(basis)
        if efficiency is not None:
            device = replace(prediction.device, efficiency=efficiency)
            again = replace(slowed(prediction, basis), device=device).seconds
            together = (again / usual - 1) / change
        found[basis] = Longer(alone, together)
    return found


def slowed(prediction: Prediction, basis: str) -> Prediction:
    """The prediction if all costs of a basis were wrong."""
    return replace(prediction, slower=((basis, 1 + _tried(basis)),))


def _tried(basis: str) -> float:
    """How much slower costs of a basis are tried, as a share."""
    return min(MOST_TRIED, UNCERTAINTIES[basis].common)


def bases(prediction: Prediction) -> list[str]:
    """What a step rests on, without what is too short to matter.

    Launches matter if the step would be bound by them if they took as much longer as they may.
    """
    seconds: defaultdict[str, float] = defaultdict(float)
    for number in range(len(prediction.recordings)):
        for _, cost, _ in costs_of(prediction, number):
            seconds[cost.basis] += cost.seconds
        launching = launching_seconds(prediction, number)
        if launching * (1 + UNCERTAINTIES[LAUNCH].both) > prediction.seconds:
            seconds[LAUNCH] += launching
    if prediction.launches > LEAST_SHARE * prediction.seconds:
        seconds[LAUNCH] += prediction.launches * len(prediction.recordings)
    least = LEAST_SHARE * prediction.seconds * len(prediction.recordings)
    return [basis for basis in UNCERTAINTIES if seconds[basis] > least]


def costs_of(prediction: Prediction, number: int) -> Iterator[tuple[Node, Cost, float]]:
    """Each node of a recorded rank's last step, what it costs alone, and how long it took."""
    recording = prediction.recordings[number]
    costs = Costs(prediction.network, prediction.device, prediction.ranks)
    first, after_last = recording.steps[-1]
    for index in range(first, after_last):
        node = recording.nodes[index]
        begin, end = prediction.times[number][index]
        yield node, costs.of(node, recording.rank), end - begin


def launching_seconds(prediction: Prediction, number: int) -> float:
    """How long the processor of a recorded rank launches in the last step, without its waits."""
    recording = prediction.recordings[number]
    first, after_last = recording.steps[-1]
    operators = sum(node.host for node in recording.nodes[first:after_last])
    return operators * prediction.device.host


# --- two predictions ---


class Ratio(NamedTuple):
    """How many times as quick one prediction is as another one.

    Two measurements of three are expected from `low` to `high`.

    Attributes:
        ratio: of their rates.
        low: as it may be at least.
        high: as it may be at most.
    """

    ratio: float
    low: float
    high: float

    @property
    def is_too_close(self) -> bool:
        """Whether it is too close to call which of the two is the quicker one."""
        return self.low < 1 < self.high


def compare(a: Prediction, b: Prediction) -> Ratio:
    """How many times as quick `a` is as `b`, by tokens or steps a second of each rank.

    Two predictions of a program share most of what is wrong with their costs, so their ratio is
    surer than each of them:

    - What is wrong with all costs of a basis counts only as far as one step depends more on the
      basis than the other does. What is wrong with single shapes counts where only one has them.
    - What a trace's kernels and calls do not explain of its step counts in the same way: as far as
      the steps rest on other things, or whole where only one of them rests on this trace.
    - Two runs of one step differ by 1 %, and each doubling of the ranks adds 0.5 %.

    Runs on: the notebook's kernel.

    Args:
        a, b: of one program, in several ways or on several numbers of ranks, on one kind of device.
    """
    doublings = math.log2(a.ranks / b.ranks)
    squares = 2 * RUNS**2 + (DOUBLED * doublings) ** 2  # two runs
    together = 0.0
    not_shared = 0.0
    for basis in {**a.longer, **b.longer}:
        known = UNCERTAINTIES[basis]
        of_a = a.longer.get(basis, Longer(0.0, 0.0))
        of_b = b.longer.get(basis, Longer(0.0, 0.0))
        squares += ((of_a.together - of_b.together) * known.common) ** 2
        apart = _apart(a, b, basis, of_a.alone, of_b.alone)
        squares += (apart * known.own) ** 2
        together += of_a.alone + of_b.alone
        not_shared += apart
    share = not_shared / together if together else 0.0
    slower, quicker = _not_explained_of_both(a.device.measured, b.device.measured, share)
    ratio = a.rate / b.rate
    low = ratio / (1 + math.sqrt(squares + slower))
    high = ratio * (1 + math.sqrt(squares + quicker))
    return Ratio(ratio, low, high)


def _not_explained_of_both(
    a: Measured | None, b: Measured | None, not_shared: float
) -> tuple[float, float]:
    """The squares of the shares by which one step may be slower than another, and quicker.

    Args:
        a, b: what each of them rests on.
        not_shared: the share of the two steps that is not the same in both.
    """
    shorter_a, longer_a = _not_explained(a)
    shorter_b, longer_b = _not_explained(b)
    if a == b:
        square = (max(shorter_a, longer_a) * not_shared) ** 2
        return square, square
    return longer_a**2 + shorter_b**2, shorter_a**2 + longer_b**2


def _apart(a: Prediction, b: Prediction, basis: str, of_a: float, of_b: float) -> float:
    """How much of a basis two predictions do not share, of the steps' time.

    The same shapes are wrong in the same way in both.
    """
    shares_a = _shares(a, basis)
    shares_b = _shares(b, basis)
    common = 0.0
    for shape in {*shares_a, *shares_b}:
        common += min(of_a * shares_a.get(shape, 0.0), of_b * shares_b.get(shape, 0.0))
    return of_a + of_b - 2 * common


def _shares(prediction: Prediction, basis: str) -> Mapping[Hashable, float]:
    """The shares of a basis's time that each shape has, on the rank that computes longest."""
    seconds: defaultdict[Hashable, float] = defaultdict(float)
    for node, cost, took in costs_of(prediction, prediction.busiest):
        if cost.basis == basis:
            seconds[_shape(node)] += took
    total = sum(seconds.values())
    return {shape: one / total for shape, one in seconds.items() if total}


def _shape(node: Node) -> Hashable:
    """What nodes have in common whose costs are wrong in the same way."""
    if not isinstance(node, Kernel):
        return node.name, len(node.members), node.sent
    return node.kind, node.dtype, node.shape or node.name
