"""Torch's operators that are a collective and its products, in programs that call them."""

import dataclasses
import functools
from collections import Counter

import pytest

import distlab
from distlab import Device, Network
from distlab_predict.nodes import FETCH, UNKNOWN, Kernel
from tests.cluster.predict.test_micro_pipelined import products

RANKS = 8
ROWS = 32768
WIDTH = 8192


def program(rank, world_size, how):
    """Two products of what is gathered, and one that is scattered."""
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.distributed import _functional_collectives as collectives

    group = dist.group.WORLD
    name = group.group_name
    symmetric = torch.ops.symm_mem
    eight = torch.float8_e4m3fn

    def plain(part, weights, back):
        whole = collectives.wait_tensor(collectives.all_gather_tensor(part, 0, group))
        results = [whole @ weight for weight in weights]
        sums = collectives.reduce_scatter_tensor(results[0] @ back, "sum", 0, group)
        return collectives.wait_tensor(sums)

    def in_bfloat16(part, weights, back):
        _, results = symmetric.fused_all_gather_matmul(part, weights, 0, name)
        return symmetric.fused_matmul_reduce_scatter(results[0], back, "sum", 0, name)

    def columns(weight):
        return weight.to(eight).t().contiguous().t()

    def in_float8(part, weights, back):
        one = torch.ones(())
        weights = [columns(weight) for weight in weights]
        none = [None, None]
        made = [torch.bfloat16] * 2
        fast = [True, True]
        _, results = symmetric.fused_all_gather_scaled_matmul(
            part.to(eight), weights, one, [one, one], 0, name, none, none, made, fast
        )
        rows = results[0].to(eight)
        shape = [ROWS, WIDTH]
        return symmetric.fused_scaled_matmul_reduce_scatter(
            rows, columns(back), one, one, "sum", 0, 0, name, shape, out_dtype=torch.bfloat16
        )

    class Layers(nn.Module):
        def forward(self, part):
            weights = [part.new_zeros(WIDTH, 2 * WIDTH) for _ in range(2)]
            back = part.new_zeros(2 * WIDTH, WIDTH)
            ways = {"plain": plain, "bfloat16": in_bfloat16, "float8": in_float8}
            return ways[how](part, weights, back)

    Layers()(torch.zeros(ROWS // world_size, WIDTH, dtype=torch.bfloat16))


@functools.cache
def predicted(how):
    return on_a_host(functools.partial(program, how=how))


def on_a_host(program, compiled=False):
    network = Network.named("H100 hosts", hosts=[RANKS])
    return distlab.predict(program, RANKS, network, Device.named("H100"), compiled=compiled)


def flops(prediction):
    nodes = prediction.recordings[0].nodes
    return sum(node.flops for node in nodes if isinstance(node, Kernel))


@pytest.mark.parametrize("how", ["bfloat16", "float8"])
def test_they_compute_what_products_and_collectives_do_and_wait_less(how):
    plain = predicted("plain")
    found = predicted(how)
    nodes = found.recordings[0].nodes
    names = Counter(node.name for node in nodes)
    assert names[FETCH] == 2 * (RANKS - 1)
    assert names["all_gather"] == names["reduce_scatter"] == 0
    assert flops(found) == flops(plain)
    assert found.exposed < 0.5 * plain.exposed
    assert all(node.kind != UNKNOWN for node in nodes if isinstance(node, Kernel))


def gathered(rank, world_size):
    """What the compiler makes of the gather of `products`, called by hand."""
    import torch
    import torch.distributed as dist
    from torch import nn

    class Layer(nn.Module):
        def forward(self, part):
            name = dist.group.WORLD.group_name
            weight = torch.zeros(1024, 1024)
            return torch.ops.symm_mem.fused_all_gather_matmul(part, [weight], 0, name)

    Layer()(torch.zeros(1024 // world_size, 1024))


def pipeline_of(prediction):
    """The nodes of a pipeline, from its first copy to its last product."""
    nodes = prediction.recordings[0].nodes
    places = [place for place, node in enumerate(nodes) if node.name == FETCH]
    own = nodes[places[0] - 2 : places[-1] + 2]
    return [dataclasses.replace(node, after=(), line="", host=0.0) for node in own]


def test_a_call_has_the_nodes_that_the_compiler_makes():
    made = on_a_host(functools.partial(products, gathers="rows"), compiled=True)
    assert pipeline_of(on_a_host(gathered)) == pipeline_of(made)
