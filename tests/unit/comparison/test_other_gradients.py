"""Gradients that no factor explains: what step() got, and what the ranks' backward passes gave."""

from dataclasses import replace

import numpy as np
import pytest

from distlab.comparison.findings import Cause
from distlab.comparison.verdict import compared
from tests.unit.comparison.training import Training, mean_of

RIGHT = Training(steps=2, detailed=True)


def first_finding(wrong, right=RIGHT):
    """The first thing that is said of a training on four ranks."""
    found = compared(right.reference(), right.shaken(), {4: wrong.on(4)})
    assert not found
    return found.findings[0]


def size_of(gradient):
    return np.sqrt(sum((value**2).sum() for value in gradient.values()))


def times(factor, gradient):
    return {name: np.float32(factor) * value for name, value in gradient.items()}


def clipped(gradients):
    """Every rank clips its own gradient, and the mean is that of what is left."""
    return mean_of([times(0.01 / size_of(one), one) for one in gradients])


def scaled(gradients):
    return mean_of([times(rank + 1, one) for rank, one in enumerate(gradients)])


def without_rank_3(gradients):
    return mean_of([*gradients[:3], times(0, gradients[3])])


def that_of_rank_2(gradients):
    return [gradients[2]] * len(gradients)


def turned(gradients):
    """Two parameters of one size are copied back in another order."""
    mean = mean_of(gradients)[0]
    mean["0.bias"], mean["2.weight"] = mean["2.weight"][0], mean["0.bias"][None]
    return [mean] * len(gradients)


@pytest.mark.parametrize(
    ("average", "words"),
    [
        (clipped, "every parameter, because each rank clips its own gradient before the average."),
        (scaled, "every parameter, because each rank scales its own gradient before the average."),
        (without_rank_3, "every parameter, because that of rank 3 is left out."),
        (that_of_rank_2, "every parameter, because every rank has that of rank 2 alone."),
        (turned, "because it is changed between backward() and step()."),
    ],
)
def test_a_gradient_that_is_changed_on_its_way(average, words):
    """The ranks' own gradients are right, and the sentence says what became of them."""
    first = first_finding(replace(RIGHT, average=average))
    assert first.cause is Cause.GRADIENT_DIFFERS
    assert first.sentence.endswith(words)


@pytest.mark.parametrize("optimizer", ["SGD", "Adam"])
def test_parts_that_each_rank_clips(optimizer):
    """Adam divides by the size of the gradient, so its steps do not show it."""

    def after(rank, size, step, gradients):
        return times(rank + 1 if size > 1 else 1, gradients)

    right = replace(RIGHT, sharded=True, optimizer=optimizer)
    first = first_finding(replace(right, after=after), right)
    assert first.sentence.endswith("because each rank clips or scales its own part.")
    assert "multiplied by 1 on rank 0, 2 on rank 1, 3 on rank 2, 4 on rank 3." in first.details[1]


def test_what_clipping_has_done_is_told():
    first = first_finding(replace(RIGHT, average=clipped))
    assert first.details[1] == "Each rank's own gradient is clipped to the norm 0.01."
    assert first.details[2].startswith("Before the average they are multiplied by ")
    assert first.details[2].endswith(" on ranks 0-3.")


def test_a_gradient_that_is_kept():
    """As if all ranks but rank 0 had left out zero_grad()."""
    before = {}

    def kept(rank, size, step, gradients):
        if step == 0 or size == 1:
            before[rank] = gradients
            return gradients
        return {name: value + 0.75 * before[rank][name] for name, value in gradients.items()}

    first = first_finding(replace(RIGHT, after=kept))
    assert first.sentence.endswith("because the gradient of step 0 is still in it.")
    assert "It is in it 0.75 times, as if 3 of 4 ranks had kept it." in first.details


def test_more_backward_passes_are_said():
    """Something happens to the gradient of two passes."""
    right = replace(RIGHT, passes=2)

    def turned_round(rank, size, step, gradients):
        return {name: value[::-1] if size > 1 else value for name, value in gradients.items()}

    first = first_finding(replace(right, after=turned_round), right)
    assert first.sentence.endswith(
        "because it is changed between its 2 backward passes and step()."
    )


def test_weights_that_nothing_shows():
    """Each rank divides by a number of its own, though all have as many rows."""
    wrong = replace(RIGHT, scale=lambda rank, size, own, total: 1 + rank if size > 1 else 1)
    first = first_finding(wrong)
    assert first.cause is Cause.UNEQUAL_PARTS
    assert first.sentence == (
        "The gradient is a mean of means over unequal parts: in step 0 the ranks' own gradients, "
        "times 0.25, 0.125, 0.0833 and 0.0625, add up to that of one process."
    )


def test_a_penalty_that_counts_otherwise():
    """Gradients are right but for a multiple of the parameters."""
    values = {}

    def begin(rank, size, parameters):
        values.update(parameters)
        return parameters

    def with_penalty(rank, size, step, gradients):
        if size == 1 or step > 0:
            return gradients
        return {name: value + np.float32(0.1) * values[name] for name, value in gradients.items()}

    first = first_finding(replace(RIGHT, begin=begin, after=with_penalty, detailed=False))
    assert first.sentence.endswith("because a penalty on the parameters counts otherwise.")
    assert first.details[-2] == "The difference is 0.1 times the parameters themselves."


def test_other_targets_of_the_same_rows():
    """The rows are those of one process, and the loss is not."""
    first = first_finding(replace(RIGHT, targets_of_rank_0=True))
    assert first.sentence == (
        "The gradient and the loss are others than in one process, from step 0 on, for every "
        "parameter, because the same rows give another loss."
    )


def test_a_part_without_a_gradient():
    """The loss is right, and the ranks' backward passes give less than its gradient."""
    first = first_finding(replace(RIGHT, detaches=True))
    assert first.sentence.endswith(
        "although the loss is the same, so a part of the loss carries no gradient."
    )
