"""Runs a program under torchrun and under `distlab run`, and says whether both did the same.

Called by hand, in the folder of the program:

    python ../distlab/tools/beside_torchrun.py --nproc-per-node 2 train.py --epochs 1

torchrun runs it twice: what it prints differently by itself, such as times and process numbers, may
differ under `distlab run` as well. The exit status is 0 if both did the same.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

NUMBER = re.compile(r"\d+(?:\.\d+)?(?:e[+-]?\d+|[KMGT]\b)?")  # 12, 0.5, 1e-3, 1.2K
# what torchrun itself says on stderr, about threads and about addresses
OF_TORCHRUN = re.compile(r"torch/distributed/(run|elastic)|^\*+$|OMP_NUM_THREADS|socket\.cpp")
ENDED_BY_LIMIT = 124  # as the command `timeout` has it
MOST_SHOWN = 10  # lines that differ


@dataclass(frozen=True)
class Outcome:
    """What a launcher did with a program.

    Attributes:
        status: its exit status.
        seconds: it took.
        stdout: lines of all ranks.
        stderr: likewise.
    """

    status: int
    seconds: float
    stdout: list[str]
    stderr: list[str]


@dataclass(frozen=True)
class Unlike:
    """Lines that one launcher has and the other has not.

    Attributes:
        missing: of torchrun, which `distlab run` lacks.
        added: of `distlab run`, which torchrun lacks.
    """

    missing: list[str]
    added: list[str]

    def __bool__(self) -> bool:
        return bool(self.missing or self.added)


def unlike(first: Iterable[str], second: Iterable[str], other: Iterable[str]) -> Unlike:
    """Compare lines of `distlab run` with those of two runs of torchrun, in any order.

    A line that torchrun has repeated must be there as it is. In the others those numbers may differ
    that differ between the runs of torchrun, and lines that torchrun itself writes only sometimes
    may be left out.
    """
    once = Counter(first)
    again = Counter(second)
    repeated = once & again
    found = Counter(other)
    missing = repeated - found
    steady = _steady_places(once - repeated, again - repeated)
    rest = _without_numbers(found - repeated, steady)
    changing = _without_numbers(once - repeated, steady)
    changing_again = _without_numbers(again - repeated, steady)
    missing += (changing & changing_again) - rest
    added = rest - (changing | changing_again)
    return Unlike(sorted(missing.elements()), sorted(added.elements()))


def _form(line: str) -> str:
    """A line with NUL in the place of each number; how it is aligned does not matter."""
    return " ".join(NUMBER.sub("\0", line).split())


def _steady_places(once: Counter[str], again: Counter[str]) -> set[tuple[str, int, str]]:
    """The numbers that two runs have alike in lines that differ: form, place in it, number."""
    return _places(once) & _places(again)


def _places(lines: Counter[str]) -> set[tuple[str, int, str]]:
    found = set()
    for line in lines:
        for place, number in enumerate(NUMBER.findall(line)):
            found.add((_form(line), place, number))
    return found


def _without_numbers(lines: Counter[str], steady: set[tuple[str, int, str]]) -> Counter[str]:
    """The same lines, with # in the place of each number that is not steady."""
    found: Counter[str] = Counter()
    for line, times in lines.items():
        form = _form(line)
        words = form.split("\0")
        text = words[0]
        for place, number in enumerate(NUMBER.findall(line)):
            kept = number if (form, place, number) in steady else "#"
            text += kept + words[place + 1]
        found[text] += times
    return found


def of_program(lines: Iterable[str]) -> list[str]:
    """The lines of stderr that are the program's, and not torchrun's."""
    return [line for line in lines if line.strip() and not OF_TORCHRUN.search(line)]


def launch(command: Sequence[str], limit: float, in_copy: bool) -> Outcome:
    """Run a command in this folder, or in a copy of it, for so many seconds at most.

    A word `{logs}` in the command becomes a folder, whose files called stdout.log and stderr.log
    are read as well: where all ranks of torchrun write into one file, their lines mix.
    """
    folder = Path.cwd()
    with tempfile.TemporaryDirectory(prefix="beside-torchrun-") as scratch:
        logs = Path(scratch, "logs")
        logs.mkdir()
        if in_copy:
            folder = Path(shutil.copytree(folder, f"{scratch}/work", symlinks=True))
        command = [word.replace("{logs}", str(logs)) for word in command]
        with open(logs / "stdout.log", "wb") as stdout, open(logs / "stderr.log", "wb") as stderr:
            began = time.monotonic()
            process = subprocess.Popen(
                command, cwd=folder, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr
            )
            status = _wait(process, limit)
            seconds = time.monotonic() - began
        written = _lines_in(logs, "stdout.log", folder)
        return Outcome(status, seconds, written, _lines_in(logs, "stderr.log", folder))


