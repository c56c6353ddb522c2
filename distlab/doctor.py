"""The doctor, which finds what is wrong with a machine.

Runs in a process of its own, called by __main__.py. Each check prints lines; the machine is fine if
none of them raises.
"""

from __future__ import annotations

import argparse
import functools
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version

from distlab import machine
from distlab.errors import ClusterError
from distlab.launch import reaper, this_host
from distlab.notebook.cluster import Cluster
from distlab.notebook.start_methods import Ssh
from distlab.notebook.tracing import clock_offsets
from distlab.traces.events import Offset

MOST_SKEW = 0.1  # seconds between two clocks, beyond which they mislead people
LESSON_RANKS = 4  # as many as the lessons use

Check = Callable[[], None]  # prints what it finds; any exception is a failure


def examine(arguments: Sequence[str]) -> int:
    """Make the checks that a command line asks for: `distlab doctor`.

    Returns the exit status: 1 if ranks cannot work.
    """
    chosen = _options_of_doctor().parse_args(arguments)
    if chosen.clean:
        processes = reaper.leftovers()
        reaper.end_processes(processes)
        print(f"ended {len(processes)} processes of clusters whose notebook is gone")
    checks = CHECKS
    where = "here"
    if chosen.hosts:
        names = [name.strip() for name in chosen.hosts.split(",")]
        engines = Ssh(python=chosen.python, interface=chosen.interface)
        checks = {"hosts": functools.partial(check_hosts, names, engines)}
        where = "on these hosts together"
    if _all_pass(checks):
        print(f"Ranks work {where}.")
        return 0
    print(f"Ranks cannot work {where} yet.")
    return 1


def _all_pass(checks: Mapping[str, Check]) -> bool:
    """Make all of these checks, and say which ones fail; whether none does."""
    failed = 0
    for name, check in checks.items():
        try:
            check()
        except Exception as error:  # from any library: a check that cannot be made is a finding
            failed += 1
            print(f"FAIL  {name:<11} {type(error).__name__}: {error}", flush=True)
    return failed == 0


def _options_of_doctor() -> argparse.ArgumentParser:
    """What reads the command line of the doctor."""
    parser = argparse.ArgumentParser(
        "python -m distlab doctor",
        description="Check this machine: Python and packages, cores, memory, disk and limits, and "
        "whether ranks start and can all-reduce. Each line says that something is in order, or "
        "what to change.",
    )
    parser.add_argument(
        "--clean", action="store_true", help="end processes of clusters whose notebook is gone"
    )
    parser.add_argument(
        "--hosts", metavar="A,B", help="start a rank on each of these hosts instead, by ssh"
    )
    parser.add_argument(
        "--python", metavar="PATH", help="with --hosts: the Python there; by default, as here"
    )
    parser.add_argument(
        "--interface", metavar="NAME", help="with --hosts: the network interface of the ranks there"
    )
    return parser


def print_finding(what: str, seen: str, advice: str = "") -> None:
    """Print what was found: that it is as it should be, or what to change, with advice."""
    if not advice:
        print(f"OK    {what:<11} {seen}", flush=True)
        return
    print(f"note  {what:<11} {seen}", flush=True)
    print(f"      {'':<11} {advice}", flush=True)


def check_machine() -> None:
    """Python and the packages that matter most, cores, memory, disk, limits, and leftovers."""
    python = ".".join(map(str, sys.version_info[:3]))
    print_finding("Python", f"{python} at {sys.executable}")
    names = ("distlab", "torch", "ipyparallel", "ipython", "ipykernel")
    print_finding("packages", ", ".join(f"{name} {version(name)}" for name in names))
    cores = machine.cores()
    speed = f"up to {cores} ranks compute at full speed, and more ranks take turns"
    print_finding("cores", f"{cores}; {speed}")
    free = machine.free_memory() / 1e9
    each = f"a rank takes about {this_host.MEGABYTES_FORKED} MB, plus what it loads"
    print_finding("memory", f"{free:.1f} GB free; {each}")
    here = shutil.disk_usage(".").free / 1e9
    temporary = shutil.disk_usage(tempfile.gettempdir()).free / 1e9
    room = f"{here:.1f} GB free in this folder, {temporary:.1f} GB for temporary files"
    print_finding("disk", room)
    print_finding("limits", _limits())
    leftovers = reaper.leftovers()
    if leftovers:
        numbers = ", ".join(str(process.pid) for process in leftovers)
        advice = "python -m distlab doctor --clean ends these processes."
        print_finding("leftovers", numbers, advice)
    else:
        print_finding("leftovers", "none")


def _limits() -> str:
    """What a process may open and start here, in words."""
    files = machine.open_files()
    words = "any number of open files" if files is None else f"{files} open files"
    tasks = machine.tasks()
    if tasks is None:
        return f"{words}, any number of processes"
    return f"{words}, {tasks.most} processes and threads, of which {tasks.left} are free"


def sum_of_ranks(rank: int, world_size: int) -> float:
    """The sum of all ranks, through all_reduce. Runs on: every rank."""
    import torch
    import torch.distributed as dist

    tensor = torch.tensor([float(rank)])
    dist.all_reduce(tensor)
    return tensor.item()


def check_group() -> None:
    """Build a real gloo group of as many ranks as the lessons have, and call all_reduce in it."""
    began = time.monotonic()
    with Cluster(LESSON_RANKS, timeout=20) as cluster:
        total = _total_of_ranks(cluster)
    _print_group(f"{LESSON_RANKS} ranks started", total, time.monotonic() - began)


def check_hosts(names: Sequence[str], engines: Ssh) -> None:
    """Build a real gloo group with a rank on each of these hosts, and compare their clocks."""
    began = time.monotonic()
    ranks_on = dict.fromkeys(names, 1)
    with Cluster(hosts=ranks_on, engines=engines, timeout=20) as cluster:
        total = _total_of_ranks(cluster)
        hosts = cluster.ranks.hosts
        offsets = clock_offsets(cluster.ranks, range(cluster.n))
    for rank, host in enumerate(hosts):
        _print_clock(host, offsets.get(rank))
    _print_group(f"a rank on each of {len(hosts)} hosts", total, time.monotonic() - began)


def _total_of_ranks(cluster: Cluster) -> float:
    """The sum of all ranks, by all_reduce on each of them; ClusterError if it is wrong anywhere."""
    sums: list[float] = cluster.run(sum_of_ranks)
    total = sum(range(cluster.n))
    if any(one != total for one in sums):
        raise ClusterError(f"all_reduce gave {sums}, which is wrong: please report this.")
    return sums[0]


def _print_clock(host: str, offset: Offset | None) -> None:
    """Print how far a host's clock is ahead of this machine's; None if it is the same clock."""
    if offset is None:
        print_finding("clock", f"{host}: the same as here")
        return
    seen = f"{host}: {offset.seconds:+.3f} s, to within {offset.error:.4f} s"
    advice = ""
    if abs(offset.seconds) >= MOST_SKEW:
        advice = "Traces correct for it, logs do not: run ntpd or chronyd on all hosts."
    print_finding("clock", seen, advice)


def _print_group(what: str, total: float, seconds: float) -> None:
    """Print that ranks have worked together."""
    print_finding("gloo group", f"{what}, all_reduce gave {total:g}; {seconds:.1f} s")


CHECKS: Mapping[str, Check] = {"machine": check_machine, "group": check_group}
