"""The pipeline of lab 63 gives the gradients of one process, in both orders of its calls."""

import pytest
import torch

from distlab_course import staircase
from distlab_course.llama import Llama, Size

TINY = Size(width=32, layers=4, heads=4, hidden=64, kv_heads=4, vocabulary=64)
SMALL = {"size": TINY, "stages": 2, "microbatches": 3, "length": 8, "dtype": torch.float32}


def gradients_of(rank, world_size, step):
    stage = staircase.train(rank, world_size, step=step, **SMALL)
    return {name: parameter.grad for name, parameter in stage.model.named_parameters()}


def of_one_process():
    """The gradients of all stages, from the sequences of both copies at once."""
    parts = []
    for stage in range(2):
        torch.manual_seed(stage)
        parts.append(Llama(TINY, stage, 2))
    tokens = torch.cat([staircase.tokens_of(copy, TINY, 3, 8) for copy in range(2)])
    scores = parts[1](parts[0](tokens[:, :-1]))
    loss = torch.nn.functional.cross_entropy(scores.flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()
    return [{name: p.grad for name, p in part.named_parameters()} for part in parts]


@pytest.mark.parametrize("step", [staircase.found, staircase.mended])
def test_every_stage_has_the_gradients_of_one_process(cluster, step):
    expected = of_one_process()
    for rank, gradients in enumerate(cluster.run(gradients_of, step)):
        for name, gradient in expected[rank // 2].items():
            torch.testing.assert_close(gradients[name], gradient)
