"""Plans for training Llama 70B on 512 devices: what lab 63 tries, and what its check judges by.

A plan is predicted at two depths, and continued to 80 blocks. Runs on the notebook's kernel, but
for `_step`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

from distlab import Device, Link, Network
from distlab.arguments import one_of
from distlab.errors import ArgumentError
from distlab_course.llama import SIZES

DEVICES = 512
LENGTH = 8192  # tokens of a sequence
TOKENS = 1.4e12  # of the whole training
SEQUENCES = 256  # of all devices in a step: with more, the model would learn less from each
MEMORY = 80e9  # bytes of a device
DAYS = 53  # for all tokens
MARGIN = 0.05  # nearer to a limit than that, a prediction cannot decide
UNSEEN = 1.1  # what a device needs, over what is predicted: lab 63, section 6
TOO_CLOSE = "too close to call: measure"
# of an H100, in lab 63, section 6
EFFICIENCY = 0.523
CONTENTION = 16 / 132
SPREAD = 0.01


@dataclass(frozen=True)
class Plan:
    """What a plan takes."""

    seconds: float  # of a step
    num_bytes: float  # of a device's memory, with what predictions do not see

    @property
    def days(self) -> float:
        """Days for all tokens."""
        steps = TOKENS / (SEQUENCES * LENGTH)
        return steps * self.seconds / 86_400

    @property
    def fits(self) -> bool | None:
        """Whether a device has the memory; None if that is too close to call."""
        return _is_within(self.num_bytes, MEMORY)

    @property
    def in_time(self) -> bool | None:
        """Whether the days are enough; None if that is too close to call."""
        return _is_within(self.days, DAYS)

    def __str__(self) -> str:
        gigabytes = self.num_bytes / 1e9
        memory = {True: "fits", False: "does not fit", None: TOO_CLOSE}[self.fits]
        time = {True: "in time", False: "too late", None: TOO_CLOSE}[self.in_time]
        return (
            f"{self.seconds:.2f} s a step, {self.days:.1f} days ({time}), "
            f"{gigabytes:.0f} GB ({memory})"
        )


def _is_within(value: float, limit: float) -> bool | None:
    """Whether a value is below a limit, or None if it is too close to it."""
    if abs(value / limit - 1) < MARGIN:
        return None
    return value < limit


def plan(tensor: int = 1, pipeline: int = 1, stages: int = 1, recompute: str = "none") -> Plan:
    """Predict a plan; a plan that was predicted before takes no time.

    Runs on: the notebook's kernel.

    Args:
        tensor, pipeline: sizes of these dimensions of the mesh, up to 8 and up to 4; FSDP has the
            rest.
        stages: of each rank of a pipeline, 1 or 2.
        recompute: "none", "op" or "full", as for `pretraining.train`.

    Raises:
        ArgumentError: there is no such plan.
    """
    from distlab import predict  # not for predict's own process, which also imports this file

    _check(tensor, pipeline, stages, recompute)
    step = partial(
        _step,
        tensor=tensor,
        pipeline=pipeline,
        stages=stages,
        batch=_batch(tensor, pipeline),
        recompute=recompute,
    )
    depths = _depths(pipeline * stages)
    cases = predict.sweep(step, [DEVICES], _hosts(), _device(), depth=depths)
    seconds = []
    num_bytes = []
    for case in cases:
        if case.prediction is None:
            raise ArgumentError(case.why)
        seconds.append(case.prediction.seconds)
        num_bytes.append(_held(case.prediction.memory))
    return Plan(
        seconds=_continued(depths, seconds), num_bytes=UNSEEN * _continued(depths, num_bytes)
    )


def _check(tensor: int, pipeline: int, stages: int, recompute: str) -> None:
    """Refuse a plan that does not exist."""
    one_of("tensor", tensor, (1, 2, 4, 8), "These divide the 8 heads of keys.")
    one_of("pipeline", pipeline, (1, 2, 4))
    stages_allowed: tuple[int, ...] = (1,)
    if pipeline > 1:
        stages_allowed = (1, 2)
    one_of("stages", stages, stages_allowed, "Only a rank of a pipeline has more than one.")
    one_of("recompute", recompute, ("none", "op", "full"))
    if _batch(tensor, pipeline) < pipeline:
        each = SEQUENCES * tensor / DEVICES
        raise ArgumentError(
            f"Of {SEQUENCES} sequences, a micro-batch would have {each:g}. It needs one or more."
        )


def _batch(tensor: int, pipeline: int) -> int:
    """The sequences in a step of each rank of FSDP."""
    return SEQUENCES * tensor * pipeline // DEVICES


def _depths(stages: int) -> list[int]:
    """Two numbers of blocks that a model of so many stages is predicted with."""
    if stages == 1:
        return [2, 4]
    return [stages, 2 * stages]


def _hosts() -> Network:
    """Hosts of 8 devices each."""
    return Network(
        hosts=[8] * (DEVICES // 8),
        inside=Link("1 us", "450 GB/s"),
        between=Link("5 us", "400 GB/s"),
    )


def _device() -> Device:
    """An H100."""
    return Device(
        "989 TFLOP/s",
        memory_bandwidth="2.4 TB/s",
        efficiency=EFFICIENCY,
        contention=CONTENTION,
        spread=SPREAD,
    )


def _step(
    rank: int,
    world_size: int,
    depth: int,
    tensor: int,
    pipeline: int,
    stages: int,
    batch: int,
    recompute: str,
) -> None:
    """A step of the model with `depth` blocks; runs in predict's process."""
    from distlab_course.pretraining import train

    train(
        rank,
        world_size,
        size=replace(SIZES["70B"], layers=depth),
        tensor=tensor,
        pipeline=pipeline,
        stages=stages,
        batch=batch,
        length=LENGTH,
        recompute=recompute,
        steps=1,
    )


def _held(memory: Mapping[str, float]) -> float:
    """Bytes at the peak, with Adam's averages, which a first step makes at its end."""
    return sum(memory.values()) + 2 * memory["parameters"]


def _continued(depths: list[int], values: list[float]) -> float:
    """What all blocks need, each as much as the next, from the values at two depths."""
    few_blocks, more_blocks = depths
    few, more = values
    further_blocks = SIZES["70B"].layers - few_blocks
    return few + further_blocks * (more - few) / (more_blocks - few_blocks)
