"""Plans for training Llama 70B on 512 devices: what lab 63 tries, and what its check judges by.

A plan is predicted at two depths, and continued to 80 blocks. Runs on the notebook's kernel.
"""

from dataclasses import dataclass, replace
from functools import partial

from distlab.arguments import one_of
from distlab_course.llama import SIZES

DEVICES, LENGTH, TOKENS = 512, 8192, 1.4e12
SEQUENCES = 256  # of all devices in a step: with more, the model would learn less from each
# bytes of a device; what a device needs, over what is predicted: lab 63, section 6
MEMORY, UNSEEN = 80e9, 1.13
EFFICIENCY, CONTENTION, SPREAD = 0.524, 16 / 132, 0.01  # of an H100 in lab 63, section 6


@dataclass(frozen=True)
class Plan:
    """What a plan takes: seconds of a step, and bytes of a device's memory, with what predictions
    do not see.
    """

    seconds: float
    num_bytes: float

    @property
    def days(self) -> float:
        """For all tokens."""
        return TOKENS / (SEQUENCES * LENGTH) * self.seconds / 86_400

    @property
    def fits(self) -> bool:
        return self.num_bytes <= MEMORY

    def __str__(self) -> str:
        fits = "fits" if self.fits else "does not fit"
        return f"{self.seconds:.2f} s a step, {self.days:.1f} days, {self.num_bytes / 1e9:.0f} GB: {fits}"


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
    from distlab import Device, Link, Network, predict
    from distlab.errors import ArgumentError

    one_of("tensor", tensor, (1, 2, 4, 8), "These divide the 8 heads of keys.")
    one_of("pipeline", pipeline, (1, 2, 4))
    one_of(
        "stages",
        stages,
        (1, 2) if pipeline > 1 else (1,),
        "Only a rank of a pipeline has more than one.",
    )
    one_of("recompute", recompute, ("none", "op", "full"))
    batch, parts = SEQUENCES * tensor * pipeline // DEVICES, pipeline * stages
    if batch < pipeline:
        each = SEQUENCES * tensor / DEVICES
        raise ArgumentError(
            f"Of {SEQUENCES} sequences, a micro-batch would have {each:g}. It needs one or more."
        )
    hosts = Network(
        hosts=[8] * (DEVICES // 8),
        inside=Link("1 us", "450 GB/s"),
        between=Link("5 us", "400 GB/s"),
    )
    slow = {"efficiency": EFFICIENCY, "contention": CONTENTION, "spread": SPREAD}
    device = Device("989 TFLOP/s", memory_bandwidth="2.4 TB/s", **slow)
    options = {
        "tensor": tensor,
        "pipeline": pipeline,
        "stages": stages,
        "batch": batch,
        "recompute": recompute,
    }
    depths = [2, 4] if parts == 1 else [parts, 2 * parts]
    found = predict.sweep(partial(_step, **options), [DEVICES], hosts, device, depth=depths)
    if failed := [case.why for case in found if case.prediction is None]:
        raise ArgumentError(failed[0])
    seconds, held = zip(
        *((case.prediction.seconds, _held(case.prediction)) for case in found), strict=True
    )
    return Plan(_continued(depths, seconds), UNSEEN * _continued(depths, held))


def _step(rank: int, world_size: int, depth: int, **options: object) -> None:
    from distlab_course.pretraining import train

    train(
        rank,
        world_size,
        size=replace(SIZES["70B"], layers=depth),
        length=LENGTH,
        steps=1,
        **options,
    )


def _held(prediction: object) -> float:
    """Bytes at the peak, with Adam's averages, which a first step makes at its end."""
    return sum(prediction.memory.values()) + 2 * prediction.memory["parameters"]


def _continued(depths: list[int], values: tuple[float, float]) -> float:
    """What all blocks need, each as much as the next."""
    few, more = values
    return few + (SIZES["70B"].layers - depths[0]) * (more - few) / (depths[1] - depths[0])
