"""What was seen of a training program on one rank, as plain values.

Made on the ranks (watch.py) and read where a comparison is judged (judge.py). Runs on both sides;
needs numpy, and no torch.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from distlab.wire.source import Line

# of the smallest world: what they change, rounding may change
PERTURBED_RUNS = (1, 2)
MOST_SUMS = 4096  # of one sketch; a tensor of at most so many elements is kept whole


@dataclass(frozen=True)
class Sketch:
    """A tensor, or a rank's piece of one, as a short vector that depends linearly on it.

    Of a tensor with at most MOST_SUMS elements it has the elements. Of a larger one it has random
    sums: element i of the whole tensor, in row-major order, is added to sum i % MOST_SUMS with a
    sign that depends on i alone. So the sketches of the pieces of a tensor add up to the sketch of
    the tensor, the mean of sketches is the sketch of the mean, and the norm of the difference of
    two sketches is that of the tensors' difference to within a few percent.

    Source: M. Charikar, K. Chen, M. Farach-Colton, Finding frequent items in data streams, 2002;
    the buckets are positions, as the tensors' elements have no order of size.

    Attributes:
        sums: float64, of one dimension.
        elements: how many the whole tensor has.
    """

    sums: np.ndarray
    elements: int

    def __add__(self, other: Sketch) -> Sketch:
        return Sketch(self.sums + other.sums, self.elements)

    def __sub__(self, other: Sketch) -> Sketch:
        return Sketch(self.sums - other.sums, self.elements)

    def scaled(self, factor: float) -> Sketch:
        """The sketch of the tensor times a factor."""
        return Sketch(self.sums * factor, self.elements)

    def dot(self, other: Sketch) -> float:
        """The inner product of the two tensors, or an estimate of it."""
        return float(self.sums @ other.sums)

    @property
    def norm(self) -> float:
        """The Euclidean norm of the tensor, or an estimate; nan or inf where an element is."""
        return float(np.linalg.norm(self.sums))

    @property
    def is_whole(self) -> bool:
        """Whether it has the elements themselves."""
        return self.elements <= MOST_SUMS


@dataclass(frozen=True)
class Piece:
    """Which elements of a parameter a rank has.

    Two ranks with equal pieces hold the same elements: they are replicas of each other. A rank
    without an element (the parameter is sharded over more ranks than it has rows) has a piece of 0.

    Attributes:
        first, last: the smallest and the largest index of its elements, in the row-major order of
            the whole parameter; -1 for a piece of 0.
        elements: how many it has.
        whole: how many the parameter has.
    """

    first: int
    last: int
    elements: int
    whole: int


@dataclass(frozen=True)
class SeenParameter:
    """A parameter, or a rank's piece of one, at one step of an optimizer.

    Attributes:
        shape: of the whole parameter.
        piece: which elements this rank has.
        value: after the step; among the initial ones, before the first forward pass.
        gradient: when step() was called, so after clipping; None where it had none.
        own_gradient: the sum of what this rank's backward passes since the last step gave, before
            anything averaged it; None where it was not looked at (see WatchOptions.detailed), or
            where there was none. It is of the whole parameter, also where this rank has a piece.
        gradient_is_partial: whether the gradient is this rank's summand of one (a DTensor that is
            Partial) instead of a part, or the whole, of it.
    """

    shape: tuple[int, ...]
    piece: Piece
    value: Sketch
    gradient: Sketch | None = None
    own_gradient: Sketch | None = None
    gradient_is_partial: bool = False


@dataclass(frozen=True)
class SeenStep:
    """One step: all optimizers that stepped without a backward pass in between.

    Attributes:
        line: the learner's line that called step().
        optimizer: the class of the first optimizer, such as "SGD".
        learning_rates: of its groups.
        parameters: by name, see naming.py; those that the optimizers have.
        strangers: how many of them belong to no module that was called.
        others: the trainable parameters of called modules that no optimizer of this rank has
            stepped so far, by name, with their values before the step.
    """

    line: Line | None
    optimizer: str
    learning_rates: tuple[float, ...]
    parameters: dict[str, SeenParameter]
    strangers: int = 0
    others: dict[str, SeenParameter] = field(default_factory=dict)


@dataclass(frozen=True)
class SeenForward:
    """One call of an outermost module that has parameters.

    Attributes:
        step: how many steps came before.
        training: whether the module was in training mode.
        rows: of each row of its data (its first tensor that is no activation) a fingerprint of the
            content; empty if it has none.
        row_shape: of each of these rows.
        line: the learner's line that called it.
        wrapper: "DistributedDataParallel" where the call went through one; "" without one.
        bypassed: whether the module is wrapped in a DistributedDataParallel, but called past it.
        averages: False inside of no_sync(), where backward will average nothing.
        has_gradients: False inside of no_grad().
    """

    step: int
    training: bool
    rows: tuple[bytes, ...]
    line: Line | None
    wrapper: str = ""
    bypassed: bool = False
    averages: bool = True
    has_gradients: bool = True
    row_shape: tuple[int, ...] = ()


@dataclass(frozen=True)
class SeenBackward:
    """One backward pass.

    Attributes:
        step: how many steps came before.
        loss: the number that it began from; None if that is no single number.
        targets: how many targets the losses counted since the last backward pass, without those
            that are ignored; None where no cross entropy was computed.
        line: the learner's line that called it.
    """

    step: int
    loss: float | None
    targets: int | None
    line: Line | None


@dataclass(frozen=True)
class SeenDropout:
    """One dropout in training.

    Attributes:
        step: how many steps came before.
        state: a fingerprint of the random numbers' state before it drew.
        line: the learner's line that it was called from.
    """

    step: int
    state: bytes
    line: Line | None


@dataclass(frozen=True)
class SeenSeed:
    """A call of torch.manual_seed by the program."""

    seed: int
    line: Line | None


@dataclass(frozen=True)
class SeenSampler:
    """A pass over a DistributedSampler.

    Attributes:
        sampler: the number of the sampler on this rank, from 0.
        epoch: what set_epoch has set last, 0 at first.
        shuffles: whether it shuffles.
        rank, replicas: as the sampler has them.
        padded: how many samples it repeats, so that all ranks have as many.
        line: the learner's line that began the pass.
    """

    sampler: int
    epoch: int
    shuffles: bool
    rank: int
    replicas: int
    padded: int
    line: Line | None


@dataclass
class RankRecord:
    """What was seen of a program on one rank.

    Attributes:
        rank, world_size: in the world that it ran in.
        initial: the parameters before the first forward pass, by name.
        steps, forwards, backwards, dropouts, seeds, samplers: in order.
        local_statistics: names of the modules that normalise by their own rank's batch
            (BatchNorm in training that is no SyncBatchNorm).
        epsilon: the distance from 1 to the next number, of the coarsest floating type in which a
            module computed or a gradient travelled.
        compression: the name of a communication hook that changes gradients; "" without one.
        model_parallel: whether parameters are sharded over ranks, or activations travel between
            them: then ranks may well have the same rows.
        draws: lines that called a module in training which drew random numbers, but for dropout
            that was kept out (noise, or dropout in what torch.compile has made).
        unseen: what could not be looked at, as whole sentences.
    """

    rank: int
    world_size: int
    initial: dict[str, SeenParameter] = field(default_factory=dict)
    steps: list[SeenStep] = field(default_factory=list)
    forwards: list[SeenForward] = field(default_factory=list)
    backwards: list[SeenBackward] = field(default_factory=list)
    dropouts: list[SeenDropout] = field(default_factory=list)
    seeds: list[SeenSeed] = field(default_factory=list)
    samplers: list[SeenSampler] = field(default_factory=list)
    local_statistics: list[str] = field(default_factory=list)
    epsilon: float = float(np.finfo(np.float32).eps)
    compression: str = ""
    model_parallel: bool = False
    draws: list[Line | None] = field(default_factory=list)
    unseen: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class WatchOptions:
    """How a program is run and looked at.

    Attributes:
        seed: of the random numbers of rank 0; rank r begins with seed + r, as ranks that nobody
            has seeded draw different numbers, too.
        perturbation: None, or the number of a run whose parameters and rows are changed by one
            unit of rounding, at random: what that changes, rounding may change.
        detailed: whether to look at each rank's own gradients as well.
    """

    seed: int = 0
    perturbation: int | None = None
    detailed: bool = False
