"""Programs that run as one rank of many without data: what is noted, and what is refused."""

import functools
import subprocess
import sys

import psutil
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import distlab
from distlab_predict.nodes import Call
from tests.processes import until, wait_until_gone
from tests.refused import raised

NETWORK = distlab.Network("5 us", "1 GB/s")
FREE = distlab.Device("1000000 PFLOP/s")  # computing takes no time
CLUSTER = {"n": 8, "timeout": 60, "network": NETWORK}


def layers():
    return nn.Sequential(*[nn.Linear(64, 64) for _ in range(3)])


def train(model, steps, features=64):
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(steps):
        model(torch.ones(16, features)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def sharded(rank, world_size, steps=2):
    from torch.distributed.fsdp import fully_shard

    model = layers()
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    train(model, steps)


def data_parallel(rank, world_size):
    model = nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(24)])
    train(nn.parallel.DistributedDataParallel(model), 2, features=1024)


class Checkpointed(nn.Module):
    """Layers whose activations are not kept, but computed again in the backward pass."""

    def __init__(self, inside):
        super().__init__()
        self.inside = inside

    def forward(self, values):
        return checkpoint(self.inside, values, use_reentrant=False)


def computed_again(rank, world_size, wrap):
    blocks = [nn.Sequential(*[nn.Linear(64, 64), nn.GELU()] * 4) for _ in range(4)]
    train(nn.Sequential(nn.Linear(64, 64), *map(wrap, blocks)), 2)


def calls(prediction):
    """The calls of rank 0 in its last step: name, number of members, bytes."""
    recording = prediction.recordings[0]
    nodes = recording.nodes[slice(*recording.steps[-1])]
    return [
        (node.name, len(node.members), node.sent[0]) for node in nodes if isinstance(node, Call)
    ]


def test_a_sharded_step_takes_what_a_simulated_cluster_finds(cluster):
    """FSDP2 on eight ranks whose computing is free."""
    clocks = [0.0]
    for steps in (1, 2):
        cluster.run(functools.partial(sharded, steps=steps))
        clocks.append(cluster.clock())
    second_step = (clocks[2] - clocks[1]) - (clocks[1] - clocks[0])
    assert distlab.predict(sharded, 8, NETWORK, FREE).seconds == pytest.approx(
        second_step, rel=1e-9
    )


def test_a_thousand_ranks_are_one_process():
    """What a rank keeps is a part of the whole, and the table says that nothing was measured."""
    prediction = distlab.predict(
        sharded, 1024, NETWORK, distlab.Device("1 TFLOP/s", memory="2 MB"), tokens=1024 * 16
    )
    assert prediction.memory["parameters"] <= 3 * (64 * 64 + 64) * 4 / 64
    assert prediction.fits
    assert prediction.tokens_per_second == pytest.approx(16 / prediction.seconds)
    assert repr(prediction).startswith("Predicted, not measured: 1,024 ranks, 5 µs, 1 GB/s\n")


def test_buckets_of_data_parallel_training_overlap_the_backward_pass():
    """Buckets of 25 MiB, the last layers' first; DDP waits before the optimizer."""
    device = distlab.Device("1 TFLOP/s")
    prediction = distlab.predict(data_parallel, 64, distlab.Network("1 us", "400 GB/s"), device)
    sent = [num_bytes for name, _, num_bytes in calls(prediction) if name == "all_reduce"]
    assert sum(sent) == 24 * (1024 * 1024 + 1024) * 4
    assert len(sent) == 5
    alone = sum(until - since for since, until, _ in prediction.moments(0, "move"))
    assert 0 < prediction.exposed < alone / 2
    # the input needs no gradient
    assert prediction.flops == 3 * 24 * 2 * 16 * 1024 * 1024 - 2 * 16 * 1024 * 1024


def test_what_checkpointing_computes_again_is_no_progress():
    """A third more of the blocks' time, no more FLOPs of the model, and less memory."""
    device = distlab.Device("1 TFLOP/s")
    programs = [
        functools.partial(computed_again, wrap=wrap) for wrap in (nn.Sequential, Checkpointed)
    ]
    kept, again = (distlab.predict(program, 1, NETWORK, device) for program in programs)
    assert again.flops == kept.flops
    assert again.seconds / kept.seconds == pytest.approx(
        (2 + 4 * 4 * 4) / (2 + 4 * 4 * 3), rel=1e-6
    )
    assert again.memory.get("activations", 0) < kept.memory["activations"]


