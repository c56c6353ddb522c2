"""The course's pretraining step on real ranks takes what is predicted.

But for one with a context, as torch's attention of a CPU cannot be shared.
"""

import functools
import inspect
import math
from collections import Counter
from dataclasses import replace

import pytest
from torch.optim.optimizer import register_optimizer_step_post_hook

import distlab
from distlab import simulated
from distlab_course import pretraining
from distlab_course.pretraining import train
from distlab_course.sizes import Experts, Size
from distlab_predict.drawn import Drawn

NETWORK, FREE = distlab.Network("5 us", "1 GB/s"), distlab.Device("1000000 PFLOP/s")
CLUSTER = {"n": 4, "timeout": 60, "network": NETWORK}
LAYERS = 4
SIZE = Size(64, LAYERS, 4, 128, 4, 256)
SMALL = functools.partial(train, size=SIZE, length=32)


def ends_of_steps(rank, world_size, **options):
    """When a rank's first step has ended, and its second, in virtual seconds."""
    ends = []
    note = register_optimizer_step_post_hook(
        lambda *_: ends.append(simulated.clock(rank, world_size))
    )
    SMALL(rank, world_size, steps=2, **options)
    note.remove()
    of_a_step = len(ends) // 2  # there is an optimizer for each stage
    return ends[of_a_step - 1], ends[-1]


def second_step(cluster, **options):
    """Virtual seconds of it on the ranks, from the end of the first to the end of the second."""
    ends = cluster.run(functools.partial(ends_of_steps, **options))
    first, second = (max(of_ranks) for of_ranks in zip(*ends, strict=True))
    return second - first


def test_a_sharded_step_takes_what_is_predicted(cluster):
    assert distlab.predict(SMALL, 4, NETWORK, FREE).seconds == pytest.approx(
        second_step(cluster), rel=1e-9
    )


def test_the_last_block_and_the_ends_of_a_model_are_gathered_once():
    """The other blocks are gathered again for the backward pass."""
    recording = distlab.predict(SMALL, 4, NETWORK, FREE).recordings[0]
    last_step = recording.nodes[slice(*recording.steps[-1])]
    gathers = sum(getattr(node, "name", "") == "all_gather" for node in last_step)
    assert gathers == 2 * (LAYERS - 1) + 1 + 1


@pytest.mark.parametrize(
    ("options", "least"),
    [
        ({"tensor": 2}, 0.99),
        ({"pipeline": 2, "batch": 4}, 0.9999),
        ({"pipeline": 2, "stages": 2, "batch": 4}, 0.9),
    ],
)
def test_a_step_on_a_mesh_takes_what_is_predicted_or_a_little_longer(cluster, options, least):
    """A simulated rank waits for messages; a predicted one runs ahead, as with GPUs.

    With fewer layers, what it waits for is more of its step.
    """
    options = {"size": replace(SIZE, layers=8), **options}
    no_latency = distlab.Network("1 ns", "1 GB/s")
    with cluster.network(no_latency):
        seconds = second_step(cluster, **options)
    predicted = distlab.predict(functools.partial(SMALL, **options), 4, no_latency, FREE).seconds
    assert least * seconds <= predicted <= 1.0001 * seconds


def test_ranks_that_share_sequences_gather_keys_and_values_as_few_as_there_are():
    """Two sequences of 16 places; two heads with keys and values, 16 numbers of two bytes."""
    few = functools.partial(SMALL, size=replace(SIZE, kv_heads=2), context=2, recompute="none")
    recording = distlab.predict(few, 4, NETWORK, FREE).recordings[0]
    calls = [
        node for node in recording.nodes[slice(*recording.steps[-1])] if hasattr(node, "members")
    ]
    of_contexts = [
        (node.name, node.sent[0])
        for node in calls
        if node.members == (0, 1) and node.name == "all_gather"
    ]
    keys_and_values = 2 * (2 * 16 * 2 * 16) * 2
    # of each block, forward and backward
    assert of_contexts == [("all_gather", keys_and_values)] * LAYERS * 2
    # all share them
    assert (
        sum(node.name == "reduce_scatter" and node.members == (0, 1, 2, 3) for node in calls)
        == LAYERS + 1
    )


def test_a_step_of_a_resumed_training_is_predicted_as_a_second_one():
    mixture = replace(SIZE, experts=Experts(4, 2, 64))
    program = functools.partial(SMALL, size=mixture, expert=2)
    second = distlab.predict(program, 4, NETWORK, FREE)
    resumed = distlab.predict(functools.partial(program, resumed=True, steps=1), 4, NETWORK, FREE)
    assert resumed.seconds == pytest.approx(second.seconds, rel=1e-9)
    assert resumed.memory == second.memory


def test_experts_of_a_layer_meet_their_tokens_by_four_all_to_alls():
    """Counts, tokens and their shares there, and results back; backward the last three again."""
    mixture = replace(SIZE, experts=Experts(4, 2, 64))
    program = functools.partial(SMALL, size=mixture, expert=4, recompute="none")
    recording = distlab.predict(program, 4, NETWORK, FREE).recordings[0]
    calls = [
        node.sent
        for node in recording.nodes[slice(*recording.steps[-1])]
        if getattr(node, "name", "") == "all_to_all"
    ]
    rows = 2 * 32 * 2 // 4  # to each rank
    counts, shares, tokens = 8, rows * 2, rows * 64 * 2  # bytes
    assert calls.count((counts,) * 4) == LAYERS
    assert calls.count((shares,) * 4) == 2 * LAYERS
    assert calls.count((tokens,) * 4) == 4 * LAYERS
    assert len(calls) == 7 * LAYERS


