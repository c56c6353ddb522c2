"""Random right trainings are the same as one process; each random single fault is found."""

from dataclasses import replace

import numpy as np
import pytest

from distlab.comparison.findings import Cause
from distlab.comparison.judging.judge import judge
from tests.unit.comparison.training import Training, mean_of

SEEDS = range(24)


def drawn(seed):
    """A right training, and on how many ranks."""
    numbers = np.random.default_rng(seed)
    size = int(numbers.choice([2, 3, 4, 8]))
    each = int(numbers.integers(2, 6))
    optimizer = str(numbers.choice(["SGD", "Adam"]))
    rate = float(numbers.choice([0.3, 0.1, 0.01, 1e-3]))
    is_clipped = bool(numbers.integers(2))
    order = numbers.permutation(size * each)
    right = Training(
        rows=size * each,
        steps=int(numbers.integers(2, 7)),
        seed=seed,
        passes=int(numbers.choice([1, 2])),
        optimizer=optimizer,
        rate=lambda size, step: rate / (1 + step),
        part=lambda rank, size, rows, step: order[rank * rows // size : (rank + 1) * rows // size],
        sharded=bool(numbers.integers(2)),
        key_bias=bool(numbers.integers(2)),
        after=clipped if is_clipped else unchanged,
        decay=lambda size: 0.01,
    )
    if right.passes == 2:  # both have as many rows
        right = replace(right, rows=2 * right.rows, part=split_evenly)
    return right, size


def split_evenly(rank, size, rows, step):
    return np.arange(rows)[rank * rows // size : (rank + 1) * rows // size]


def unchanged(rank, size, step, gradients):
    return gradients


def clipped(rank, size, step, gradients):
    """By the norm of all."""
    norm = sum(float((value.astype(np.float64) ** 2).sum()) for value in gradients.values()) ** 0.5
    factor = np.float32(min(1.0, 0.3 / norm))
    return {name: factor * value for name, value in gradients.items()}


def findings(right, wrong, size):
    return judge(right.reference(), right.shaken(), wrong.on(size)).findings


@pytest.mark.parametrize("seed", SEEDS)
def test_a_right_training_is_the_same(seed):
    right, size = drawn(seed)
    assert findings(right, right, size) == []


@pytest.mark.parametrize("seed", SEEDS)
def test_a_factor_is_found_and_named(seed):
    right, size = drawn(seed)
    right = replace(right, after=unchanged)  # clipping may hide it
    factor, meaning = [(size, "ranks"), (1 / size, "1 / ranks")][seed % 2]
    wrong = replace(right, scale=lambda rank, size, own, total: factor)
    (finding,) = findings(right, wrong, size)
    assert finding.cause is Cause.GRADIENT_FACTOR
    assert finding.factor == pytest.approx(factor)
    assert meaning in finding.meanings


@pytest.mark.parametrize("seed", SEEDS)
def test_a_factor_of_one_parameter_is_found(seed):
    right, size = drawn(seed)
    right = replace(right, after=unchanged)
    name = ["0.weight", "0.bias", "2.weight"][seed % 3]

    def twice(rank, size, step, gradients):
        return {**gradients, name: gradients[name] * np.float32(2)}

    (finding,) = findings(right, replace(right, after=twice), size)
    assert (finding.cause, finding.factor) == (Cause.GRADIENT_FACTOR, 2)
    assert finding.parameters == (name,)


@pytest.mark.parametrize("seed", SEEDS)
def test_gradients_that_nothing_averages_are_found(seed):
    right, size = drawn(seed)
    right = replace(right, sharded=False, after=unchanged)
    wrong = replace(right, average=lambda gradients: gradients)
    (finding,) = findings(right, wrong, size)
    assert finding.cause is Cause.NOT_AVERAGED
    assert "their mean is that of one process" in finding.details[0]


@pytest.mark.parametrize("rate", [1e-5, 1e-6])
def test_gradients_that_nothing_averages_are_found_if_steps_are_tiny(rate):
    wrong = Training(average=lambda gradients: gradients, rate=lambda size, step: rate)
    (finding,) = findings(wrong, wrong, 4)
    assert finding.cause is Cause.NOT_AVERAGED


def test_an_optimizer_that_averages_itself_is_right():
    """Gradients differ when it is called; values stay equal."""
    right = Training(hidden_average=True)
    assert findings(right, right, 4) == []
    slow = replace(right, rate=lambda size, step: 1e-5)
    assert findings(slow, slow, 4) == []


@pytest.mark.parametrize("seed", SEEDS)
def test_a_skipped_average_is_found_in_its_step(seed):
    right, size = drawn(seed)
    right = replace(right, sharded=False, after=unchanged)
    calls = []

    def average(gradients):
        calls.append(gradients)
        return gradients if len(calls) == right.steps else mean_of(gradients)

    (finding,) = findings(right, replace(right, average=average), size)
    assert (finding.cause, finding.step) == (Cause.NOT_AVERAGED, right.steps - 1)


@pytest.mark.parametrize("seed", SEEDS)
def test_another_learning_rate_is_found(seed):
    right, size = drawn(seed)
    rate = right.rate
    wrong = replace(right, rate=lambda size, step: rate(size, step) * (size if size > 1 else 1))
    (finding,) = findings(right, wrong, size)
    assert (finding.cause, finding.step) == (Cause.STEP_FACTOR, 0)
    assert finding.factor == pytest.approx(size, rel=2e-3)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_row_that_is_used_twice_is_found(seed):
    right, size = drawn(seed)
    part = right.part

    def repeated(rank, size, rows, step):
        mine = np.array(part(rank, size, rows, step))
        if rank == size - 1 and step == right.steps - 1:
            mine[0] = mine[-1]
        return mine

    (finding,) = findings(right, replace(right, part=repeated), size)
    assert (finding.cause, finding.step) == (Cause.ROWS_REPEATED, right.steps - 1)
    assert "is used twice and row" in finding.sentence
    assert finding.sentence.endswith("is never used.")


@pytest.mark.parametrize("seed", SEEDS)
def test_a_rank_that_changes_its_values_alone_is_found(seed):
    right, size = drawn(seed)
    right = replace(right, sharded=False, optimizer="SGD")
    after = right.after

    def alone(rank, size, step, gradients):
        found = after(rank, size, step, gradients)
        factor = np.float32(1.01 if rank == size - 1 and step == 1 else 1)
        return {name: factor * value for name, value in found.items()}

    (finding,) = findings(right, replace(right, after=alone), size)
    assert finding.cause is Cause.REPLICAS_DIFFER
