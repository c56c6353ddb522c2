"""The course's pretraining step whose products add up gradients: on real ranks, and predicted."""

import dataclasses
import functools
from collections import Counter

import pytest
import torch

import distlab
from distlab_course.engine import TORCH, Engine
from distlab_course.pretraining import train
from distlab_course.sizes import Experts, Latent, Size
from distlab_predict.nodes import BYTES, Kernel
from tests.cluster.predict.filled_models import gradients_of_train

CLUSTER = {"n": 4, "timeout": 60, "preload": ["torch.distributed.fsdp"]}
DENSE = Size(64, 2, 4, 128, 4, 256)
EXPERTS = dataclasses.replace(DENSE, experts=Experts(4, 2, 48, shared=32, dense=1))
NETWORK = distlab.Network("5 us", "1 GB/s")
ADDS = Engine(adds_in_products=True)
APART = Engine(experts_apart=True)
LATENT = dataclasses.replace(DENSE, latent=Latent(32, 48, 16, 16, 32))
ONCE = Engine(casts_once=True)
LONG = Engine(casts_once=True, gathers_again=True, recomputes_long=True)
AGAIN = {
    "engine": Engine(gathers_again=True),
    "float8": "gathered",
    "tensor": 2,
    "recompute": "none",
    "steps": 2,
}
WHOLE = {"microbatches": 2, "reshard": False}


@pytest.mark.parametrize(
    ("size", "options"),
    [
        (DENSE, WHOLE),
        (DENSE, {"pipeline": 2, "tensor": 2}),
        (DENSE, WHOLE | {"tensor": 2, "recompute": "full"}),
        (EXPERTS, WHOLE | {"expert": 2}),
        (EXPERTS, {"expert": 2, "pipeline": 2, "dispatch": "ranks", "microbatches": 4}),
        (DENSE, WHOLE | {"float8": "gathered"}),
        (DENSE, {"float8": "gathered", "pipeline": 2, "tensor": 2, "steps": 2}),
        (DENSE, {"float8": "yes", "pipeline": 2, "stages": 2, "recompute": "none"}),
        (EXPERTS, WHOLE | {"float8": "gathered", "expert": 4, "tensor": 2, "steps": 2}),
        (EXPERTS, WHOLE | {"float8": "gathered", "expert": 2, "engine": APART}),
        (DENSE, AGAIN | {"pipeline": 2}),
        (DENSE, AGAIN | {"microbatches": 4, "reshard": False}),
        (LATENT, AGAIN | {"microbatches": 2, "reshard": False, "engine": LONG}),
        (DENSE, WHOLE | {"float8": "gathered", "engine": ONCE}),
        (EXPERTS, WHOLE | {"float8": "yes", "expert": 2, "engine": ONCE, "recompute": "full"}),
    ],
    ids=[
        "whole",
        "pipeline",
        "tensor",
        "experts",
        "experts in a pipeline",
        "float8",
        "float8 in a pipeline",
        "float8, cast by each pass",
        "experts in float8",
        "experts in float8, apart",
        "gathered again in a pipeline",
        "one sequence gathered again",
        "queries, keys and values computed again",
        "cast once",
        "cast once, beside experts",
    ],
)
def test_gradients_are_those_that_autograd_adds_up(cluster, size, options):
    """Of the last step; float8 also has the same scales."""
    found = []
    for adds in (False, True):
        engine = dataclasses.replace(options.get("engine", TORCH), adds_in_products=adds)
        run = functools.partial(gradients_of_train, size=size, **options | {"engine": engine})
        found.append(cluster.run(run))
    for usual, added in zip(*found, strict=True):
        assert set(added) == set(usual)
        for name, gradient in added.items():
            assert gradient.norm() > 0
            torch.testing.assert_close(gradient, usual[name], rtol=1e-4, atol=1e-6, msg=name)


MICROBATCHES = 4


def kernels(size, **options):
    """The kernels of a predicted step, and the recording."""
    usual = {"microbatches": MICROBATCHES, "batch": 2 * MICROBATCHES, "length": 64, "steps": 1}
    usual |= {"recompute": "none", "reduce_dtype": torch.bfloat16, "reshard": False}
    program = functools.partial(train, size=size, **usual | options)
    device = distlab.Device.named("H100")
    (recording, *_) = distlab.predict(program, 4, NETWORK, device).recordings
    nodes = recording.nodes[slice(*recording.steps[-1])]
    return [node for node in nodes if isinstance(node, Kernel)], recording


