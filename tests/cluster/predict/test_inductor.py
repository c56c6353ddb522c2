"""Predicted kernels of a compiled module beside those that torch.compile really makes, on a CPU."""

import pytest
import torch
from torch import nn
from torch._inductor.graph import GraphLowering
from torch._inductor.utils import fresh_cache

from distlab_course.layers import FeedForward
from distlab_predict.nodes import BYTES
from tests.unit.predict.noted import compiled, step

TOKENS = 512
WIDTH = 256


class Half(nn.Module):
    """The half of a Llama's block that works on each token by itself."""

    def __init__(self):
        super().__init__()
        self.norm = nn.RMSNorm(WIDTH)
        self.feed_forward = FeedForward(WIDTH, 2 * WIDTH)

    def forward(self, values):
        return values + self.feed_forward(self.norm(values))


def made():
    values = torch.ones(4, TOKENS // 4, WIDTH, dtype=torch.bfloat16, requires_grad=True)
    return Half().bfloat16(), values


@pytest.fixture
def graphs(monkeypatch):
    """The bytes of each kernel that inductor writes itself, by graph."""
    found = []
    lower = GraphLowering.codegen

    def noted(self):
        code = lower(self)
        nodes = [one for one in self.scheduler.nodes if not one.is_extern()]
        found.append([node.get_read_write_buffers_sizes() for node in nodes])
        return code

    monkeypatch.setattr(GraphLowering, "codegen", noted)
    return found


@pytest.mark.skipif(
    " " in torch.__file__, reason="torch's compiler cannot link from a folder with a space"
)
def test_kernels_are_those_that_the_compiler_makes(graphs):
    """As many, and their bytes within 15 %.

    Of a norm's sum over rows, the compiler writes the last cast in the same kernel.
    """
    model, values = made()
    with fresh_cache():
        result = torch.compile(model)(values)
        result.backward(torch.ones_like(result))
    real = sorted(size for graph in graphs for size in graph)
    assert len(graphs) == 2
    cast = 3 * WIDTH * 2
    predicted = [kernel.num_bytes for kernel in step(compiled(made)) if kernel.kind == BYTES]
    predicted = sorted(size for size in predicted if size != cast)
    assert predicted == pytest.approx(real, rel=0.15)
