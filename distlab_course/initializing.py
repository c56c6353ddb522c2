"""Lab 30: calls of init_process_group that may fail, and what comes of them.

`try_init` runs in the notebook's kernel, `attempt_init` on every rank.
"""

import contextlib
import os
import re
import time
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

import distlab

# the arguments of one rank's call; None for a rank that is missing
Call = Mapping[str, Any] | None


def tcp(rank: int, port: int, **more: Any) -> Call:
    """The arguments of one rank of two that meet at a port of this machine."""
    return {"init_method": f"tcp://127.0.0.1:{port}", "rank": rank, **more}


def try_init(*calls: Call, seconds: float = 1.0, expected: str = "") -> None:
    """Let each rank of the current cluster call init_process_group, and print what comes of it.

    Ports and places in torch's sources are left out. The cluster gets its own group back
    afterwards.

    Args:
        calls: the arguments of each rank's call; besides those of init_process_group there may be
            `late`, the seconds that a rank sleeps first, and `interface`, its GLOO_SOCKET_IFNAME.
        seconds: the timeout of each call.
        expected: how each outcome must begin.
    """
    cluster = distlab.Cluster.current
    timeout = timedelta(seconds=seconds)
    given: list[Call] = []
    for call in calls:
        given.append(None if call is None else {"timeout": timeout, **call})
    try:
        outcomes = cluster.run(attempt_init, given)
    finally:
        cluster.heal()
    for rank, outcome in enumerate(outcomes):
        if outcome is None:
            print(f"rank {rank} is missing")
            continue
        waited, text = outcome
        text = _without_places(text)
        print(f"rank {rank} after {waited:.1f} s: {text}")
        assert text.startswith(expected)


def _without_places(text: str) -> str:
    """A message without ports, and without places in gloo's sources."""
    text = re.sub(r"(127\.0\.0\.1, |port: )\d+", r"\1PORT", text)
    text = re.sub(r"\[[^]]*gloo[^]]*\] ", "", text)
    return text.replace("useIpv6: false, code: -98, ", "")


def attempt_init(rank: int, world_size: int, calls: list[Call]) -> tuple[float, str] | None:
    """Leave the group and call init_process_group as calls[rank] says.

    gloo writes each attempt to connect to stderr, which leads nowhere meanwhile.

    Returns:
        the seconds that it took, and the outcome; None for a rank that is missing.
    """
    if dist.is_initialized():
        dist.destroy_process_group()
    given = calls[rank]
    if given is None:
        return None
    call = {"backend": "gloo", "rank": rank, "world_size": 2, **given}
    time.sleep(call.pop("late", 0))
    usual_interface = os.environ["GLOO_SOCKET_IFNAME"]
    os.environ["GLOO_SOCKET_IFNAME"] = call.pop("interface", usual_interface)
    began = time.monotonic()
    try:
        with _without_stderr():
            outcome = _init_and_add(rank, call)
    except Exception as error:
        outcome = f"{type(error).__name__}: {error}"
    finally:
        os.environ["GLOO_SOCKET_IFNAME"] = usual_interface
    return time.monotonic() - began, outcome


def _init_and_add(rank: int, call: dict[str, Any]) -> str:
    """Join a group, and add up 10 to the power of each rank's number in it."""
    dist.init_process_group(**call)
    total = torch.tensor(10**rank)
    dist.all_reduce(total)
    return f"a group of {dist.get_world_size()}, the sum is {total.item()}"


@contextlib.contextmanager
def _without_stderr() -> Iterator[None]:
    """Let stderr of this process lead nowhere, also for code in C++."""
    stderr = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
        os.close(nowhere)
