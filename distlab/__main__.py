"""`python -m distlab doctor`: what this machine can do, and what to change; called by a person and by `make lab`.

Runs in a process of its own. Each check gives lines; the machine is well when the checks that ranks depend on are.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import distlab
from distlab.client.plan import check_launcher
from distlab.client.recording import clock_offsets
from distlab.launch import local, reaper
from distlab.wire.rendezvous import loopback_interface

MOST_SKEW = 0.1  # seconds between two clocks, beyond which people are misled


@dataclass(frozen=True)
class Finding:
    """One line of the doctor's report.

    Attributes:
        what: was looked at.
        seen: what was found.
        ok: whether that is as it should be.
        advice: what to change where it is not.
        vital: whether it decides that ranks can work.
    """

    what: str
    seen: str
    ok: bool = True
    advice: str = ""
    vital: bool = False

    def __str__(self) -> str:
        verdict = "OK  " if self.ok else "FAIL" if self.vital else "note"
        advice = f"\n      {'':<11} {self.advice}" if self.advice and not self.ok else ""
        return f"{verdict}  {self.what:<11} {self.seen}{advice}"


def main() -> int:
    """Parse the command line and print every finding; returns 1 when ranks cannot work."""
    parser = argparse.ArgumentParser(prog="python -m distlab", description="Learn distributed PyTorch on real ranks.")
    parser.add_argument("command", choices=["doctor"], help="what this machine can do, and what to change")
    parser.add_argument("--clean", action="store_true", help="end processes of clusters whose notebook is gone")
    parser.add_argument("--hosts", metavar="A,B", help="start a rank on each of these hosts instead, by ssh")
    parser.add_argument("--python", metavar="PATH", help="with --hosts: the Python there, else that of this command")
    parser.add_argument("--interface", metavar="NAME", help="with --hosts: their network interface for the ranks")
    chosen = parser.parse_args()
    if chosen.hosts:
        hosts = dict.fromkeys(chosen.hosts.split(","), 1)
        checks = {"hosts": lambda: check_group(hosts=hosts, python=chosen.python, interface=chosen.interface)}
        return report(checks, "Ranks work on these hosts together.", "Ranks cannot work on all of these hosts yet.")
    if chosen.clean:
        processes = reaper.leftovers()
        reaper.end(processes)
        print(f"ended {len(processes)} processes of clusters whose notebook is gone")
    return report(CHECKS, "Ranks work here.", "Ranks cannot work here yet.")


def report(checks: Mapping[str, Callable[[], Iterator[Finding]]], well: str, sick: str) -> int:
    """Print what the checks find, and one of two sentences; 1 when something vital is missing."""
    status = 0
    for name, check in checks.items():
        try:
            for finding in check():
                print(finding, flush=True)
                status |= finding.vital and not finding.ok
        except Exception as error:  # of whatever library: a check that cannot be made is a finding
            status = 1
            print(Finding(name, f"{type(error).__name__}: {error}", ok=False, vital=True), flush=True)
    print(sick if status else well)
    return int(status)


def check_packages() -> Iterator[Finding]:
    """Python, and the packages on which most depends."""
    yield Finding("Python", f"{'.'.join(map(str, sys.version_info[:3]))} at {sys.executable}")
    names = ("distlab", "torch", "ipyparallel", "ipython", "ipykernel")
    yield Finding("packages", ", ".join(f"{name} {version(name)}" for name in names), vital=True)


def check_machine() -> Iterator[Finding]:
    """How many ranks can compute at the same time, and room for data loaders' workers."""
    cores = os.cpu_count() or 1
    yield Finding("cores", f"{cores}; up to {cores} ranks compute at full speed, more take turns")
    if os.path.isdir("/dev/shm"):
        shared = shutil.disk_usage("/dev/shm").total / 1e6
        advice = "For data loaders with worker processes: mount -t tmpfs shm /dev/shm, in Docker --shm-size=1g."
        yield Finding("/dev/shm", f"{shared:.0f} MB", shared >= 256, advice)


def check_limits() -> Iterator[Finding]:
    """How much memory, and how many files, processes and threads this user may have; the lessons use 4 ranks."""
    for limit in local.limits(check_launcher(None)):
        seen = f"{limit.value} {limit.what}, room for about {limit.ranks} ranks"
        yield Finding("limit", seen, limit.ranks >= 4, limit.cure, vital=limit.ranks < 1)


def check_network() -> Iterator[Finding]:
    """The loopback interface, and a free port on it."""
    port = local.check_loopback()
    yield Finding("network", f"interface {loopback_interface()}, port {port} is free and answers", vital=True)


def check_leftovers() -> Iterator[Finding]:
    """Processes of clusters whose notebook is gone."""
    left = reaper.leftovers()
    pids = ", ".join(str(process.pid) for process in left[:8])
    seen = f"{len(left)} processes: {pids}" if left else "none"
    yield Finding("leftovers", seen, not left, "python -m distlab doctor --clean ends them.")


def sum_of_ranks(rank: int, world_size: int) -> float:
    """The sum of all ranks, through all_reduce. Runs on: every rank."""
    import torch
    import torch.distributed as dist

    tensor = torch.tensor([float(rank)])
    dist.all_reduce(tensor)
    return tensor.item()


def check_group(n: int | None = None, **where: Any) -> Iterator[Finding]:
    """A gloo group, really built, and an all_reduce through it; with hosts, a rank on each, and their clocks."""
    began = time.monotonic()
    with distlab.Cluster(n, **where, timeout=20) as cluster:
        sums, names = cluster.run(sum_of_ranks), cluster.ranks.hosts
        offsets = clock_offsets(cluster.ranks, range(cluster.n))
    for rank, name in enumerate(names):
        offset = offsets.get(rank)
        seen = "the same as here" if offset is None else f"{offset.seconds:+.3f} s, to within {offset.error:.4f} s"
        advice = "Traces correct it; logs do not: run ntpd or chronyd on all hosts."
        yield Finding("clock", f"{name}: {seen}", offset is None or abs(offset.seconds) < MOST_SKEW, advice)
    what = f"a rank on each of {len(names)} hosts" if names else f"{cluster.n} ranks started"
    seen = f"{what}, all_reduce gave {sums[0]:g}; {time.monotonic() - began:.1f} s"
    expected = [float(sum(range(cluster.n)))] * cluster.n
    yield Finding("gloo group", seen, sums == expected, "Another sum is right: please report this.", vital=True)


CHECKS = {
    "packages": check_packages,
    "machine": check_machine,
    "limits": check_limits,
    "network": check_network,
    "leftovers": check_leftovers,
    "group": lambda: check_group(2),
}

if __name__ == "__main__":
    sys.exit(main())
