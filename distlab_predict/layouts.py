"""A layout of `predict.plan`: a choice of arguments, and the numbers of its predicted step.

Made by planner.py, read by plans.py. Runs on the notebook's kernel. Only numbers are kept, since
the recordings of some hundred layouts would fill the memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
        computing, exposed, idle: its parts, in seconds, of the rank that computes longest.
        flops: of that rank, without those that are repeated.
        memory: bytes at the peak by what they are, of the rank that needs most.
        limit: bytes that a device has; None if that is not known.
        peak_flops: FLOP/s of the device at its peak.
        tokens: of all ranks together; None if that was not said.
    """

    seconds: float
    computing: float
    exposed: float
    idle: float
    flops: float
    memory: Memory
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
        return self.limit is None or self.num_bytes <= self.limit

    @property
    def is_near_limit(self) -> bool:
        """Whether the memory is so near to what the device has that only a measurement can tell."""
        return self.limit is not None and abs(self.num_bytes / self.limit - 1) < MARGIN

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
    return _step_with(prediction, max(_memories(prediction), key=_num_bytes))


def continued_step(few: Prediction, more: Prediction, layers: float) -> Step:
    """The numbers of a deeper model, each of whose further layers needs as much as the next.

    Args:
        few: of a model with few layers.
        more: of one with more layers.
        layers: how many times as far the deeper one is from `few` as `more` is.
    """
    first = step_of(few)
    second = step_of(more)
    memories = []
    # The rank that needs most may be another one in the deeper model.
    for own_few, own_more in zip(_memories(few), _memories(more), strict=True):
        kinds = dict.fromkeys([*own_few, *own_more])
        memory = {}
        for kind in kinds:
            memory[kind] = _continued(own_few.get(kind, 0), own_more.get(kind, 0), layers)
        memories.append(memory)
    return replace(
        first,
        seconds=_continued(first.seconds, second.seconds, layers),
        computing=_continued(first.computing, second.computing, layers),
        exposed=_continued(first.exposed, second.exposed, layers),
        idle=_continued(first.idle, second.idle, layers),
        flops=_continued(first.flops, second.flops, layers),
        memory=max(memories, key=_num_bytes),
    )


def _continued(few: float, more: float, layers: float) -> float:
    """A number of a deeper model; what shrinks with each layer ends at nothing."""
    return max(0.0, few + layers * (more - few))


def _step_with(prediction: Prediction, memory: Memory) -> Step:
    return Step(
        seconds=prediction.seconds,
        computing=prediction.computing,
        exposed=prediction.exposed,
        idle=prediction.idle,
        flops=prediction.flops,
        memory=memory,
        limit=prediction.device.memory,
        peak_flops=prediction.device.flops,
        tokens=prediction.tokens,
    )


def _memories(prediction: Prediction) -> Sequence[Memory]:
    """Bytes at the peak by what they are, of each recorded rank."""
    memories = []
    for recording in prediction.recordings:
        memories.append(replace(prediction, recordings=[recording]).memory)
    return memories


def _num_bytes(memory: Memory) -> float:
    return sum(memory.values())