@pytest.mark.parametrize(
    ("size", "options", "name", "products"),
    [
        (DENSE, {}, "addmm_", 2 * 7 + 1),
        (DENSE, {"float8": "gathered"}, "scaled_mm_add_", 2 * 7),
        (DENSE, {"float8": "gathered", "tensor": 2, "pipeline": 2}, "scaled_mm_add_", 7),
        (EXPERTS, {"expert": 2}, "grouped_mm_add_", 2),
        (EXPERTS, {"expert": 2, "float8": "gathered"}, "scaled_grouped_mm_add_", 2),
    ],
)
def test_from_the_second_micro_batch_on_products_add_and_no_kernels(size, options, name, products):
    usual, _ = kernels(size, **options)
    added, _ = kernels(size, engine=ADDS, **options)
    counts, of_usual = (Counter(kernel.name for kernel in some) for some in (added, usual))
    assert counts[name] == (MICROBATCHES - 1) * products
    assert name not in of_usual
    others = {key: of_usual[key] - counts[key] for key in of_usual | counts}
    sums = others.pop("add_")
    assert sums == sum(counts[key] for key in counts if key.endswith(("mm_", "mm_add_")))
    for product in ("mm", "_scaled_mm", "_grouped_mm", "_scaled_grouped_mm"):
        sums -= others.pop(product, 0)
    assert sums == 0
    flops = [sum(kernel.flops for kernel in some) for some in (added, usual)]
    assert flops[0] == flops[1]
    # all else is the same, but for what makes weights in float8
    missing = {key for key, count in others.items() if count > 0}
    assert bool(missing) == ("float8" in options)
    assert missing <= {"clone"} or name == "scaled_grouped_mm_add_"


def test_weights_in_float8_are_transposed_once_in_a_step_and_kept():
    layers = 2 * 7
    options = {"float8": "gathered", "recompute": "none"}
    found = {}
    for adds in (False, True):
        some, recording = kernels(DENSE, engine=Engine(adds_in_products=adds), **options)
        found[adds] = sum(kernel.name == "clone" for kernel in some), sum(recording.peak.values())
    assert found[False][0] - found[True][0] == layers * (MICROBATCHES - 1)
    numbers = 2 * (4 * 64 * 64 + 3 * 64 * 128)
    assert found[True][1] - found[False][1] == pytest.approx(numbers, abs=numbers / 2)


def test_experts_cast_their_weights_once_in_a_step():
    """To multiply them forward and backward; the matrices w13 and w2 of one layer."""
    casts = {}
    for adds in (False, True):
        some, _ = kernels(
            EXPERTS, expert=2, float8="gathered", engine=Engine(adds_in_products=adds)
        )
        casts[adds] = sum(kernel.name == "amax" for kernel in some)
    assert casts[False] - casts[True] == 2 * 2 * (MICROBATCHES - 1)


def test_where_parameters_are_gathered_for_each_pass_nothing_else_is_kept():
    options = {"float8": "gathered", "expert": 2, "pipeline": 2, "reshard": True}
    counts = []
    for adds in (False, True):
        some, _ = kernels(EXPERTS, engine=Engine(adds_in_products=adds), **options)
        counts.append(Counter(kernel.name for kernel in some))
    usual, added = counts
    assert added["scaled_mm_add_"] > 0
    assert added["clone"] == usual["clone"]
    assert added["amax"] == usual["amax"]


def test_experts_apart_have_a_product_and_a_cast_each_and_wait_for_no_more_numbers():
    """A rank has two of four experts in one layer, which multiply w13 and w2 in four passes."""
    options = {"expert": 2, "float8": "gathered"}
    together, one = kernels(EXPERTS, engine=ADDS, **options)
    engine = dataclasses.replace(ADDS, experts_apart=True)
    apart, other = kernels(EXPERTS, engine=engine, **options)
    counts, of_apart = (Counter(kernel.name for kernel in some) for some in (together, apart))
    products = 2 * MICROBATCHES
    assert counts["_scaled_grouped_mm"] == 2 * products + 2
    assert of_apart["_scaled_grouped_mm"] == 0
    names = ("_scaled_mm", "scaled_mm_add_", "cast_both_ways")
    assert [of_apart[name] - counts[name] for name in names] == [
        2 * (2 * products + 2),
        2 * (products - 2),
        2 * 2 * products,  # of both experts: rows, and gradients
    ]
    assert {node.kind for node in apart if node.name == "cast_both_ways"} == {BYTES}
    flops = [sum(kernel.flops for kernel in some) for some in (together, apart)]
    assert flops[0] == flops[1]
    assert len(one.waits) == len(other.waits)
