"""Programs that ask how many tokens an expert has are predicted as if all had as many.

Each is how a library does it: torch.histc and counts in an all-to-all (TorchTitan), a map of zeros
and ones whose counts are gathered (Megatron), places where a mask is true (Transformers), and a
loop over experts (DeepSeek's own).
"""

import functools

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed._functional_collectives import all_to_all_single_autograd

import distlab
from distlab.errors import RankError

NETWORK = distlab.Network("5 us", "1 GB/s")
DEVICE = distlab.Device("1 TFLOP/s")
RANKS, EXPERTS, CHOSEN, TOKENS, WIDTH = 4, 8, 2, 64, 32


def histograms(chosen, rows):
    """Counts of all experts, then rows, to their ranks."""
    counts = torch.histc(chosen.view(-1), bins=EXPERTS, min=0, max=EXPERTS)
    order = chosen.view(-1).argsort(stable=True)
    arrived = torch.ops._c10d_functional.wait_tensor(
        torch.ops._c10d_functional.all_to_all_single(
            counts, [2] * RANKS, [2] * RANKS, dist.group.WORLD.group_name
        )
    )
    went = counts.view(RANKS, -1).sum(dim=1).to("cpu", non_blocking=True).tolist()
    came = arrived.view(RANKS, -1).sum(dim=1).to("cpu").tolist()
    here = all_to_all_single_autograd(rows[order // CHOSEN], came, went, dist.group.WORLD)
    ends = arrived.view(RANKS, -1).sum(0).cumsum(0, dtype=torch.int32)
    return [here[: ends[0]], here[ends[0] : ends[1]]]


def maps(chosen, rows):
    """Gathered counts of all experts of all ranks; the rows that a mask selects."""
    where = torch.zeros(TOKENS, EXPERTS, dtype=torch.int).scatter(1, chosen, 1).bool()
    counts = where.sum(dim=0).long()
    gathered = counts.new_empty(RANKS * EXPERTS)
    dist.all_gather_into_tensor(gathered, counts)
    own = gathered.view(RANKS, EXPERTS)[:, 2 * dist.get_rank() : 2 * dist.get_rank() + 2]
    went, came = counts.view(RANKS, -1).sum(1).numpy(), own.sum(1).tolist()
    tokens = torch.arange(TOKENS).expand(EXPERTS, -1).masked_select(where.T.contiguous())
    here = all_to_all_single_autograd(rows[tokens], came, went.tolist(), dist.group.WORLD)
    return here.split(own.sum(0).tolist())


def masks(chosen, rows):
    """The tokens of each expert by the places of a one-hot mask; this rank has all of them."""
    where = F.one_hot(chosen, num_classes=EXPERTS).permute(2, 1, 0)
    found = []
    for expert in range(EXPERTS):
        _, tokens = torch.where(where[expert])
        found.append(rows[None, tokens].reshape(-1, WIDTH))
    return found


def loops(chosen, rows):
    """The tokens of each expert, if it has any."""
    counts = torch.bincount(chosen.flatten(), minlength=EXPERTS).tolist()
    found = []
    for expert in range(EXPERTS):
        if counts[expert] > 0:
            tokens, _ = torch.where(chosen == expert)
            found.append(rows[tokens])
    return found


def program(rank, world_size, route, sizes=None):
    model = nn.ModuleDict({"gate": nn.Linear(WIDTH, EXPERTS), "expert": nn.Linear(WIDTH, WIDTH)})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rows = torch.randn(TOKENS, WIDTH)
    shares, chosen = model["gate"](rows).softmax(1).topk(CHOSEN)
    results = [model["expert"](some) for some in route(chosen, rows)]
    print([len(some) for some in results])
    (torch.cat(results).sum() * shares.sum()).backward()
    optimizer.step()


@pytest.mark.parametrize(
    ("route", "lengths"),
    [
        (histograms, [64, 64]),
        (maps, [64, 64]),
        (masks, [16] * 8),
        (loops, [16] * 8),
    ],
)
def test_each_expert_has_as_many_tokens(route, lengths, capsys):
    predicted = distlab.predict(functools.partial(program, route=route), RANKS, NETWORK, DEVICE)
    assert capsys.readouterr().out == f"{lengths}\n"
    assert "routing: balanced, assumed" in repr(predicted.table())
    # the processor asks for the counts
    assert predicted.recordings[0].waits


@pytest.mark.parametrize("route", [histograms, maps])
def test_a_skew_gives_more_tokens_to_the_experts_of_the_predicted_rank(route, capsys):
    run = functools.partial(program, route=route)
    balanced = distlab.predict(run, RANKS, NETWORK, DEVICE)
    skewed = distlab.predict(run, RANKS, NETWORK, DEVICE, skew=1.5)
    assert capsys.readouterr().out == "[64, 64]\n[96, 96]\n"
    assert skewed.seconds > balanced.seconds
    assert "get 1.5 times as many tokens as the mean" in repr(skewed.table())


def without_experts(rank, world_size):
    program(rank, world_size, lambda chosen, rows: [rows])


def test_a_program_that_asks_for_no_counts_assumes_nothing(capsys):
    predicted = distlab.predict(without_experts, RANKS, NETWORK, DEVICE)
    assert "routing" not in repr(predicted.table())


def labels_counted(rank, world_size):
    labels = torch.empty(TOKENS, dtype=torch.int64)
    dist.broadcast(labels, 0)
    program(rank, world_size, lambda chosen, rows: [rows[: torch.bincount(labels)[0]]])


def test_counts_of_numbers_that_no_router_chose_stay_unknown():
    with pytest.raises(RankError, match="depends on the value of a tensor"):
        distlab.predict(labels_counted, RANKS, NETWORK, DEVICE)


def test_a_skew_below_1_is_refused():
    with pytest.raises(
        distlab.errors.ArgumentError, match=r"skew must be a number of at least 1, got 0\.5\."
    ):
        distlab.predict(without_experts, RANKS, NETWORK, DEVICE, skew=0.5)
