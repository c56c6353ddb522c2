"""Judging trainings that are computed in one process, right ones and wrong ones."""

from dataclasses import replace

import pytest

from distlab.comparison.findings import Cause
from distlab.comparison.verdict import compared, compared_ranks
from tests.unit.comparison.training import Training


def verdict(training, right=None, worlds=(4,)):
    """The comparison of a training with one process, which may do it in another way."""
    right = right or training
    ranks = {size: training.on(size) for size in worlds}
    return compared(right.reference(), right.shaken(), ranks)


@pytest.mark.parametrize("optimizer", ["SGD", "Adam"])
@pytest.mark.parametrize("sharded", [False, True])
def test_a_right_training_is_the_same(optimizer, sharded):
    found = verdict(Training(optimizer=optimizer, sharded=sharded), worlds=(2, 4))
    assert found.same, found
    assert bool(found)
    assert repr(found).startswith("The same as one process: 3 steps, 4 parameters. The relative ")


def test_a_loss_that_is_divided_by_ranks():
    wrong = Training(scale=lambda rank, size, own, total: 1 / size)
    found = verdict(wrong, worlds=(2, 4))
    assert not found
    first, *_ = found.findings
    assert first.cause is Cause.GRADIENT_FACTOR
    assert first.factor == 0.25
    assert first.world_size == 4
    assert repr(found).splitlines()[:2] == [
        "Not the same as one process, on 2 and on 4 ranks: the gradient is a multiple of",
        "the right one: 0.25 = 1 / ranks for every parameter (0.5 on 2 ranks).",
    ]


def test_nothing_averages():
    wrong = Training(average=lambda gradients: gradients)
    found = verdict(wrong)
    first, *others = found.findings
    assert first.cause is Cause.NOT_AVERAGED
    assert others == []
    assert first.sentence == ("In step 0 nothing averaged the gradients: each rank keeps its own.")


def test_ranks_are_compared_with_each_other():
    assert repr(compared_ranks(Training().on(4))) == "The ranks do the same: 3 steps, 4 parameters."
    wrong = replace(Training(), average=lambda gradients: gradients, detailed=True)
    first, *_ = compared_ranks(wrong.on(4)).findings
    assert first.cause is Cause.NOT_AVERAGED
