"""What ranks do not share with each other, as processes that torchrun has started do not."""

import multiprocessing
import os
import random
import secrets
import sys
import tempfile
import uuid
from multiprocessing import util

import numpy
import torch

import distlab
from tests.cluster.conftest import kill

PRELOAD = ["numpy.random"]  # its generator is made once, before the ranks are


def draw(rank, world_size):
    """Something random of every kind, by the name of who makes it."""
    return {
        "torch": torch.rand(1).item(),
        "torch's seed": torch.initial_seed(),
        "dropout": torch.nn.functional.dropout(torch.ones(100)).tolist(),
        "weights": torch.nn.Linear(4, 1).weight.tolist(),
        "random": random.random(),
        "numpy": float(numpy.random.rand()),
        "numpy's generator": float(numpy.random.default_rng().random()),
        "secrets": secrets.token_hex(),
        "uuid": str(uuid.uuid4()),
        "name of a file": next(tempfile._get_candidate_names()),
        "key of multiprocessing": bytes(multiprocessing.current_process().authkey),
        "session": os.getsid(0),
    }


def test_every_rank_draws_its_own_random_numbers():
    """Also a rank that replaces a dead one, and those of the server's next cluster."""
    with distlab.Cluster(2, preload=PRELOAD) as first:
        drawn = first.run(draw)
        kill(first, 1)
        first.heal()
        drawn += first.run(draw, ranks=[1])
        with distlab.Cluster(3, preload=PRELOAD) as second:
            drawn += second.run(draw)
    for kind in drawn[0]:
        values = [str(one[kind]) for one in drawn]
        assert len(set(values)) == len(values), kind


def test_a_rank_does_not_look_like_a_persons_session(cluster):
    """Libraries take a process with prompts for one, and refuse to train there."""

    def prompts(rank, world_size):
        return [name for name in ("ps1", "ps2", "ps3") if hasattr(sys, name)]

    assert cluster.run(prompts) == [[]] * cluster.n
    cluster.client[:].execute(
        "import sys; seen = hasattr(sys, 'ps1'); sys.ps1 = '>>> '", block=True
    )
    assert cluster.pull("seen") == [False] * cluster.n
    assert cluster.run(prompts) == [[]] * cluster.n


def test_a_signal_to_the_process_group_of_a_rank_reaches_no_other(cluster):
    """As programs send it that end all of their children."""

    def ignore_and_send(rank, world_size):
        import signal

        if rank == 0:
            got = []
            before = signal.signal(signal.SIGUSR1, lambda *_: got.append(rank))
            os.killpg(0, signal.SIGUSR1)
            signal.signal(signal.SIGUSR1, before)
            return len(got)

    assert cluster.run(ignore_and_send)[0] == 1
    assert cluster.run(lambda rank, world_size: rank) == list(range(cluster.n))


def test_what_multiprocessing_keeps_goes_with_the_cluster():
    """A rank is killed at the end: a folder of shared tensors' sockets would stay."""

    def folder_of_sockets(rank, world_size):
        return util.get_temp_dir()

    with distlab.Cluster(2) as two:
        kill(two, 1)
        two.heal()
        folders = two.run(folder_of_sockets)
        assert folders == [two.ranks._processes.folder] * 2
    assert not os.path.exists(folders[0])