def _lines_in(logs: Path, name: str, folder: Path) -> list[str]:
    """The lines of all files of this name, with one name for the folder and for this machine."""
    lines = []
    for path in sorted(logs.rglob(name)):
        text = path.read_text(errors="backslashreplace")
        text = text.replace(str(folder), ".").replace("127.0.0.1", "localhost")
        lines += [line.rstrip() for line in text.split("\n") if line.strip()]
    return lines


def _wait(process: subprocess.Popen[bytes], limit: float) -> int:
    """The exit status of a process, which is ended with all its children after the limit."""
    try:
        return process.wait(limit)
    except subprocess.TimeoutExpired:
        family = psutil.Process(process.pid).children(recursive=True)
        process.kill()
        process.wait()
        for child in family:
            if child.is_running():
                child.kill()
        return ENDED_BY_LIMIT


def report(first: Outcome, distlab: Outcome, differences: dict[str, Unlike]) -> str:
    """What a person reads: both statuses, both times, and the lines that differ."""
    ratio = distlab.seconds / first.seconds
    words = [
        f"{'':<12} {'torchrun':>10} {'distlab run':>12}",
        f"{'exit status':<12} {first.status:>10} {distlab.status:>12}",
        f"{'seconds':<12} {first.seconds:>10.1f} {distlab.seconds:>12.1f}   {ratio:.2f} times",
    ]
    for name, found in differences.items():
        lines = len(getattr(first, name))
        other = len(getattr(distlab, name))
        judged = "different" if found else "equal"
        words.append(f"{name:<12} {lines:>10} {other:>12}   lines, {judged}")
        words += _shown("only torchrun:", found.missing)
        words += _shown("only distlab: ", found.added)
    return "\n".join(words)


def _shown(mark: str, lines: list[str]) -> list[str]:
    """The first few of these lines, each after a mark."""
    words = [f"  {mark} {line}" for line in lines[:MOST_SHOWN]]
    if len(lines) > MOST_SHOWN:
        words.append(f"  {mark} and {len(lines) - MOST_SHOWN} more")
    return words


def main(given: Sequence[str]) -> int:
    """Run a program under both launchers, and print whether they did the same."""
    chosen = _parser().parse_args(given)
    ranks = ["--nproc-per-node", chosen.nproc_per_node]
    program = ["-m", *chosen.program] if chosen.module else chosen.program
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", *ranks]
    torchrun += ["--redirects", "3", "--log-dir", "{logs}", *program]
    ours = [sys.executable, "-m", "distlab", "run", *ranks, *chosen.option, *program]
    first = launch(torchrun, chosen.limit, chosen.copy)
    second = launch(torchrun, chosen.limit, chosen.copy) if chosen.twice else first
    other = launch(ours, chosen.limit, chosen.copy)
    differences = {"stdout": unlike(first.stdout, second.stdout, other.stdout)}
    if chosen.stderr:
        differences["stderr"] = unlike(
            of_program(first.stderr), of_program(second.stderr), of_program(other.stderr)
        )
    print(report(first, other, differences))
    if other.status:
        print("\n".join(other.stderr[-20:]))
    same_end = bool(first.status) == bool(other.status)
    return 0 if same_end and not any(differences.values()) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m tools.beside_torchrun")
    parser.add_argument("--nproc-per-node", default="2", metavar="N", help="how many ranks")
    parser.add_argument("-m", "--module", action="store_true", help="the program is a module")
    parser.add_argument(
        "--limit",
        type=float,
        default=300,
        metavar="SECONDS",
        help="end a longer run",
    )
    parser.add_argument(
        "--copy", action="store_true", help="give each run a copy of this folder to work in"
    )
    parser.add_argument("--stderr", action="store_true", help="compare what is on stderr, too")
    parser.add_argument(
        "--once", dest="twice", action="store_false", help="torchrun runs it once, to save time"
    )
    parser.add_argument(
        "--option", action="append", default=[], help="an option for distlab run: --option=--check"
    )
    parser.add_argument(
        "program", nargs=argparse.REMAINDER, help="the script or module, and its arguments"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