def loads(rank, world_size):
    dataset = TensorDataset(torch.ones(world_size * 32, 64))
    loader = DataLoader(dataset, batch_size=16, sampler=DistributedSampler(dataset))
    model = nn.parallel.DistributedDataParallel(layers())
    batches = [batch for (batch,) in loader]
    print(len(batches), "batches of", tuple(batches[0].shape))
    train(model, 1)
    model(batches[0])


def test_a_program_loads_its_data_and_prints(capsys):
    """A sampler shuffles with real numbers."""
    distlab.predict(loads, 8, NETWORK, FREE)
    assert capsys.readouterr().out == "2 batches of (16, 64)\n"


def ring(rank, world_size):
    values = torch.ones(4)
    work = dist.isend(values, (rank + 1) % world_size)
    dist.recv(values, (rank - 1) % world_size)
    work.wait()
    train(layers(), 1)


def test_a_ring_of_many_ranks_needs_its_roles(monkeypatch):
    """Each rank of it sends a message to one more; where all do the same, one is enough."""
    monkeypatch.setattr("distlab_predict.runs.MOST_ROLES", 3)
    error = raised(distlab.ArgumentError, distlab.predict, ring, 100, NETWORK, FREE)
    assert "at most 3 ranks that send each other messages" in str(error)
    assert "roles=[0]" in str(error)
    assert len(distlab.predict(ring, 100, NETWORK, FREE, roles=[0]).recordings) == 1


def receives_from_any(rank, world_size):
    dist.recv(torch.ones(4))


def test_a_message_from_any_rank_is_refused_by_its_line():
    """Without data nothing travels, and so none arrives first."""
    error = str(raised(distlab.RankError, distlab.predict, receives_from_any, 8, NETWORK, FREE))
    assert "which rank would send first: give dist.recv its src" in error
    assert "in receives_from_any   dist.recv(torch.ones(4))" in error


def reads(rank, world_size):
    model = layers()
    if model(torch.ones(1, 64)).sum().item() > 0:
        train(model, 1)


ENDLESS = """
import os, sys, time
import distlab

def program(rank, world_size):
    print(os.getpid(), file=open(sys.argv[1], "w"))
    while True:
        time.sleep(1)

distlab.predict(program, 8, distlab.Network(0, 1), distlab.Device(1))
"""


def test_nothing_runs_on_when_its_notebook_is_gone(tmp_path):
    """A program that never ends ends with the process that asked for it."""
    file = tmp_path / "pid"
    notebook = subprocess.Popen(
        [sys.executable, "-c", ENDLESS.replace("sys.argv[1]", repr(str(file)))]
    )
    until(lambda: file.exists() and file.read_text())
    notebook.kill()
    notebook.wait()
    assert wait_until_gone(lambda: psutil.pid_exists(int(file.read_text()))) is False


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((None, 8, NETWORK, FREE), "program must be a function of (rank, world_size), got None."),
        ((sharded, 0, NETWORK, FREE), "ranks must be a whole number of 1 or more, got 0."),
        ((sharded, 8, "fast", FREE), "network must be a Network, got 'fast'."),
        ((sharded, 8, NETWORK, None), "device must be a Device, got None."),
        ((lambda rank, world_size: None, 8, NETWORK, FREE), "program must take a step"),
    ],
)
def test_what_cannot_be_predicted_is_refused(arguments, words):
    assert words in str(raised(distlab.ArgumentError, distlab.predict, *arguments))


@pytest.mark.parametrize(
    ("name", "value"), [("roles", 3), ("roles", [8]), ("roles", []), ("tokens", 0)]
)
def test_other_arguments_are_checked(name, value):
    error = raised(
        distlab.ArgumentError, distlab.predict, sharded, 8, NETWORK, FREE, **{name: value}
    )
    assert str(error).startswith(f"{name} must be ")
