"""`python -m distlab doctor`: what this machine can do, and what to change; called by a person and by `make lab`.

Runs in a process of its own. Each check returns one line; the machine is well when the checks that ranks depend on are.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version

from packaging.requirements import Requirement

import distlab
from distlab.client.arguments import check_launcher
from distlab.compat import versions
from distlab.launch import limits, reaper
from distlab.wire.rendezvous import loopback_interface


@dataclass(frozen=True)
class Finding:
    """One line of the doctor's report: `what` was looked at and what was `seen`.

    `advice` says what to change where it is not `ok`; `vital` findings decide whether ranks can work.
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


def main(clean: bool = False) -> int:
    """Print every finding; with `clean`, end what earlier runs left behind. Returns 1 when ranks cannot work here."""
    if clean:
        processes = reaper.leftovers()
        reaper.end(processes)
        print(f"ended {len(processes)} processes of clusters whose notebook is gone")
    sick = False
    for check in CHECKS:
        try:
            findings = list(check())
        except Exception as error:
            what = check.__name__.removeprefix("check_")
            findings = [Finding(what, f"{type(error).__name__}: {error}", ok=False, vital=True)]
        for finding in findings:
            print(finding, flush=True)
            sick = sick or (finding.vital and not finding.ok)
    print("Ranks cannot work here yet." if sick else "Ranks work here.")
    return int(sick)


def check_packages() -> Iterator[Finding]:
    """Python, and the versions of everything that distlab declares, optional parts included."""
    here = ".".join(map(str, sys.version_info[:3]))
    yield Finding("Python", f"{here} at {sys.executable}")
    for requirement in map(Requirement, requires("distlab") or []):
        optional = requirement.marker is not None
        if optional and not requirement.marker.evaluate({"extra": "lab"}):
            continue
        try:
            here = version(requirement.name)
            ok = requirement.specifier.contains(here, prereleases=True)
        except PackageNotFoundError:
            here, ok = "not installed", False
        advice = f"pip install '{requirement.name}{requirement.specifier}'"
        yield Finding(requirement.name, here, ok, advice, vital=not optional)


def check_internals() -> Iterator[Finding]:
    """Whether other libraries have what distlab uses of them without their promise; this imports torch."""
    names = ", ".join(f"{name} {version(name)}" for name in ("torch", "ipyparallel", "ipython", "ipykernel"))
    advice = "Install versions that distlab was tested with: pip install -c constraints.txt -e ."
    for seen in versions.self_test() or [""]:
        yield Finding("internals", seen or f"as expected in {names}", not seen, advice)


def check_machine() -> Iterator[Finding]:
    """How many ranks can compute at the same time, and room for data loaders' workers."""
    cores = os.cpu_count() or 1
    yield Finding("cores", f"{cores}; up to {cores} ranks compute at full speed, more take turns")
    if sys.platform == "linux":
        there = os.path.isdir("/dev/shm")
        shared = shutil.disk_usage("/dev/shm").total / 1e6 if there else 0
        advice = "For data loaders with worker processes: mount -t tmpfs shm /dev/shm, in Docker --shm-size=1g."
        yield Finding("/dev/shm", f"{shared:.0f} MB" if there else "missing", shared >= 256, advice)


def check_limits() -> Iterator[Finding]:
    """How much memory, and how many files, processes and threads this user may have; the lessons use 4 ranks."""
    for limit in limits.limits(check_launcher(None)):
        seen = f"{limit.value} {limit.what}, room for about {limit.ranks} ranks"
        yield Finding("limit", seen, limit.ranks >= 4, limit.cure, vital=limit.ranks < 1)


def check_network() -> Iterator[Finding]:
    """The loopback interface, and a free port on it."""
    port = limits.check_loopback()
    yield Finding("network", f"interface {loopback_interface()}, port {port} is free and answers", vital=True)


def check_leftovers() -> Iterator[Finding]:
    """Processes of clusters whose notebook is gone."""
    left = reaper.leftovers()
    pids = ", ".join(str(process.pid) for process in left[:8])
    seen = f"{len(left)} processes: {pids}" if left else "none"
    yield Finding("leftovers", seen, not left, "python -m distlab doctor --clean ends them.")


def check_group() -> Iterator[Finding]:
    """A gloo group of 2 ranks, really built, and an all_reduce through it."""

    def sum_of_ranks(rank: int, world_size: int) -> float:  # in here it is sent whole, and no rank imports this module
        import torch
        import torch.distributed as dist

        tensor = torch.tensor([float(rank)])
        dist.all_reduce(tensor)
        return tensor.item()

    began = time.monotonic()
    with distlab.Cluster(2, timeout=20) as cluster:
        sums = cluster.run(sum_of_ranks)
    seen = f"2 ranks started, all_reduce gave {sums[0]:g} on both, stopped; {time.monotonic() - began:.1f} s"
    advice = "The ranks computed something else: please report this."
    yield Finding("gloo group", seen, sums == [1.0, 1.0], advice, vital=True)


CHECKS = (check_packages, check_internals, check_machine, check_limits, check_network, check_leftovers, check_group)
