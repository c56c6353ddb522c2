"""What a prediction of the course's pretraining step says of layers that keep less."""

import dataclasses
import functools
import itertools

import pytest
import torch

import distlab
from distlab_course.engine import TORCH, Engine
from distlab_course.pretraining import train
from distlab_course.sizes import Latent, Size
from distlab_predict.nodes import Call, Kernel

LAYERS = 3
LENGTH = 512
WIDTH = 64
MODULES = 2  # of a layer gather sequences: attention, and the feed-forward layer
DENSE = Size(WIDTH, LAYERS, 4, 128, kv_heads=2, vocabulary=256)
NETWORK = distlab.Network("5 us", "1 GB/s")
AGAIN = Engine(gathers_again=True)
ONE = {"batch": 1}  # sequence, whose places are rows


def recorded(engine, size=DENSE, **options):
    """A step of a rank with two ranks of tensor parallelism, and its nodes."""
    usual = {"tensor": 2, "batch": 2, "length": LENGTH, "steps": 1, "recompute": "none"}
    program = functools.partial(train, size=size, engine=engine, **usual | options)
    (recording, *_) = distlab.predict(program, 2, NETWORK, distlab.Device.named("H100")).recordings
    return recording, recording.nodes


def gathered(nodes, num_bytes):
    """Where sequences are gathered, by their bytes on a rank."""
    found = []
    for place, node in enumerate(nodes):
        if isinstance(node, Call) and node.name == "all_gather" and node.sent == (num_bytes,):
            found.append(place)
    return found


@pytest.mark.parametrize(
    ("options", "number"),
    [({}, 2), (ONE, 2), ({"float8": "gathered"}, 1), (ONE | {"float8": "yes"}, 1)],
)
def test_what_is_gathered_again_is_not_kept(options, number):
    """Neither are the other ranks' parts of what each module is given.

    Args:
        number: of bytes that a number has when it is sent.
    """
    one, nodes = recorded(TORCH, **options)
    other, again = recorded(AGAIN, **options)
    part = options.get("batch", 2) * LENGTH // 2 * WIDTH * number
    assert len(gathered(again, part)) - len(gathered(nodes, part)) == MODULES * LAYERS
    kept, less = (sum(recording.peak.values()) for recording in (one, other))
    # the first module that goes back has gathered again at the peak
    assert kept - less >= (MODULES * LAYERS - 2) * part


def test_gathering_again_begins_before_the_last_product_of_a_module_goes_back():
    """And the product that needs it waits, and none before."""
    _, nodes = recorded(AGAIN, **ONE)
    # behind it comes the embedding's gradient
    *_, gradient, again, _ = gathered(nodes, LENGTH // 2 * WIDTH * 2)
    assert again == gradient + 1
    behind = [
        node for node in nodes[again:] if isinstance(node, Kernel) and node.name.endswith("mm")
    ]
    assert gradient in behind[0].after
    assert again not in behind[0].after
    # of wo, each of two products; the first of values needs no input
    (first, *_) = [place for place, node in enumerate(behind) if again in node.after]
    assert first in (2, 3)


def added_until_awaited(nodes, place):
    """Products that add, behind a node and before the first that waits for it."""
    later = itertools.takewhile(lambda node: place not in node.after, nodes[place + 1 :])
    return sum(node.name == "scaled_mm_add_" for node in later)


def test_gradients_of_weights_are_computed_while_ranks_add_up_others():
    """Of the second micro-batch: in the first one, there is nothing to add to."""
    engine = Engine(adds_in_products=True, gathers_again=True)
    options = {"microbatches": 2, "reshard": False, "reduce_dtype": torch.bfloat16}
    _, nodes = recorded(engine, float8="gathered", **options)
    meanwhile = []
    for place, node in enumerate(nodes):
        if isinstance(node, Call) and node.name == "reduce_scatter":
            meanwhile.append(added_until_awaited(nodes, place))
    # queries, keys and values; gate and what it lets through
    assert sorted(filter(None, meanwhile)) == [2] * LAYERS + [3] * LAYERS


def products_again(nodes):
    """How many products are computed once more, and how often attention is."""
    names = [node.name for node in nodes if isinstance(node, Kernel) and node.again]
    return names.count("mm"), sum(name.startswith("_scaled_dot_product_") for name in names)


def test_latent_attention_makes_long_vectors_again_and_does_not_attend_again():
    """A layer makes queries of short vectors with one product, and keys and values with another."""
    latent = dataclasses.replace(DENSE, latent=Latent(32, 48, 16, 8, 24))
    one, nodes = recorded(TORCH, size=latent)
    other, again = recorded(Engine(recomputes_long=True), size=latent)
    assert products_again(nodes) == (0, 0)
    assert products_again(again) == (2 * LAYERS, 0)
    heads = 4 // 2
    numbers = heads * (2 * (16 + 8) + 24)  # of queries, keys and values for a token, on a rank
    kept, less = (sum(recording.peak.values()) for recording in (one, other))
    assert kept - less >= (LAYERS - 1) * 2 * LENGTH * numbers * 2


def test_the_first_blocks_are_computed_again():
    """A block has seven products, and no gradient needs the result of the last one."""
    _, nodes = recorded(Engine(recomputes_blocks=2), tensor=1)
    products, attention = products_again(nodes)
    assert (products, attention) == (2 * 6, 2)


def test_attention_repeats_no_keys_that_need_not_be():
    """Without, a token's queries have as many keys and values as are computed."""
    one, _ = recorded(TORCH)
    other, nodes = recorded(Engine(repeats_keys=False))
    shapes = {node.shape[1:3] for node in nodes if node.name.startswith("_scaled_dot_product_")}
    assert shapes == {(2, 1)}
    kept, less = (sum(recording.peak.values()) for recording in (one, other))
    assert kept - less >= (LAYERS - 1) * 2 * LENGTH * (2 - 1) * 2 * 16 * 2


def test_what_several_layers_are_given_is_cast_once_and_kept_in_float8():
    """In a layer: for queries, keys and values, their sum, the gate and its values, and the last.

    Backward, each product's gradient is cast as ever, and no input is cast again.
    """
    options = {"tensor": 1, "float8": "gathered"}
    one, nodes = recorded(TORCH, **options)
    other, once = recorded(Engine(casts_once=True), **options)
    layers, shared = 7, 4
    casts = [sum(node.name == "max" for node in some) for some in (nodes, once)]
    assert casts[0] - casts[1] == LAYERS * (2 * layers - shared)
    kept, less = (sum(recording.peak.values()) for recording in (one, other))
    inputs = 2 * LENGTH * WIDTH  # of attention, and of the feed-forward layer
    assert kept - less >= (LAYERS - 1) * 2 * inputs
