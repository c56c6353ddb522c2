"""Trainings of a small network on ranks that are not there, as what was seen of them.

They are computed here, in float32 and in one process, so rounding is real; each fault is an
argument. The rows are inputs of a network of two layers, with the mean of squares as its loss.
"""

import hashlib
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from distlab.comparison.records import (
    Piece,
    RankRecord,
    SeenBackward,
    SeenDropout,
    SeenForward,
    SeenParameter,
    SeenStep,
    Sketch,
)
from distlab.wire.source import Line

FORWARD = Line(7, "loss = F.mse_loss(model(x), y)", "train")
BACKWARD = Line(8, "loss.backward()", "train")
STEP = Line(9, "optimizer.step()", "train")
SHAPES = {"0.weight": (8, 4), "0.bias": (8,), "2.weight": (1, 8), "2.bias": (1,)}


def same_part(rank, size, rows, step):
    """The rows of a rank: every size-th of all."""
    return np.arange(rows)[rank::size]


def mean_of(gradients):
    """What averages gradients: every rank gets the mean."""
    names = gradients[0]
    mean = {name: sum(one[name] for one in gradients) / len(gradients) for name in names}
    return [{name: value.astype(np.float32) for name, value in mean.items()} for _ in gradients]


@dataclass(frozen=True)
class Training:
    """How a program trains; the fields are what programs do in different ways.

    Attributes:
        rows: of a batch.
        steps: how many.
        seed: of the rows and of the parameters.
        passes: backward passes for each step.
        optimizer: "SGD" or "Adam".
        rate: the learning rate for (size, step).
        rate_of_rank: the learning rate for (rank, step), instead of `rate`, on several ranks.
        decay: the weight decay for a size.
        part: the rows of (rank, size, rows, step).
        scale: of the loss, for (rank, size, rows of the rank, all rows).
        average: of the ranks' gradients, each a dict.
        begin: what (rank, size, parameters) begin with.
        after: what (rank, size, step, gradients) does to the gradients before the step.
        forward: fields of SeenForward that are others, for (rank, size, step, pass).
        average_values: whether the values are averaged after each step.
        hidden_average: whether the optimizer averages, so that its gradients are the ranks' own.
        same_rows: whether all steps have the same rows.
        other_rows: the seed of the rows, if it is not that of all.
        data_steps: for how many steps there are rows, if not for `steps`.
        sharded: whether each rank keeps a part of each parameter.
        detailed: whether the ranks' own gradients are seen.
        dropout: a state for (rank, step), or None.
        targets_of_rank_0: whether every rank takes the targets of rank 0's rows.
        detaches: whether half of the first layer's gradient is lost where there are several ranks.
        perturbed: a number, if the numbers are changed by one unit of rounding.
        grain: that unit.
        key_bias: whether there is a bias whose gradient is 0, but for rounding.
        record: fields of RankRecord, on every rank.
    """

    rows: int = 16
    steps: int = 3
    seed: int = 0
    passes: int = 1
    optimizer: str = "SGD"
    rate: Callable = lambda size, step: 0.1
    rate_of_rank: Callable | None = None
    decay: Callable = lambda size: 0.0
    part: Callable = same_part
    scale: Callable = lambda rank, size, own, total: 1.0
    average: Callable = mean_of
    begin: Callable = lambda rank, size, parameters: parameters
    after: Callable = lambda rank, size, step, gradients: gradients
    forward: Callable = lambda rank, size, step, number: {}
    average_values: bool = False
    hidden_average: bool = False
    same_rows: bool = False
    other_rows: int | None = None
    data_steps: int | None = None
    sharded: bool = False
    detailed: bool = False
    dropout: Callable | None = None
    targets_of_rank_0: bool = False
    detaches: bool = False
    perturbed: int | None = None
    grain: float = 1.2e-7
    key_bias: bool = False
    record: dict = field(default_factory=dict)

    def on(self, size):
        """What was seen of it on so many ranks."""
        return Ranks(self, size).run()

    def reference(self):
        """What was seen of it in one process, without faults that need ranks."""
        return self.on(1)

    def shaken(self):
        """What was seen of it in one process with changed numbers, twice."""
        return [replace(self, perturbed=number).on(1) for number in (1, 2)]


