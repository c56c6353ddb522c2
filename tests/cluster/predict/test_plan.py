"""Layouts of a small program, predicted and compared."""

import pytest
import torch
from torch import nn

import distlab
from distlab_predict.planner import NOT_ALLOWED
from tests.refused import refused

NETWORK = distlab.Network("5 us", "50 GB/s")
GIB = 1 << 30


def device(memory=None):
    return distlab.Device("100 TFLOP/s", memory_bandwidth="2 TB/s", memory=memory)


def deep(rank, world_size, layers, batch=16, shard=1, width=1024):
    """Layers that are sharded over some of the ranks, and copied over the rest."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    if world_size % shard:
        raise ValueError(f"{world_size} ranks are no groups of {shard}")
    mesh = init_device_mesh("cpu", (world_size // shard, shard), mesh_dim_names=("copy", "shard"))
    model = nn.Sequential(*[nn.Linear(width, width) for _ in range(layers)])
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters())
    print("a step of", layers)
    for _ in range(2):
        model(torch.ones(batch, width)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def tokens(ranks, batch, **_):
    return ranks * batch


CHOICES = {"layers": [12], "batch": [1024, 8192], "shard": [1, 3, 8]}


def test_the_best_layout_is_that_of_a_sweep(capsys):
    found = distlab.predict.plan(deep, 8, NETWORK, device(), tokens=tokens, **CHOICES)
    assert capsys.readouterr().out == ""  # what so many programs print is left out
    sweep = distlab.predict.sweep(deep, [8], NETWORK, device(), tokens=tokens, **CHOICES)
    assert found.best.choice == sweep.best().choice
    assert found.best.rate == sweep.best().rate
    assert [layout.rate for layout in found.layouts] == [case.rate for case in sweep]
    assert [*found.refused.values()] == [2]
    (reason,) = found.refused
    assert reason.startswith("rank 0 raised ValueError: 8 ranks are no groups of 3")
    assert 1.0 < found.width < 1.5
    assert found.lead > 1.0


def test_two_small_depths_are_continued_to_the_model():
    """As exactly as a prediction of all layers in time; an allocator rounds small sizes up."""
    choices = {"layers": [12], "batch": [8192], "shard": [1, 8]}
    whole = distlab.predict.plan(deep, 8, NETWORK, device(), **choices)
    found = distlab.predict.plan(deep, 8, NETWORK, device(), depth="layers", **choices)
    for layout, exact in zip(found.predicted, whole.predicted, strict=True):
        assert layout.choice == exact.choice
        assert layout.step.seconds == pytest.approx(exact.step.seconds, rel=1e-6)
        assert layout.step.exposed == pytest.approx(exact.step.exposed, rel=1e-6)
        assert layout.step.flops == exact.step.flops
        assert layout.step.num_bytes == pytest.approx(exact.step.num_bytes, rel=0.05)


def test_a_choice_that_is_not_allowed_never_runs():
    """A model that is no deeper than the deeper one of the two is predicted whole."""

    reasons = {1: True, 3: "three do not divide", 5: "", 7: None}

    found = distlab.predict.plan(
        deep,
        8,
        NETWORK,
        device(),
        allowed=lambda ranks, shard, **_: reasons[shard],
        depth="layers",
        layers=[2, 3],
        shard=[*reasons],
    )
    assert found.refused == {"three do not divide": 2, NOT_ALLOWED: 4}
    assert [layout.choice["layers"] for layout in found.predicted] == [2, 3]


def test_a_device_that_is_too_small_for_all():
    found = distlab.predict.plan(deep, 8, NETWORK, device("1 MB"), **CHOICES)
    assert found.best is None
    assert found.why.startswith("No layout fits. ")
    assert found._nearest().choice["shard"] == 8


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "A plan needs values for an argument of the program"),
        ({"layers": 2}, "layers must be a list of values, got 2. Call distlab.predict.plan("),
        ({"layers": [2, 2]}, "layers must be a list of different values, got [2, 2]. Call"),
        ({"layers": [2], "allowed": True}, "allowed must be a function of the number of ranks"),
        ({"layers": [2], "depth": "deep"}, "depth must be the name of a choice (layers), got"),
        ({"layers": [2.5], "depth": "layers"}, "layers must be a whole number"),
        ({"layers": [2], "depth": "layers", "period": 0}, "period must be a whole number"),
        ({"layers": [2], "tokens": 0}, "tokens must be a whole number"),
        (
            {"layers": [2], "tokens": lambda ranks, layers: 2.5},
            "tokens(ranks=8, layers=2) must be a whole number of 1 or more, got 2.5. It is how",
        ),
    ],
)
def test_what_a_plan_needs(options, words):
    assert words in str(refused(distlab.predict.plan, deep, 8, NETWORK, device(), **options))
