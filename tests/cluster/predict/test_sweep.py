"""Programs predicted on several numbers of ranks, with choices, and again on other machines."""

import functools

import pytest
import torch
from torch import nn

import distlab
from tests.refused import refused

NETWORK = distlab.Network("5 us", "50 GB/s")
DEVICE = distlab.Device("100 TFLOP/s", memory_bandwidth="2 TB/s")


def sharded(rank, world_size, batch=16, mesh=None):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    names = ("replicate", "shard")
    mesh = (
        init_device_mesh("cpu", mesh, mesh_dim_names=names)
        if mesh
        else init_device_mesh("cpu", (world_size,))
    )
    model = fully_shard(nn.Linear(4096, 4096), mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        model(torch.ones(batch, 4096)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def test_a_sweep_finds_what_is_best_and_says_what_fails():
    def tokens(ranks, batch, mesh):
        return ranks * batch

    found = distlab.predict.sweep(
        sharded, [8, 64], NETWORK, DEVICE, tokens=tokens, batch=[16, 4096], mesh=[None, (8, 8)]
    )
    assert [(case.ranks, *case.choice.values()) for case in found[:4]] == [
        (8, 16, None), (8, 16, (8, 8)), (8, 4096, None), (8, 4096, (8, 8)),
    ]  # fmt: skip
    assert [case.prediction is None for case in found] == [False, True] * 2 + [False] * 4
    assert found.best().choice == {"batch": 4096, "mesh": (8, 8)}
    assert found.best(8).rate == max(
        case.rate for case in found if case.ranks == 8 and case.prediction
    )
    lines = repr(found).splitlines()
    rest = ["tokens/s", "each", "MFU", "exposed", "idle", "memory", "fits"]
    assert lines[1].split() == ["batch", "mesh", "ranks", "a", "step", *rest]
    without_tokens = repr(distlab.predict.sweep(sharded, [8], NETWORK, DEVICE)).splitlines()
    # nor does anything fail
    assert without_tokens[1].split() == ["ranks", "a", "step", *rest[2:-1]]
    assert lines[10].startswith("8 ranks: batch=16, mesh=(8, 8): rank 0 raised ")
    labels = [text.get_text() for text in found.plot().texts]
    assert sorted(labels) == sorted({case.name for case in found if case.prediction})


def test_a_case_that_fails_twice_has_its_reason_twice():
    found = distlab.predict.sweep(sharded, [8, 8], NETWORK, DEVICE, mesh=[(8, 8)])
    assert [case.why.startswith("rank 0 raised ") for case in found] == [True, True]


def test_a_mesh_that_is_larger_than_the_ranks_needs_no_tokens():
    """Its own reason is the one that is said."""
    meshes = [None, (8, 8)]
    found = distlab.predict.sweep(
        sharded,
        [8],
        NETWORK,
        DEVICE,
        tokens=lambda ranks, mesh: 16 * ranks if mesh is None else ranks // 64,
        mesh=meshes,
    )
    assert found[0].prediction.tokens == 128
    assert found[1].why.startswith("rank 0 raised ")
    no_tokens = distlab.predict.sweep(sharded, [8], NETWORK, DEVICE, tokens=lambda ranks: 0)
    assert no_tokens[0].why.startswith("tokens(ranks=8) must be a whole number of 1 or more, got 0")


def test_on_other_machines_a_program_does_not_run_again(monkeypatch):
    program = functools.partial(sharded, batch=24)
    first = distlab.predict(program, 8, NETWORK, DEVICE)
    monkeypatch.setattr(distlab.predict._recorder, "record", None)
    second = distlab.predict(program, 8, distlab.Network("5 us", "5 GB/s"), DEVICE)
    assert second.exposed > 5 * first.exposed
    assert second.memory == first.memory


def test_one_measured_step_gives_the_efficiency():
    """Two steps of a device that reaches 40 % of its peak; what it needs for bytes stays."""
    program = functools.partial(sharded, batch=4096)
    real = distlab.predict(program, 8, NETWORK, distlab.Device("100 TFLOP/s", efficiency=0.4))
    guess = distlab.predict(program, 8, NETWORK, distlab.Device("100 TFLOP/s"))
    assert guess.calibrated(real.seconds).efficiency == pytest.approx(0.4, abs=1e-3)
    assert "seconds must be between" in str(refused(guess.calibrated, 1e-9))


@pytest.mark.parametrize(
    ("ranks", "options", "words"),
    [
        (8, {}, "ranks must be a list of values"),
        ([8], {"batch": 16}, "batch must be a list of values"),
        ([8], {"tokens": 16}, "tokens must be a function of the number of ranks"),
        (
            [0],
            {},
            "each of ranks must be a whole number of 1 or more, got 0. Call distlab.predict.",
        ),
        ([[8]], {}, "each of ranks must be a whole number of 1 or more, got [8]."),
        ([8], {"tokens": lambda ranks: 0.5}, "tokens(ranks=8) must be a whole number of 1 or more"),
    ],
)
def test_what_a_sweep_needs(ranks, options, words):
    assert words in str(refused(distlab.predict.sweep, sharded, ranks, NETWORK, DEVICE, **options))
