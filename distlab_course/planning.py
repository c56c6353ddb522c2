"""Plans for training Llama 70B on 512 devices: what lab 63 tries, and what its check judges by.

`distlab.predict.plan` predicts a plan with a few blocks, and continues it to 80. Runs on the
notebook's kernel, but for `_step`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from distlab import Device, Link, Network
from distlab.arguments import one_of
from distlab.errors import ArgumentError
from distlab_course.llama import SIZES

if TYPE_CHECKING:
    from distlab_predict.plans import Plan

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
# values of the arguments that there are
TENSOR = (1, 2, 4, 8)  # these divide the 8 heads of keys
PIPELINE = (1, 2, 4)
STAGES = (1, 2)
RECOMPUTE = ("none", "op", "full")


@dataclass(frozen=True)
class Training:
    """What a training with a plan takes."""

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


def plan(tensor: int = 1, pipeline: int = 1, stages: int = 1, recompute: str = "none") -> Training:
    """Predict the training with one plan; a plan that was predicted before takes no time.

    Runs on: the notebook's kernel.

    Args:
        tensor, pipeline: sizes of these dimensions of the mesh, up to 8 and up to 4; FSDP has the
            rest.
        stages: of each rank of a pipeline, 1 or 2.
        recompute: "none", "op" or "full", as for `pretraining.train`.

    Raises:
        ArgumentError: there is no such plan.
    """
    one_of("tensor", tensor, TENSOR, "These divide the 8 heads of keys.")
    one_of("pipeline", pipeline, PIPELINE)
    one_of("stages", stages, STAGES)
    one_of("recompute", recompute, RECOMPUTE)
    found = search([tensor], [pipeline], [stages], [recompute])
    (layout,) = found.layouts
    if layout.step is None:
        raise ArgumentError(layout.why)
    return Training(layout.step.seconds, UNSEEN * layout.step.num_bytes)


def search(
    tensor: Sequence[int] = (1,),
    pipeline: Sequence[int] = (1,),
    stages: Sequence[int] = (1,),
    recompute: Sequence[str] = ("none",),
    device: Device | None = None,
) -> Plan:
    """Search for the quickest plan that fits.

    Runs on: the notebook's kernel.

    Args:
        tensor, pipeline, stages, recompute: values to try, each as for `plan`.
        device: an H100 that was calibrated, which makes the result surer; None for its efficiency
            alone.
    """
    from distlab import predict  # not for predict's own process, which also imports this file

    return predict.plan(
        _step,
        DEVICES,
        _hosts(),
        replace(device or _device(), memory=MEMORY / UNSEEN),
        tokens=SEQUENCES * LENGTH,
        allowed=_allowed,
        depth="layers",
        period=_period,
        layers=[SIZES["70B"].layers],
        tensor=tensor,
        pipeline=pipeline,
        stages=stages,
        recompute=recompute,
    )


def _allowed(ranks: int, tensor: int, pipeline: int, stages: int, **_: Any) -> bool | str:
    """Whether there is such a plan, or why not."""
    if stages > 1 and pipeline == 1:
        return "Only a rank of a pipeline has more than one stage."
    if _batch(tensor, pipeline) < pipeline:
        each = SEQUENCES * tensor / ranks
        return f"Of {SEQUENCES} sequences, a micro-batch would have {each:g}. It needs one or more."
    return True


def _batch(tensor: int, pipeline: int) -> int:
    """The sequences in a step of each rank of FSDP."""
    return SEQUENCES * tensor * pipeline // DEVICES


def _period(ranks: int, pipeline: int, stages: int, **_: Any) -> int:
    """A block more for each stage changes no balance; two blocks, where there is one stage."""
    return max(2, pipeline * stages)


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
    layers: int,
    tensor: int,
    pipeline: int,
    stages: int,
    recompute: str,
) -> None:
    """Two steps of the model with so many blocks; runs in predict's process."""
    from distlab_course.pretraining import train

    train(
        rank,
        world_size,
        size=replace(SIZES["70B"], layers=layers),
        tensor=tensor,
        pipeline=pipeline,
        stages=stages,
        batch=_batch(tensor, pipeline),
        length=LENGTH,
        recompute=recompute,
        steps=2,
    )
