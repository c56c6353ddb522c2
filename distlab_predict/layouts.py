"""A layout of `predict.plan`: a choice of arguments, and the numbers of its predicted step.

Made by planner.py, read by plans.py. Runs on the notebook's kernel. Only numbers are kept, since
the recordings of some hundred layouts would fill the memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from distlab_predict.prediction import Prediction

MARGIN = 0.05  # of time and of memory: nearer than that, predictions cannot decide
Memory = Mapping[str, float]  # bytes at the peak by what they are


@dataclass(frozen=True)
class Step:
    """The numbers of a predicted step.

    Attributes:
        seconds: how long it takes.
        computing, exposed, launches, idle: its parts, in seconds, of the rank that computes
            longest.
        flops: of that rank, without those that are repeated.
        memory: bytes at the peak by what they are, of the rank that takes most.
        needed: bytes without which some rank cannot run; its allocator may hold more.
        limit: bytes that a device has; None if that is not known.
        peak_flops: FLOP/s of the device at its peak.
        tokens: of all ranks together; None if that was not said.
    """

    seconds: float
    computing: float
    exposed: float
    launches: float
    idle: float
    flops: float
    memory: Memory
    needed: float
    limit: float | None
    peak_flops: float
    tokens: int | None = None

    @property
    def num_bytes(self) -> float:
        """The memory at its peak."""
        return sum(self.memory.values())

    @property
    def fits(self) -> bool:
        """Whether the device has as much memory; also where its size is not known."""
        return self.limit is None or self.needed <= self.limit

    @property
    def is_near_limit(self) -> bool:
        """Whether the memory is so near to what the device has that only a measurement can tell."""
        return self.limit is not None and abs(self.needed / self.limit - 1) < MARGIN

    @property
    def mfu(self) -> float:
        """The share of the device's FLOP/s that goes into the model."""
        return self.flops / self.seconds / self.peak_flops

    @property
    def cost(self) -> float:
        """Seconds of a token; of a step, if tokens are not known. The best layout has the least."""
        if self.tokens is None:
            return self.seconds
        return self.seconds / self.tokens


@dataclass(frozen=True)
class Layout:
    """A choice of arguments, with its predicted step, or why there is none.

    Attributes:
        ranks: how many.
        choice: the arguments of the program, by name.
        step: None where the layout was refused or left out.
        why: it was refused or left out; "" where there is a step.
        is_left_out: whether it was not tried, because a rule says that it cannot be the best.
    """

    ranks: int
    choice: Mapping[str, Any]
    step: Step | None
    why: str = ""
    is_left_out: bool = False

    @property
    def name(self) -> str:
        """The choice in words: "tensor=8, recompute='full'"."""
        return words_of(self.choice)

    @property
    def fits(self) -> bool:
        """Whether it was predicted, and its memory is not known to be too much."""
        return self.step is not None and self.step.fits

    @property
    def rate(self) -> float:
        """Tokens a second of each rank; steps a second, if tokens are not known; 0 without a step.

        The best layout has the most.
        """
        if self.step is None:
            return 0.0
        if self.step.tokens is None:
            return 1 / self.step.seconds
        return self.step.tokens / self.ranks / self.step.seconds


def words_of(choice: Mapping[str, Any]) -> str:
    """Arguments in words: "tensor=8, recompute='full'"."""
    return ", ".join(f"{name}={value!r}" for name, value in choice.items())


# --- the numbers of predictions ---


def step_of(prediction: Prediction) -> Step:
    """The numbers of a prediction."""
    return Step(
        seconds=prediction.seconds,
        computing=prediction.computing,
        exposed=prediction.exposed,
        launches=prediction.launches,
        idle=prediction.idle,
        flops=prediction.flops,
        memory=prediction.memory,
        needed=prediction.needed,
        limit=prediction.device.memory,
        peak_flops=prediction.device.flops,
        tokens=prediction.tokens,
    )


def continued_step(few: Prediction, more: Prediction, layers: float) -> Step:
    """The numbers of a deeper model, each of whose further layers needs as much as the next.

    Args:
        few: of a model with few layers.
        more: of one with more layers.
        layers: how many times as far the deeper one is from `few` as `more` is.
    """
    first = step_of(few)
    second = step_of(more)
    memory, needed = _continued_memory(few, more, layers)
    return replace(
        first,
        seconds=_continued(first.seconds, second.seconds, layers),
        computing=_continued(first.computing, second.computing, layers),
        exposed=_continued(first.exposed, second.exposed, layers),
        launches=_continued(first.launches, second.launches, layers),
        idle=_continued(first.idle, second.idle, layers),
        flops=_continued(first.flops, second.flops, layers),
        memory=memory,
        needed=needed,
    )


def _continued_memory(few: Prediction, more: Prediction, layers: float) -> tuple[Memory, float]:
    """The memory of the rank that takes most in the deeper model, which may be another one there.

    Returns:
        its bytes by what they are, and the most bytes without which some rank cannot run.
    """
    found: list[Memory] = []
    needed: list[float] = []
    for own_few, own_more in zip(few.uses, more.uses, strict=True):
        memory = {}
        for kind in dict.fromkeys([*own_few.sizes, *own_more.sizes]):
            sizes = (own_few.sizes.get(kind, 0), own_more.sizes.get(kind, 0))
            memory[kind] = _continued(*sizes, layers)
        found.append(memory)
        needed.append(_continued(own_few.needed, own_more.needed, layers))
    return max(found, key=lambda one: sum(one.values())), max(needed)


def _continued(few: float, more: float, layers: float) -> float:
    """A number of a deeper model; what shrinks with each layer ends at nothing."""
    return max(0.0, few + layers * (more - few))