class Ranks:
    """The ranks of one world, which train."""

    def __init__(self, training, size):
        self.training = training
        self.size = size
        self._draw_rows()
        numbers = np.random.default_rng(training.seed + 1)
        begin = {}
        for name, shape in SHAPES.items():
            begin[name] = (0.5 * numbers.normal(size=shape)).astype(np.float32)
        if training.key_bias:
            begin["key.bias"] = np.ones(6, np.float32)
        self.parameters = []
        self.records = []
        self.moments = [{} for _ in range(size)]
        for rank in range(size):
            copied = {name: value.copy() for name, value in begin.items()}
            self.parameters.append(training.begin(rank, size, copied))
            record = RankRecord(rank, size, **training.record)
            record.initial = self._seen(rank, self.parameters[rank])
            self.records.append(record)
        if training.perturbed is not None:
            self.noise = np.random.default_rng(100 + training.perturbed)
            for name, value in self.parameters[0].items():
                self.parameters[0][name] = self._shake(value)

    def _draw_rows(self):
        training = self.training
        seed = training.seed if training.other_rows is None else training.other_rows
        numbers = np.random.default_rng(seed)
        size = (training.data_steps or training.steps, training.rows)
        self.inputs = numbers.normal(size=(*size, 4)).astype(np.float32)
        self.targets = numbers.normal(size=(*size, 1)).astype(np.float32)
        if training.same_rows:
            self.inputs[1:] = self.inputs[:1]
            self.targets[1:] = self.targets[:1]

    def _shake(self, value):
        if self.training.perturbed is None:
            return value
        signs = self.noise.choice([-1.0, 1.0], size=value.shape)
        return (value * (1 + signs * self.training.grain)).astype(np.float32)

    def run(self):
        for step in range(self.training.steps):
            own = [self._backward(rank, step) for rank in range(self.size)]
            averaged = self.training.average(own)
            for rank in range(self.size):
                gradients = self.training.after(rank, self.size, step, averaged[rank])
                self._step(rank, step, gradients, own[rank])
            if self.training.average_values:
                self._average_values()
        return self.records

    def _average_values(self):
        (mean, *_) = mean_of(self.parameters)
        self.parameters = [dict(mean) for _ in self.parameters]

    def _backward(self, rank, step):
        """The rank's own gradient of a step, and what was seen of its passes."""
        training = self.training
        rows = training.part(rank, self.size, training.rows, step)
        total = {name: np.zeros_like(value) for name, value in self.parameters[rank].items()}
        for number, part in enumerate(np.array_split(np.asarray(rows), training.passes)):
            inputs = self.inputs[step][part]
            scale = training.scale(rank, self.size, len(rows), training.rows) / training.passes
            parameters = self.parameters[rank]
            targets = self.targets[step][part]
            if training.targets_of_rank_0:
                targets = self.targets[step][part - rank]
            loss, gradients = loss_and_gradients(
                parameters, self._shake(inputs), targets, np.float32(scale)
            )
            if training.detaches and self.size > 1:
                gradients["0.weight"][:4] = 0
            for name, gradient in gradients.items():
                total[name] = total[name] + gradient
            prints = tuple(hashlib.blake2b(row.tobytes(), digest_size=8).digest() for row in inputs)
            seen = SeenForward(step, True, prints, FORWARD)
            seen = replace(seen, **training.forward(rank, self.size, step, number))
            self.records[rank].forwards.append(seen)
            self.records[rank].backwards.append(SeenBackward(step, loss, None, BACKWARD))
            if training.dropout is not None:
                state = training.dropout(rank, step)
                self.records[rank].dropouts.append(SeenDropout(step, state, FORWARD))
        return total

    def _step(self, rank, step, gradients, own):
        training = self.training
        rate = np.float32(training.rate(self.size, step))
        if training.rate_of_rank is not None and self.size > 1:
            rate = np.float32(training.rate_of_rank(rank, step))
        for name, gradient in gradients.items():
            change = gradient
            if training.optimizer == "Adam":
                first, second = self.moments[rank].get(name, (0.0, 0.0))
                first = 0.9 * first + 0.1 * gradient
                second = 0.999 * second + 0.001 * gradient**2
                self.moments[rank][name] = first, second
                scaled = first / (1 - 0.9 ** (step + 1))
                change = scaled / (np.sqrt(second / (1 - 0.999 ** (step + 1))) + 1e-8)
            change = change + training.decay(self.size) * self.parameters[rank][name]
            value = self.parameters[rank][name] - rate * change
            self.parameters[rank][name] = value.astype(np.float32)
        if training.hidden_average:
            gradients = own
        parameters = self._seen(rank, self.parameters[rank], gradients, own)
        seen = SeenStep(STEP, training.optimizer, (float(rate),), parameters)
        self.records[rank].steps.append(seen)

    def _seen(self, rank, values, gradients=None, own=None):
        seen = {}
        for name, value in values.items():
            size = value.size
            piece = Piece(0, size - 1, size, size)
            keep = np.ones(size, bool)
            if self.training.sharded and self.size > 1:
                keep = np.arange(size) * self.size // size == rank
                held = np.flatnonzero(keep)
                piece = Piece(-1, -1, 0, size)
                if len(held):
                    piece = Piece(int(held[0]), int(held[-1]), len(held), size)
            gradient = None if gradients is None else sketch(gradients[name], keep)
            own_gradient = None
            if own is not None and self.training.detailed:
                own_gradient = sketch(own[name], keep)
            seen[name] = SeenParameter(
                value.shape, piece, sketch(value, keep), gradient, own_gradient
            )
        return seen


def sketch(value, keep=None):
    """The sketch of a small tensor, or of a part of it."""
    flat = value.astype(np.float64).ravel()
    if keep is not None:
        flat = np.where(keep, flat, 0.0)
    return Sketch(flat, flat.size)


def loss_and_gradients(parameters, inputs, targets, scale):
    """The mean of squares, and its gradients."""
    hidden = np.tanh(inputs @ parameters["0.weight"].T + parameters["0.bias"])
    outputs = hidden @ parameters["2.weight"].T + parameters["2.bias"]
    away = outputs - targets
    loss = float(scale * np.mean(away**2))
    of_outputs = (scale * np.float32(2 / max(len(inputs), 1)) * away).astype(np.float32)
    of_hidden = (of_outputs @ parameters["2.weight"]) * (1 - hidden**2)
    gradients = {
        "0.weight": of_hidden.T @ inputs,
        "0.bias": of_hidden.sum(0),
        "2.weight": of_outputs.T @ hidden,
        "2.bias": of_outputs.sum(0),
    }
    if "key.bias" in parameters:
        # numbers that cancel, in another order each time
        order = np.random.default_rng(zlib.crc32(inputs.tobytes()))
        gradients["key.bias"] = np.stack([_cancelled(order) for _ in range(6)])
    return loss, {name: value.astype(np.float32) for name, value in gradients.items()}


def _cancelled(order):
    """The rounding that is left of numbers whose sum is 0."""
    numbers = order.normal(size=8).astype(np.float32)
    numbers = np.concatenate([numbers, -numbers])
    return order.permutation(numbers).cumsum(dtype=np.float32)[-1]
