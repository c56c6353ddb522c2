"""Asynchronous tensor parallelism in programs that ask for it as torch has it."""

import dataclasses
import functools
import json
from collections import Counter

import pytest

import distlab
from distlab import Device, Network
from distlab_course.pretraining import train
from distlab_course.sizes import SIZES, Size
from distlab_predict.nodes import FETCH, Call, Kernel
from tests.processes import python

TENSOR = 4
LAYERS = 2
SIZE = dataclasses.replace(SIZES["8B"], layers=LAYERS)


@functools.cache
def predicted(compiled=True, **options):
    """A step of two layers on eight GPUs, as of `train`; its blocks are compiled."""
    program = functools.partial(
        train,
        **{
            "size": SIZE,
            "tensor": TENSOR,
            "batch": 4,
            "length": 4096,
            "recompute": "full",
            "compiles": True,
            "steps": 1,
            "resumed": True,
            **options,
        },
    )
    network = Network.named("H100 hosts", hosts=[8])
    return distlab.predict(program, 8, network, Device.named("H100"), compiled=compiled)


def calls(prediction):
    """How often rank 0 calls what, in its group of tensor parallelism."""
    found = Counter()
    for node in prediction.recordings[0].nodes:
        if isinstance(node, Call) and len(node.members) == TENSOR:
            found[node.name] += 1
    return found


def flops(prediction):
    nodes = prediction.recordings[0].nodes
    return sum(node.flops for node in nodes if isinstance(node, Kernel))


@pytest.mark.parametrize("float8", ["no", "yes"])
def test_gathers_and_scatters_beside_products_become_fetches(float8):
    plain = predicted(float8=float8)
    quicker = predicted(float8=float8, async_tensor=True)
    before, after = calls(plain), calls(quicker)
    gathers = before["all_gather"] - after["all_gather"]
    scatters = before["reduce_scatter"] - after["reduce_scatter"]
    # attention and feed-forward: forward, again, and gradients of what was scattered
    assert gathers == 3 * 2 * LAYERS
    # forward, and again but for the last result of a block, which nobody needs there
    assert scatters == (2 + 1) * LAYERS
    assert after[FETCH] == (TENSOR - 1) * (gathers + scatters)
    assert flops(quicker) == pytest.approx(flops(plain), rel=1e-6)
    assert quicker.seconds < plain.seconds


def test_a_program_that_is_not_compiled_has_no_pipelines():
    plain = predicted(False, compiles=False)
    same = predicted(False, compiles=False, async_tensor=True)
    assert FETCH not in calls(same)
    assert same.seconds == plain.seconds


RANKS = 4
PLACES = 64
BLOCK = Size(1024, 1, 16, 4096, kv_heads=8, vocabulary=512)


SEQUENCES = (1, 2)


@pytest.fixture(scope="module")
def of_torch():
    """How many pipelines torch's compiler makes, by the number of sequences."""
    done = python("-m", "tests.cluster.predict.pipelines_of_torch", *map(str, SEQUENCES))
    assert done.returncode == 0, done.stderr
    return dict(zip(SEQUENCES, json.loads(done.stdout.splitlines()[-1]), strict=True))


@pytest.mark.parametrize("sequences", SEQUENCES)
def test_the_pipelines_are_those_that_the_compiler_makes(sequences, of_torch):
    """torch's own makes them of the same block, with operators that only GPUs have."""
    before, after = [
        calls(
            predicted(
                size=BLOCK,
                batch=sequences,
                length=PLACES,
                recompute="none",
                async_tensor=is_async,
            )
        )
        for is_async in (False, True)
    ]
    gathers, scatters = of_torch[sequences]
    assert before["all_gather"] - after["all_gather"] == gathers
    assert before["reduce_scatter"] - after["reduce_scatter"] == scatters


def products(rank, world_size, gathers):
    """A linear layer that gathers its input by hand: rows, what it transposes, or a sequence."""
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch._inductor import config
    from torch.distributed import _functional_collectives as collectives
    from torch.distributed._symmetric_memory import enable_symm_mem_for_group

    config._micro_pipeline_tp = True
    group = dist.group.WORLD
    enable_symm_mem_for_group(group.group_name)

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(1024, 1024))

        def forward(self, part):
            if gathers == "a sequence":
                return collectives.all_gather_tensor(part[None], 1, group) @ self.weight
            whole = collectives.all_gather_tensor(part, 0, group)
            return (whole.t() if gathers == "what it transposes" else whole) @ self.weight

    layer = Layer()
    optimizer = torch.optim.SGD(layer.parameters())
    result = torch.compile(layer)(torch.zeros(1024 // world_size, 1024))
    result.sum().backward()
    optimizer.step()


@pytest.mark.parametrize("gathers", ["rows", "what it transposes", "a sequence"])
def test_only_rows_can_be_multiplied_one_part_after_another(gathers):
    program = functools.partial(products, gathers=gathers)
    network = Network.named("H100 hosts", hosts=[8])
    prediction = distlab.predict(program, 8, network, Device.named("H100"), compiled=True)
    names = Counter(node.name for node in prediction.recordings[0].nodes)
    is_pipeline = gathers == "rows"
    assert names[FETCH] == (7 if is_pipeline else 0)
    assert names["all_gather"] == (0 if is_pipeline else 1)
