"""`python -m distlab`: its commands, and the doctor: what this machine can do, and what to change.

Run by a person and by `make lab`, in its own process. Each check prints lines; the machine is fine
if none of them raises. Other commands are entry points of the group "distlab.commands", functions
of the list of arguments, whose docstrings begin with the command and what it does: the course has
`course`, `lab` and `class`.
"""

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from importlib.metadata import entry_points, version
from typing import Any

import distlab
from distlab import machine
from distlab.errors import ClusterError
from distlab.launch import reaper, this_host
from distlab.notebook.tracing import clock_offsets

MOST_SKEW = 0.1  # seconds between two clocks, beyond which they mislead people
RANKS = 4  # of the lessons


def main() -> int:
    """Run the command that is named, `doctor` or one of another package's; returns the exit
    status.
    """
    others = {point.name: point for point in entry_points(group="distlab.commands")}
    given = sys.argv[1:]
    name = next((word for word in given if word in ("doctor", *others)), "")
    if name and not {"-h", "--help"} & set(given[: given.index(name)]):
        given.remove(name)
        return doctor(given) if name == "doctor" else others[name].load()(given)
    commands = {"doctor": doctor, **{name: point.load() for name, point in others.items()}}
    rows = [f"  {name:<8} {_what_it_does(command)}" for name, command in commands.items()]
    parser = argparse.ArgumentParser(
        "python -m distlab",
        description="Distributed PyTorch on real ranks.",
        epilog="\n".join(
            ["commands:", *rows, "", "python -m distlab COMMAND --help says more about one."]
        ),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("command", metavar="COMMAND", choices=["doctor", *others])
    parser.parse_args(given)
    return 2


def _what_it_does(command: Callable[..., Any]) -> str:
    """The first sentence of a command's docstring, without the command: "write the lessons into a
    folder".
    """
    words = " ".join((command.__doc__ or "").split()).partition("`: ")[2]
    return words.partition(". ")[0].rstrip(".")


def doctor(arguments: Sequence[str]) -> int:
    """`python -m distlab doctor`: check what this machine can do, and say what to change.

    Returns the exit status: 1 if ranks cannot work.
    """
    parser = argparse.ArgumentParser(
        "python -m distlab doctor",
        description="Check what this machine can do: Python and packages, cores, memory, disk and limits, and whether "
        "ranks start and can all-reduce. Each line says what is as it should be, or what to change.",
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
    chosen = parser.parse_args(arguments)
    checks, where = CHECKS, "here"
    if chosen.hosts:
        hosts, where = dict.fromkeys(chosen.hosts.split(","), 1), "on these hosts together"
        checks = {
            "hosts": lambda: check_group(
                hosts=hosts,
                engines=distlab.Ssh(python=chosen.python, interface=chosen.interface),
            )
        }
    elif chosen.clean:
        processes = reaper.leftovers()
        reaper.end(processes)
        print(f"ended {len(processes)} processes of clusters whose notebook is gone")
    status = 0
    for name, check in checks.items():
        try:
            check()
        except Exception as error:  # from any library: a check that cannot be made is a finding
            status = 1
            print(f"FAIL  {name:<11} {type(error).__name__}: {error}", flush=True)
    print(f"Ranks cannot work {where} yet." if status else f"Ranks work {where}.")
    return status


def show(what: str, seen: str, advice: str = "") -> None:
    """Print what was found: that it is as it should be, or what to change, with advice."""
    print(f"{'note' if advice else 'OK  '}  {what:<11} {seen}", flush=True)
    if advice:
        print(f"      {'':<11} {advice}", flush=True)


def check_machine() -> None:
    """Python and the packages that matter most, cores, memory, disk, limits, and processes that
    were left over.
    """
    show("Python", f"{'.'.join(map(str, sys.version_info[:3]))} at {sys.executable}")
    names = ("distlab", "torch", "ipyparallel", "ipython", "ipykernel")
    show("packages", ", ".join(f"{name} {version(name)}" for name in names))
    cores = machine.cores()
    show("cores", f"{cores}; up to {cores} ranks compute at full speed, more than that take turns")
    show(
        "memory",
        f"{machine.memory() / 1e9:.1f} GB free; a rank takes about {this_host.MEGABYTES_FORKED} MB, and what it loads",
    )
    here, temporary = (
        shutil.disk_usage(folder).free / 1e9 for folder in (".", tempfile.gettempdir())
    )
    show("disk", f"{here:.1f} GB free in this folder, {temporary:.1f} GB for temporary files")
    show("limits", _limits())
    left = ", ".join(str(process.pid) for process in reaper.leftovers())
    show(
        "leftovers",
        left or "none",
        "python -m distlab doctor --clean ends these processes." if left else "",
    )


def _limits() -> str:
    """What a process may open and start here, in words."""
    files, tasks = machine.open_files(), machine.tasks()
    words = f"{'any number of' if files is None else files} open files"
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


def check_group(n: int | None = None, **where: Any) -> None:
    """Build a real gloo group and call all_reduce in it; with hosts, a rank on each, and compare
    their clocks.
    """
    began = time.monotonic()
    with distlab.Cluster(n, **where, timeout=20) as cluster:
        sums, names = cluster.run(sum_of_ranks), cluster.ranks.hosts
        offsets = clock_offsets(cluster.ranks, range(cluster.n))
    for rank, name in enumerate(names):
        offset = offsets.get(rank)
        seen = (
            "the same as here"
            if offset is None
            else f"{offset.seconds:+.3f} s, to within {offset.error:.4f} s"
        )
        differs = offset is not None and abs(offset.seconds) >= MOST_SKEW
        advice = "Traces correct for it, logs do not: run ntpd or chronyd on all hosts."
        show("clock", f"{name}: {seen}", advice if differs else "")
    if sums != [float(sum(range(cluster.n)))] * cluster.n:
        raise ClusterError(f"all_reduce gave {sums}, which is wrong: please report this.")
    what = f"a rank on each of {len(names)} hosts" if names else f"{cluster.n} ranks started"
    show("gloo group", f"{what}, all_reduce gave {sums[0]:g}; {time.monotonic() - began:.1f} s")


CHECKS = {"machine": check_machine, "group": lambda: check_group(RANKS)}

if __name__ == "__main__":
    sys.exit(main())
