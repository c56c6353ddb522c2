"""Tokens that go once to each host and rank take as long as HybridEP's kernels do.

Published in github.com/deepseek-ai/DeepEP, docs/README_Hybrid-EP.md at 41cad94: 4,096 tokens of
7,168 numbers in bfloat16, 8 experts of each, 8 experts a rank, the best number of multiprocessors.
Its bandwidths count all that reaches a rank or a host, this one as well.
"""

from dataclasses import replace

import pytest

from distlab import Device, Network
from distlab_predict.costs import Costs
from distlab_predict.drawn import Drawn
from distlab_predict.nodes import Call

TOKENS, TOKEN = 4096, 7168 * 2
FREE = Device("1 FLOP/s")


def seconds(network, members, rows):
    """Of an all-to-all that takes so many rows to each of its ranks."""
    call = Call((), "group", "all_to_all", members, (round(rows) * TOKEN,) * len(members))
    return Costs(network, FREE).of(call, 0).seconds


@pytest.mark.parametrize(("ranks", "bandwidth"), [(16, 57.74e9), (32, 47.36e9), (64, 41.46e9)])
def test_a_dispatch_on_hosts_of_h100_takes_what_was_published(ranks, bandwidth):
    hosts = Drawn(8 * ranks, 8, each=64)
    each = Drawn(8 * ranks, 8, each=8)
    network = replace(Network.named("H100 hosts"), hosts=[8] * hosts.parts)
    to_hosts = seconds(network, tuple(range(0, ranks, 8)), hosts.reached() * TOKENS)
    in_host = seconds(network, tuple(range(8)), each.reached() * TOKENS * hosts.parts)
    published = hosts.reached() * hosts.parts * TOKENS * TOKEN / bandwidth
    assert to_hosts + in_host == pytest.approx(published, rel=0.15)
    # a row for each expert would take 1.2 times to twice as long
    of_experts = seconds(network, tuple(range(ranks)), 8 * TOKENS / ranks)
    assert of_experts > 1.15 * published


@pytest.mark.parametrize(
    ("machines", "ranks", "bandwidth"),
    [
        ("B200 hosts", 8, 734.95e9),
        ("GB200 NVL72", 8, 764.03e9),
        ("GB200 NVL72", 16, 706.95e9),
        ("GB200 NVL72", 32, 642.23e9),
    ],
)
def test_a_dispatch_by_nvlink_takes_what_was_published_of_its_kernel(machines, ranks, bandwidth):
    """Copies from its buffers and what launches it take a third of that again."""
    network = replace(Network.named(machines), hosts=[ranks])
    rows = Drawn(8 * ranks, 8, each=8).reached() * TOKENS
    published = ranks * rows * TOKEN / bandwidth
    assert seconds(network, tuple(range(ranks)), rows) == pytest.approx(published, rel=0.07)
