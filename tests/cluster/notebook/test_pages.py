"""docs/reports/: the pages show what their programs give, but for times and line numbers."""

import os
import re
import threading
import time

import torch
import torch.distributed as dist

import distlab
from tests.refused import raised
from tests.tool import ROOT


def deadlock(rank, world_size):
    inbox = torch.zeros(1)
    if rank == 0:
        dist.recv(inbox, src=1)
    elif rank == 1:
        dist.recv(inbox, src=0)


def stuck_barrier(rank, world_size):
    if rank != 2:
        dist.barrier()


def mismatch(rank, world_size):
    t = torch.zeros(2 if rank else 3)
    dist.all_reduce(t)


def own_pairs(rank, world_size):
    pair = dist.new_group([0, 1] if rank < 2 else [2, 3])
    dist.barrier(pair)


def raises(rank, world_size):
    if rank == 1:
        raise ValueError("no data on this rank")
    dist.barrier()


def dies(rank, world_size):
    if rank == 3:
        os._exit(1)
    dist.barrier()


def sends_more(rank, world_size):
    if rank == 0:
        dist.send(torch.zeros(4), dst=1)
    elif rank == 1:
        dist.recv(torch.zeros(2), src=0)


def slow(rank, world_size):
    if rank == 0:
        time.sleep(60)
    dist.barrier()


def plain(report):
    """A report without what differs from run to run, or between a cell and a file."""
    differs = r"line \d+|\w+\.py:\d+|\d+\.\d s|\s+"
    return re.sub(differs, lambda found: " " if found[0].isspace() else "#", report).strip()


def test_the_pages_show_real_reports(usable):
    calls = [
        (usable.run, deadlock),
        (usable.run, stuck_barrier),
        (usable.run, mismatch),
        (usable.run, raises),
    ]
    calls += [
        (usable.run, dies),
        (usable.run, sends_more),
        (usable.run, max, threading.Lock()),
        (distlab.Cluster, 0),
    ]
    errors = [raised(distlab.errors.DistlabError, *call) for call in calls]
    errors.append(raised(distlab.RankError, usable.run, mismatch, check=True))
    errors.append(raised(distlab.RankError, usable.run, own_pairs))
    errors.append(raised(distlab.RankTimeout, usable.run, slow, timeout=3))
    real = {plain(f"{type(error).__name__}: {error}") for error in errors}
    pages = "\n".join(path.read_text() for path in (ROOT / "docs/reports").glob("*.md"))
    shown = {plain(block) for block in re.findall(r"```text\n(.*?)```", pages, flags=re.DOTALL)}
    stopped = plain(
        "ClusterError: This cluster was stopped. Make one with distlab.Cluster(4), "
        "or call restart()."
    )
    assert shown - {stopped} == real
