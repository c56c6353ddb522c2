"""Asynchronous tensor parallelism: what becomes of a gather and its products, as plain nodes."""

import pytest

from distlab import Device, Network
from distlab_predict import micro_pipelined
from distlab_predict.costs import Costs
from distlab_predict.nodes import FETCH, PRODUCT, Call, Kernel, Recording
from distlab_predict.timeline import timeline_of

PARTS = 8
ROWS, COLUMNS, INNER = 8 * 4096, 2048, 8192
SHARD = ROWS // PARTS * INNER * 2
BY_ROWS = 2 * ROWS * (INNER + COLUMNS)
WEIGHT = 2 * INNER * COLUMNS


def call(name):
    return Call((), "tensor", name, tuple(range(PARTS)), (SHARD,))


def product():
    flops = 2 * ROWS * COLUMNS * INNER
    shape = (1, ROWS, COLUMNS, INNER)
    return Kernel((), "mm", flops, BY_ROWS + WEIGHT, False, PRODUCT, shape, "bfloat16")


def seconds(nodes):
    """How long these nodes take on one of eight H100."""
    recording = Recording(0, nodes, [(0, len(nodes))], {}, "")
    costs = Costs(Network.named("H100 hosts", hosts=[8]), Device.named("H100"))
    (times,) = timeline_of([recording], costs).times
    return max(end for _, end in times)


def kinds(nodes):
    return [node.name for node in nodes]


def test_parts_are_fetched_while_others_are_multiplied():
    nodes = micro_pipelined.gathered(0, (), call("all_gather"), [(product(), BY_ROWS)])
    assert kinds(nodes)[:4] == ["copy", "mm", FETCH, "mm"]
    assert kinds(nodes).count(FETCH) == PARTS - 1
    products = [node for node in nodes if node.name == "mm"]
    assert len(products) == PARTS
    assert sum(node.flops for node in products) == product().flops
    assert products[0].shape == (1, ROWS // PARTS, COLUMNS, INNER)
    # the weight is read for each part
    assert sum(node.num_bytes for node in products) == BY_ROWS + PARTS * WEIGHT


def test_a_gather_in_parts_takes_about_as_long_as_its_longer_half():
    plain = [call("all_gather"), Kernel((0,), *vars_of(product()))]
    apart = [seconds(plain[:1]), seconds([product()])]
    pipelined = micro_pipelined.gathered(0, (), call("all_gather"), [(product(), BY_ROWS)])
    assert seconds(plain) == pytest.approx(sum(apart))
    assert max(apart) < seconds(pipelined) < 0.9 * sum(apart)


def vars_of(kernel):
    """The fields of a kernel but what it waits for."""
    _, *others = vars(kernel).values()
    return others


def test_several_products_of_a_part_follow_its_fetch():
    products = [(product(), BY_ROWS)] * 3
    nodes = micro_pipelined.gathered(5, (4,), call("all_gather"), products)
    assert kinds(nodes)[:9] == ["copy", "mm", "mm", "mm", FETCH, "mm", "mm", "mm", FETCH]
    assert nodes[0].after == (4,)
    second_fetch = nodes[8]
    # the fetch before it, and the products of the last part but one: it is on their stream
    assert second_fetch.after == (8, 9)


def test_parts_of_a_result_are_fetched_while_others_are_multiplied():
    nodes = micro_pipelined.scattered(0, (), call("reduce_scatter"), product(), BY_ROWS)
    assert kinds(nodes)[:3] == ["mm", FETCH, "mm"]
    assert kinds(nodes)[-2:] == ["mm", "sum"]
    assert nodes[-1].num_bytes == (PARTS + 1) * SHARD
    plain = [product(), Call((0,), *vars_of(call("reduce_scatter")))]
    assert seconds(nodes) < 0.9 * seconds(plain)
