"""`python -m distlab doctor`: what this machine can do, and what to change; called by a person and by `make lab`.

Runs in a process of its own. Each check returns one line; the machine is well when the checks that ranks depend on are.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from importlib.metadata import version

import distlab
from distlab.client.plan import check_hosts, check_launcher
from distlab.compat import versions
from distlab.errors import DistlabError
from distlab.launch import hosts, local, reaper
from distlab.wire.orders import ServerPlan
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


def main(clean: bool = False) -> int:
    """Print every finding; with `clean`, end what earlier runs left behind. Returns 1 when ranks cannot work here."""
    if clean:
        processes = reaper.leftovers()
        reaper.end(processes)
        print(f"ended {len(processes)} processes of clusters whose notebook is gone")
    sick = report(CHECKS)
    print("Ranks cannot work here yet." if sick else "Ranks work here.")
    return int(sick)


def look_at_hosts(names: list[str], python: str | None, interface: str | None) -> int:
    """Print every finding about hosts that ssh reaches. Returns 1 when ranks cannot work on all of them together."""
    try:
        extra = {"python": python or sys.executable, "interface": interface}
        wanted = check_hosts(dict.fromkeys(names, 1), extra)
    except DistlabError as error:
        print(f"FAIL  {error}")
        return 1
    found: dict[str, int] = {}
    sick = report([lambda: check_each_host(wanted, found), lambda: check_group_of_hosts(found, python, interface)])
    print("Ranks cannot work on all of these hosts yet." if sick else "Ranks work on these hosts together.")
    return int(sick)


def report(checks: Iterable[Callable[[], Iterable[Finding]]]) -> bool:
    """Print what the checks find; whether something vital is missing."""
    sick = False
    for check in checks:
        try:
            findings = list(check())
        except Exception as error:
            what = check.__name__.removeprefix("check_").replace("<lambda>", "hosts")
            findings = [Finding(what, f"{type(error).__name__}: {error}", ok=False, vital=True)]
        for finding in findings:
            print(finding, flush=True)
            sick = sick or (finding.vital and not finding.ok)
    return sick


def check_packages() -> Iterator[Finding]:
    """Python, and the packages on which most depends."""
    yield Finding("Python", f"{'.'.join(map(str, sys.version_info[:3]))} at {sys.executable}")
    names = ("distlab", "torch", "ipyparallel", "ipython", "ipykernel")
    yield Finding("packages", ", ".join(f"{name} {version(name)}" for name in names), vital=True)


def check_internals() -> Iterator[Finding]:
    """Whether torch has the private parts that distlab uses; this imports torch."""
    from distlab.compat import torch, torch_rpc

    advice = "Install versions that distlab was tested with: pip install -c constraints.txt -e ."
    for seen in versions.missing({**torch.PARTS, **torch_rpc.PARTS}) or [""]:
        yield Finding("internals", seen or f"as expected in torch {version('torch')}", not seen, advice)


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


def check_group() -> Iterator[Finding]:
    """A gloo group of 2 ranks, really built, and an all_reduce through it."""
    began = time.monotonic()
    with distlab.Cluster(2, timeout=20) as cluster:
        sums = cluster.run(sum_of_ranks)
    seen = f"2 ranks started, all_reduce gave {sums[0]:g} on both, stopped; {time.monotonic() - began:.1f} s"
    advice = "The ranks computed something else: please report this."
    yield Finding("gloo group", seen, sums == [1.0, 1.0], advice, vital=True)


def check_each_host(wanted: hosts.Hosts, found: dict[str, int]) -> Iterator[Finding]:
    """Whether each host is reached, has the same packages, and where it is; `found` gets those that can be used."""
    with tempfile.TemporaryDirectory(prefix="distlab-") as folder:
        plan = ServerPlan((), local.environment(1, "doctor", alone=False), stay=True)
        connections = hosts.connect(wanted, list(range(len(wanted.hosts))), plan, folder)
        try:
            hellos, troubles = hosts.answers(wanted, connections, folder)
        finally:
            for connection in connections:
                connection.process.kill()
                connection.process.wait()
    for number, host in enumerate(wanted.hosts):
        hello, trouble = hellos.get(number), troubles.get(number)
        seen = "cannot be used"
        if hello is not None:
            versions = ", ".join(f"{name} {version}" for name, version in hello.versions.items())
            seen = f"{hello.name}, {versions}, {hello.cores} cores"
            if trouble is None:
                found[host.name] = 1
                where = f"{hello.address} on {hello.interface}, and {hello.notebook} is this machine"
                seen += f"; {where}; room for {hello.max_ranks} ranks"
        yield Finding(host.name, seen, trouble is None, trouble.words if trouble else "", vital=True)


def check_group_of_hosts(names: dict[str, int], python: str | None, interface: str | None) -> Iterator[Finding]:
    """A rank on each host, really started; their clocks, and an all_reduce through the ports that the system chose."""
    if not names:
        return
    began = time.monotonic()
    with distlab.Cluster(hosts=names, python=python, interface=interface, timeout=20) as cluster:
        sums = cluster.run(sum_of_ranks)
        offsets = cluster.ranks.clock_offsets(range(cluster.n))
    for rank, name in enumerate(names):
        offset = offsets.get(rank)
        seen = "the same as here" if offset is None else f"{offset.seconds:+.3f} s, to within {offset.error:.4f} s"
        advice = "Traces correct it; logs do not: run ntpd or chronyd on all hosts."
        yield Finding("clock", f"{name}: {seen}", offset is None or abs(offset.seconds) < MOST_SKEW, advice)
    expected = sum(range(len(names)))
    seen = f"a rank on each of {len(names)} hosts, all_reduce gave {sums[0]:g}; {time.monotonic() - began:.1f} s"
    yield Finding("gloo group", seen, sums == [expected] * len(names), "Please report this.", vital=True)


CHECKS = (check_packages, check_internals, check_machine, check_limits, check_network, check_leftovers, check_group)
