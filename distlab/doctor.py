"""`python -m distlab doctor`: what this machine can do, and what to change; called by a person and by `make lab`.

Runs in a process of its own. Each check returns one line; the machine is well when the checks that ranks depend on are.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version

from distlab import guard, limits
from distlab.arguments import MEGABYTES_PER_PYTHON, MEGABYTES_PER_RANK
from distlab.processes import check_launcher
from distlab.rendezvous import loopback_interface


@dataclass(frozen=True)
class Finding:
    """One line of the doctor's report: `what` was looked at, `seen`, and `advice` where something is to be changed.

    `vital` findings decide whether ranks can work.
    """

    what: str
    seen: str
    ok: bool = True
    advice: str = ""
    vital: bool = False

    def __str__(self) -> str:
        verdict = "OK  " if self.ok else "FAIL" if self.vital else "note"
        return f"{verdict}  {self.what:<11} {self.seen}" + (f"\n      {'':<11} {self.advice}" if self.advice else "")


def main(clean: bool = False) -> int:
    """Print every finding; with `clean`, end what earlier runs left behind. Returns 1 when ranks cannot work here."""
    if clean:
        processes = guard.leftovers()
        guard.end(processes)
        print(f"ended {len(processes)} processes of clusters whose notebook is gone")
    sick = False
    for check in CHECKS:
        for finding in _safely(check):
            print(finding, flush=True)
            sick = sick or (finding.vital and not finding.ok)
    print("Ranks cannot work here yet." if sick else "Ranks work here.")
    return int(sick)


def _safely(check: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    try:
        yield from check()
    except Exception as error:
        what = check.__name__.removeprefix("check_")
        yield Finding(what, f"{type(error).__name__}: {error}", ok=False, vital=True)


def check_python() -> Iterator[Finding]:
    """Python's own version."""
    here = ".".join(map(str, sys.version_info[:3]))
    ok = sys.version_info >= (3, 10)
    yield Finding(
        "Python", f"{here} at {sys.executable}", ok, "" if ok else "Install Python 3.10 or later.", vital=True
    )


def check_packages() -> Iterator[Finding]:
    """Versions of everything that distlab declares, optional parts included."""
    from packaging.requirements import Requirement

    for line in requires("distlab") or []:
        requirement = Requirement(line)
        optional = requirement.marker is not None and not requirement.marker.evaluate({"extra": ""})
        if optional and not requirement.marker.evaluate({"extra": "lab"}):
            continue
        try:
            here = version(requirement.name)
        except PackageNotFoundError:
            advice = f"pip install '{requirement.name}{requirement.specifier}'"
            yield Finding(requirement.name, "not installed", False, advice, vital=not optional)
            continue
        ok = requirement.specifier.contains(here, prereleases=True)
        advice = "" if ok else f"pip install '{requirement.name}{requirement.specifier}'"
        yield Finding(requirement.name, here, ok, advice, vital=not optional)


def check_cores() -> Iterator[Finding]:
    """How many ranks can compute at the same time."""
    cores = os.cpu_count() or 1
    yield Finding("cores", f"{cores}; up to {cores} ranks compute at full speed, more take turns")


def check_memory() -> Iterator[Finding]:
    """How many ranks fit."""
    import psutil

    free = psutil.virtual_memory().available / 1e9
    each = MEGABYTES_PER_RANK.get(check_launcher(None), MEGABYTES_PER_PYTHON)
    ranks = int(free * 1000 // each)
    advice = "" if ranks >= 4 else f"Close other programs: the lessons use 4 ranks of about {each} MB."
    yield Finding("memory", f"{free:.1f} GB free, room for about {ranks} ranks", ranks >= 4, advice)


def check_disk() -> Iterator[Finding]:
    """Room for connection files and logs, and the shared memory that data loaders use."""
    folder = tempfile.gettempdir()
    free = shutil.disk_usage(folder).free / 1e9
    advice = "" if free > 0.1 else f"Free some space in {folder}, or set TMPDIR."
    yield Finding("disk", f"{free:.1f} GB free in {folder}", free > 0.1, advice, vital=True)
    if os.path.isdir("/dev/shm"):
        shared = shutil.disk_usage("/dev/shm").total / 1e6
        advice = "" if shared >= 256 else "In Docker: --shm-size=1g, for data loaders with worker processes."
        yield Finding("/dev/shm", f"{shared:.0f} MB", shared >= 256, advice)
    elif sys.platform == "linux":
        advice = "Data loaders with worker processes fail without it: mount -t tmpfs shm /dev/shm"
        yield Finding("/dev/shm", "missing", False, advice)


def check_network() -> Iterator[Finding]:
    """The loopback interface, and a free port on it."""
    port = limits.check_loopback()
    yield Finding("network", f"interface {loopback_interface()}, port {port} is free and answers", vital=True)


def check_limits() -> Iterator[Finding]:
    """How many files, processes and threads this user may have."""
    for limit in limits.limits():
        seen = f"{limit.value} {limit.what}, room for about {limit.ranks} ranks"
        ok = limit.ranks >= 4  # as many as the lessons use
        yield Finding("limit", seen, ok, "" if ok else limit.cure, vital=limit.ranks < 1)


def check_leftovers() -> Iterator[Finding]:
    """Processes of clusters whose notebook is gone."""
    left = guard.leftovers()
    if left:
        pids = ", ".join(str(process.pid) for process in left[:8])
        yield Finding(
            "leftovers", f"{len(left)} processes: {pids}", False, "python -m distlab doctor --clean ends them."
        )
    else:
        yield Finding("leftovers", "none")


def check_group() -> Iterator[Finding]:
    """A gloo group of 2 ranks, really built, and an all_reduce through it."""
    import distlab

    began = time.monotonic()
    with distlab.Cluster(2, timeout=20) as cluster:
        sums = cluster.run(_sum_of_ranks)
    seconds = time.monotonic() - began
    ok = sums == [1.0, 1.0]
    advice = "" if ok else "The ranks computed something else: please report this."
    seen = f"2 ranks started, all_reduce gave {sums[0]:g} on both, stopped; {seconds:.1f} s"
    yield Finding("gloo group", seen, ok, advice, vital=True)


def _sum_of_ranks(rank: int, world_size: int) -> float:
    import torch
    import torch.distributed as dist

    tensor = torch.tensor([float(rank)])
    dist.all_reduce(tensor)
    return tensor.item()


CHECKS = (
    check_python,
    check_packages,
    check_cores,
    check_memory,
    check_disk,
    check_limits,
    check_network,
    check_leftovers,
    check_group,
)
