"""Predicted kernels of a compiled module beside those that torch.compile really makes, on a CPU."""

import pytest
import torch
from torch import nn
from torch._inductor.async_compile import AsyncCompile
from torch._inductor.fx_passes import post_grad
from torch._inductor.graph import GraphLowering
from torch._inductor.utils import fresh_cache

from distlab_course.layers import FeedForward
from distlab_course.permuted import places_of, spread
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
    """The bytes of each kernel that inductor writes itself, by graph.

    It adds to products as it would for a GPU, where the sum becomes a part of the next kernel. For
    a CPU that has no instructions for bfloat16, the product adds it. What it writes is not compiled
    and does nothing, because nobody reads a result.
    """
    monkeypatch.setattr(post_grad, "is_gpu", lambda device_type: True)
    found = []
    lower = GraphLowering.codegen

    def noted(self):
        code = lower(self)
        nodes = [one for one in self.scheduler.nodes if not one.is_extern()]
        found.append([node.get_read_write_buffers_sizes() for node in nodes])
        return code

    monkeypatch.setattr(GraphLowering, "codegen", noted)
    monkeypatch.setattr(AsyncCompile, "cpp_pybinding", lambda *_: lambda *tensors: None)
    return found


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


class Spread(nn.Module):
    """Eight rows for each token, as for its experts."""

    def __init__(self):
        super().__init__()
        self.norm = nn.RMSNorm(WIDTH)
        self.first = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, tokens, order, places):
        return self.first(spread(self.norm(tokens), order, places))


def of_experts():
    order = torch.arange(8 * TOKENS).flip(0)
    tokens = torch.ones(TOKENS, WIDTH, dtype=torch.bfloat16, requires_grad=True)
    return Spread().bfloat16(), tokens, order, places_of(order)


def test_the_sum_of_a_token_s_gradients_is_computed_once_and_written(graphs):
    """Two kernels of the norm's backward pass read it, and one of them computes it."""
    model, *values = of_experts()
    with fresh_cache():
        result = torch.compile(model)(*values)
        result.backward(torch.ones_like(result))
    _, real = graphs
    kernels = [kernel.num_bytes for kernel in step(compiled(of_experts)) if kernel.kind == BYTES]
    statistics = 8 * WIDTH  # bytes, of the norm's weight
    forward, *backward = [size for size in kernels if size > statistics]
    assert sorted(backward) == pytest.approx(sorted(real), rel=0.01)
    rows = 8 * TOKENS * WIDTH * 2
    assert rows < forward < max(real) < 1.5 * rows
    assert min(real) < rows / 2
