"""Stages of a pipeline are found in the reference, and are not taken for replicas."""

from dataclasses import replace

import numpy as np
import pytest

from distlab.comparison.judging.judge import judge_ranks
from distlab.comparison.judging.matching import names_in_reference
from distlab.comparison.judging.wholes import World
from distlab.comparison.records import (
    Piece,
    RankRecord,
    SeenForward,
    SeenParameter,
    SeenStep,
    Sketch,
)

LAYERS = 4
ONES = np.ones(4)


def parameter(value, gradient=None):
    sketch = None if gradient is None else Sketch(np.array(gradient), 4)
    return SeenParameter((4,), Piece(0, 3, 4, 4), Sketch(np.array(value), 4), sketch)


def gradient_of(layer):
    return np.random.default_rng(layer).normal(size=4)


def stage(rank, size, layers, factor=1.0):
    """A rank with some layers that all begin with ones; their gradients differ."""
    initial = {}
    stepped = {}
    for number, layer in enumerate(layers):
        gradient = factor * gradient_of(layer)
        initial[f"{number}.weight"] = parameter(ONES)
        stepped[f"{number}.weight"] = parameter(ONES - 0.1 * gradient, gradient)
    rows = (b"row",) if rank == 0 else ()
    return RankRecord(
        rank,
        size,
        initial=initial,
        steps=[SeenStep(None, "SGD", (0.1,), stepped)],
        forwards=[SeenForward(0, True, rows, None)],
        model_parallel=size > 1,
    )


@pytest.mark.parametrize("factor", [1.0, 4.0])
@pytest.mark.parametrize("size", [2, 4])
def test_copies_of_a_layer_are_told_apart_by_their_gradients(size, factor):
    """Also where the gradients are too large."""
    reference = World([stage(0, 1, range(LAYERS))])
    each = LAYERS // size
    for rank in range(size):
        layers = range(rank * each, (rank + 1) * each)
        names = names_in_reference(stage(rank, size, layers, factor), reference)
        expected = {f"{n}.weight": f"{layer}.weight" for n, layer in enumerate(layers)}
        assert {
            f"{n}.weight": names.get(f"{n}.weight", f"{n}.weight") for n in range(each)
        } == expected


def test_stages_are_no_replicas():
    """Ranks that have activations for rows, and layers that all begin alike."""
    assert judge_ranks([stage(rank, 4, [rank]) for rank in range(4)]).findings == []


def test_replicas_of_a_stage_are_compared():
    """Two pipelines of two stages: the second stages drift apart."""
    ranks = [stage(0, 4, [0]), stage(1, 4, [1]), stage(2, 4, [0]), stage(3, 4, [2])]
    for rank in (1, 3):
        ranks[rank].initial["1.bias"] = parameter(2 * ONES)
    ranks[2] = replace(ranks[2], forwards=ranks[0].forwards)
    (finding,) = judge_ranks(ranks).findings
    assert finding.parameters == ("0.weight of stage 1",)
