"""Where ranks compute, and what asking for nccl says, with as many GPUs as a test wants."""

import pytest
import torch
import torch.distributed as dist

import distlab
from distlab import devices
from tests.refused import refused


@pytest.fixture
def gpus(monkeypatch):
    """A function that gives the machine so many GPUs, and a torch with nccl or without it."""
    for name in ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)

    def pretend(count, nccl=True):
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
        monkeypatch.setattr(dist, "is_nccl_available", lambda: nccl)

    return pretend


@pytest.mark.parametrize(
    ("count", "ranks", "placed", "backend"),
    [
        (0, 2, ["cpu", "cpu"], "gloo"),
        (1, 1, ["cuda:0"], "nccl"),
        (1, 2, ["cuda:0", "cuda:0"], "gloo"),
        (2, 4, ["cuda:0", "cuda:1", "cuda:0", "cuda:1"], "gloo"),
        (8, 2, ["cuda:0", "cuda:1"], "nccl"),
    ],
)
def test_a_gpu_for_each_rank_where_there_are_enough(
    gpus, monkeypatch, count, ranks, placed, backend
):
    """Each has its own with nccl, or they share them on gloo, or use the CPU."""
    gpus(count)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(ranks))
    assert [str(distlab.device_for(rank)) for rank in range(ranks)] == placed
    assert devices.backend_for(ranks) == backend


def test_the_place_on_the_machine_counts(gpus, monkeypatch):
    """On the second of two machines with 4 GPUs, rank 6 has GPU 2."""
    gpus(4)
    for name, value in {"RANK": "6", "LOCAL_RANK": "2", "LOCAL_WORLD_SIZE": "4"}.items():
        monkeypatch.setenv(name, value)
    assert [str(distlab.device_for(rank)) for rank in (6, 5)] == ["cuda:2", "cuda:1"]


def test_bad_ranks_are_refused():
    """What is no rank is an error that names the value."""
    assert str(refused(distlab.device_for, "0")).startswith(
        "rank must be a whole number of 0 or more, got '0'."
    )
    assert str(refused(devices.backend_for, True)).startswith(
        "ranks_here must be a whole number of 1 or more, got True."
    )


@pytest.mark.parametrize(
    ("count", "nccl", "n", "words"),
    [
        (1, True, 2, "2 ranks need 2 GPUs, but torch sees 1 GPU. Call Cluster(2) for gloo."),
        (
            0,
            True,
            1,
            (
                "There is no GPU here, and nccl only moves data that is on GPUs. "
                "Call Cluster(1) for gloo."
            ),
        ),
        (
            3,
            False,
            2,
            "This torch was built without nccl, and sees 3 GPUs. Call Cluster(2) for gloo.",
        ),
    ],
)
def test_nccl_that_cannot_serve(gpus, count, nccl, n, words):
    """The error says how many GPUs there are, why not enough, and what to call."""
    gpus(count, nccl)
    error = str(refused(distlab.Cluster, n, backend="nccl"))
    assert error.startswith("backend must be one that can serve the ranks here, got 'nccl'. ")
    assert words in error