def all_to_alls(**options):
    """How often a predicted step sends so many bytes, by the ranks that exchange them."""
    mixture = replace(SIZE, layers=1, experts=Experts(16, 4, 48))
    program = functools.partial(SMALL, size=mixture, expert=4, recompute="none", **options)
    recording = distlab.predict(program, 4, NETWORK, FREE).recordings[0]
    calls = Counter(
        (node.members, node.sent)
        for node in recording.nodes[slice(*recording.steps[-1])]
        if getattr(node, "name", "") == "all_to_all"
    )
    return recording, calls


REACHED = Drawn(16, 4, each=4)  # a token is on 2.9 of 4 ranks, and on 2.0 of 2 hosts
OF_HOST = Drawn(16, 4, each=8)
TOKENS, WIDTH, BYTES = 2 * 32, 64, 2


def rows_to_first(drawn):
    """Rows of a rank's tokens for the first rank or host, which has one more if they are uneven."""
    return math.ceil(round(drawn.reached() * TOKENS * drawn.parts) / drawn.parts)


def test_tokens_go_once_to_each_rank_and_results_come_back_once():
    recording, calls = all_to_alls(dispatch="ranks")
    rows = rows_to_first(REACHED)
    counts, shares, tokens = (1 + 4) * 8, rows * 4 * BYTES, rows * WIDTH * BYTES
    everyone = (0, 1, 2, 3)
    assert calls == {
        (everyone, (counts,) * 4): 1,
        (everyone, (shares,) * 4): 2,
        (everyone, (tokens,) * 4): 4,
    }
    assert any("in 2.91 of 4 equal parts" in words for words in recording.assumed)


def test_tokens_go_once_to_each_host_which_forwards_them():
    _, calls = all_to_alls(dispatch="hosts", host=2)
    to_host = rows_to_first(OF_HOST)
    to_rank = 2 * rows_to_first(REACHED)  # of two hosts
    assert calls == {
        ((0, 2), ((1 + 2 * (1 + 4)) * 8,) * 2): 1,
        ((0, 1), ((1 + 4) * 8,) * 2): 1,
        ((0, 2), (to_host * 8 * BYTES,) * 2): 2,
        ((0, 1), (to_rank * 4 * BYTES,) * 2): 2,
        ((0, 2), (to_host * WIDTH * BYTES,) * 2): 4,
        ((0, 1), (to_rank * WIDTH * BYTES,) * 2): 4,
    }


@pytest.mark.parametrize("dispatch", ["experts", "ranks", "hosts"])
def test_however_tokens_are_sent_experts_compute_the_same_rows(dispatch):
    program = functools.partial(
        SMALL,
        size=replace(SIZE, layers=1, experts=Experts(16, 4, 48)),
        expert=4,
        dispatch=dispatch,
        host=2,
        recompute="none",
        steps=1,
        resumed=True,
    )
    for skew in (1.0, 1.5):
        recording = distlab.predict(program, 4, NETWORK, FREE, skew=skew).recordings[0]
        shapes = [node.shape for node in recording.nodes if getattr(node, "kind", "") == "grouped"]
        assert shapes[0] == (4, round(TOKENS * 4 * skew), 2 * 48, WIDTH)
        assert len(recording.waits) == 2  # for the counts of the router, and those of the way


def test_experts_in_float8_are_predicted_as_groups_in_float8():
    """Two products forward and four backward for each layer, of numbers of one byte."""
    mixture = replace(SIZE, experts=Experts(4, 2, 48))
    program = functools.partial(
        SMALL, size=mixture, expert=4, recompute="none", float8="yes", steps=1, resumed=True
    )
    recording = distlab.predict(program, 4, NETWORK, FREE, compiled=True).recordings[0]
    groups = [node for node in recording.nodes if getattr(node, "kind", "") == "grouped"]
    assert {node.dtype for node in groups} == {"float8_e4m3fn"}
    rows, width, hidden = 2 * 32 * 2, 64, 48  # of the one expert here
    there = (1, rows, 2 * hidden, width), (1, rows, width, hidden)
    back = (1, rows, width, 2 * hidden), (1, rows, hidden, width)
    of_weights = (1, 2 * hidden, width, rows), (1, width, hidden, rows)
    shapes = Counter(node.shape for node in groups)
    assert shapes == Counter(dict.fromkeys((*there, *back, *of_weights), LAYERS))
    for node in groups:
        _, m, n, k = node.shape
        scales = 4 * (m + n) + 4  # and where the group ends
        assert node.num_bytes == m * k + k * n + 2 * m * n + scales
    assert all(node.kind != "unknown" for node in recording.nodes if hasattr(node, "kind"))


def test_the_gradient_of_a_loss_of_tensor_parallelism_has_the_line_of_the_loss():
    """Where most of the memory is: it is not that of `loss.backward()`."""
    size = Size(64, 1, 2, 128, kv_heads=2, vocabulary=4096)
    program = functools.partial(train, size=size, batch=2, length=256, tensor=2)
    recording = distlab.predict(program, 2, NETWORK, FREE).recordings[0]
    source, first = inspect.getsourcelines(pretraining.loss_of)
    (after,) = [number for number, line in enumerate(source) if "F.cross_entropy" in line]
    largest = recording.held.made[0]
    assert largest.line == f"pretraining.py:{first + after}"
    assert largest.num_bytes > 3 * 4 * 2 * 256 * 4096 // 2
