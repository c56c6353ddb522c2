"""The notes of a rank's calls in one process: on a group that sends nothing, and on gloo alone."""

from datetime import timedelta

import pytest
import torch.distributed as dist
from torch._C._distributed_c10d import FakeWork
from torch.testing._internal.distributed import fake_pg  # noqa: F401  registers "fake", also for one file alone

from distlab.rank import hooks, table
from distlab.rank.log import LOG
from distlab.rank.this_rank import THIS_RANK
from distlab.wire.rendezvous import loopback_interface

LIMIT = timedelta(seconds=60)  # of the cluster


@pytest.fixture
def layer(monkeypatch):
    """The layer is in place for a test, and gone afterwards, with all that was noted."""
    for owner, name, _ in table.patches():
        if name == "__call__":
            monkeypatch.setattr(owner, "__class__", type(owner))  # is put back
        elif hasattr(owner, name):
            monkeypatch.setattr(owner, name, getattr(owner, name))
    monkeypatch.setattr(dist.distributed_c10d, "default_pg_timeout", LIMIT)
    table.install_all()
    yield
    if dist.is_initialized():
        dist.destroy_process_group()
    LOG.forget()


@pytest.fixture
def four(layer, monkeypatch):
    """This process is rank 1 of four that do not exist: every call ends at once."""
    monkeypatch.setattr(THIS_RANK, "world_size", 4)
    monkeypatch.setattr(THIS_RANK, "rank", 1)
    monkeypatch.setattr(FakeWork, "wait", FakeWork.wait)  # it does not inherit Work's
    hooks.install_patches([hooks.Patch(FakeWork, "wait", hooks.on_wait)])
    dist.init_process_group("fake", store=dist.HashStore(), rank=1, world_size=4)


@pytest.fixture
def alone(layer, monkeypatch):
    """A gloo group of this process alone."""
    monkeypatch.setattr(THIS_RANK, "world_size", 1)
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", loopback_interface())
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1, timeout=LIMIT)
