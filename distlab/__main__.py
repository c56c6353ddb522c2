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
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import entry_points, version
from typing import Any

import distlab
from distlab import machine
from distlab.errors import ClusterError
from distlab.launch import reaper, this_host
from distlab.notebook.tracing import clock_offsets

MOST_SKEW = 0.1  # seconds between two clocks, beyond which they mislead people
LESSON_RANKS = 4  # as many as the lessons use

Command = Callable[[list[str]], int]  # from its arguments to its exit status


def main() -> int:
    """Run the command that is named, `doctor` or one of another package's.

    Returns the exit status.
    """
    others = {point.name: point for point in entry_points(group="distlab.commands")}
    given = sys.argv[1:]
    name = _command_in(given, ["doctor", *others])
    if name:
        given.remove(name)
        command: Command = doctor if name == "doctor" else others[name].load()
        return command(given)
    commands: dict[str, Command] = {"doctor": doctor}
    for name, point in others.items():
        commands[name] = point.load()
    _help_on(commands).parse_args(given)
    return 2


def _command_in(given: Sequence[str], names: Sequence[str]) -> str:
    """The first command among the words of a command line; "" if help is asked for before it."""
    for word in given:
        if word in ("-h", "--help"):
            return ""
        if word in names:
            return word
    return ""


def _help_on(commands: Mapping[str, Command]) -> argparse.ArgumentParser:
    """What reads a command line without a command, and says which there are."""
    rows = [f"  {name:<8} {_what_it_does(command)}" for name, command in commands.items()]
    more = "python -m distlab COMMAND --help says more about one."
    parser = argparse.ArgumentParser(
        "python -m distlab",
        description="Distributed PyTorch on real ranks.",
        epilog="\n".join(["commands:", *rows, "", more]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("command", metavar="COMMAND", choices=[*commands])
    return parser


def _what_it_does(command: Command) -> str:
    """The first sentence of a command's docstring: "write the lessons into a folder".

    The command itself, which stands before it, is left out.
    """
    text = " ".join((command.__doc__ or "").split())
    _, _, words = text.partition("`: ")
    sentence, _, _ = words.partition(". ")
    return sentence.rstrip(".")


def doctor(arguments: Sequence[str]) -> int:
    """`python -m distlab doctor`: check what this machine can do, and say what to change.

    Returns the exit status: 1 if ranks cannot work.
    """
    chosen = _options_of_doctor().parse_args(arguments)
    if chosen.clean:
        processes = reaper.leftovers()
        reaper.end(processes)
        print(f"ended {len(processes)} processes of clusters whose notebook is gone")
    checks = CHECKS
    where = "here"
    if chosen.hosts:
        ranks_on = dict.fromkeys(chosen.hosts.split(","), 1)
        engines = distlab.Ssh(python=chosen.python, interface=chosen.interface)
        checks = {"hosts": lambda: check_group(hosts=ranks_on, engines=engines)}
        where = "on these hosts together"
    status = 0
    for name, check in checks.items():
        try:
            check()
        except Exception as error:  # from any library: a check that cannot be made is a finding
            status = 1
            print(f"FAIL  {name:<11} {type(error).__name__}: {error}", flush=True)
    print(f"Ranks cannot work {where} yet." if status else f"Ranks work {where}.")
    return status


def _options_of_doctor() -> argparse.ArgumentParser:
    """What reads the command line of the doctor."""
    parser = argparse.ArgumentParser(
        "python -m distlab doctor",
        description="Check what this machine can do: Python and packages, cores, memory, disk and "
        "limits, and whether ranks start and can all-reduce. Each line says what is as it should "
        "be, or what to change.",
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
    speed = f"up to {cores} ranks compute at full speed, more than that take turns"
    print_finding("cores", f"{cores}; {speed}")
    free = machine.memory() / 1e9
    each = f"a rank takes about {this_host.MEGABYTES_FORKED} MB, and what it loads"
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
    files, tasks = machine.open_files(), machine.tasks()
    number = "any number of" if files is None else files
    words = f"{number} open files"
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
    """Build a real gloo group and call all_reduce in it.

    With hosts, a rank on each is in the group, and their clocks are compared.

    Args:
        n: the number of ranks; None with hosts.
        where: `hosts` and `engines`, as for `Cluster`.
    """
    began = time.monotonic()
    with distlab.Cluster(n, **where, timeout=20) as cluster:
        sums = cluster.run(sum_of_ranks)
        names = cluster.ranks.hosts
        offsets = clock_offsets(cluster.ranks, range(cluster.n))
    for rank, name in enumerate(names):
        offset = offsets.get(rank)
        if offset is None:
            print_finding("clock", f"{name}: the same as here")
            continue
        seen = f"{name}: {offset.seconds:+.3f} s, to within {offset.error:.4f} s"
        advice = ""
        if abs(offset.seconds) >= MOST_SKEW:
            advice = "Traces correct for it, logs do not: run ntpd or chronyd on all hosts."
        print_finding("clock", seen, advice)
    if sums != [float(sum(range(cluster.n)))] * cluster.n:
        raise ClusterError(f"all_reduce gave {sums}, which is wrong: please report this.")
    what = f"a rank on each of {len(names)} hosts" if names else f"{cluster.n} ranks started"
    took = time.monotonic() - began
    print_finding("gloo group", f"{what}, all_reduce gave {sums[0]:g}; {took:.1f} s")


CHECKS = {"machine": check_machine, "group": lambda: check_group(LESSON_RANKS)}

if __name__ == "__main__":
    sys.exit(main())
