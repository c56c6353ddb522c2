"""The clock that a rank's times are of, and messages there and back that compare it with another machine's.

Runs on a rank, called by name from trace/record.py, and by tracing.py.
"""

from __future__ import annotations

import platform
import time
from pathlib import Path

import torch
import torch.distributed as dist


def name() -> str:
    """What processes that share a clock have in common: this start of this machine's system.

    Runs on: anywhere.
    """
    boot = Path("/proc/sys/kernel/random/boot_id")
    return boot.read_text().strip() if boot.exists() else platform.node()


def now() -> int:
    """This machine's clock in ns, the one that the profiler's times are of.

    Runs on: anywhere.
    """
    return time.time_ns()


def ping(peers: list[int], rounds: int = 20) -> dict[int, list[tuple[int, int, int, int]]]:
    """Compare this rank's clock with those of `peers`, which answer with `pong`, one after another.

    Runs on: one rank.

    Returns:
        by peer, for each round four times in ns: sent here, received there, sent there, received here.
    """
    return {peer: [_round(peer) for _ in range(rounds)] for peer in peers}


def _round(peer: int) -> tuple[int, int, int, int]:
    there = torch.zeros(2, dtype=torch.int64)
    answer = dist.irecv(there, peer)  # posted early: gloo's send waits until its receiver is ready
    sent = now()
    dist.send(torch.zeros(1), peer)
    answer.wait()
    received = now()
    arrived, answered = there.tolist()
    return sent, arrived, answered, received


def pong(peer: int, rounds: int = 20) -> None:
    """Answer `ping` on rank `peer`.

    Runs on: a rank that is among its peers.
    """
    questions = [dist.irecv(torch.zeros(1), peer) for _ in range(rounds)]
    for question in questions:
        question.wait()
        times = torch.tensor([now(), 0])
        times[1] = now()
        dist.send(times, peer)
