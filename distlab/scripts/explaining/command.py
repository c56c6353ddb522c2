"""`distlab explain`: why a job waits, from the dumps of its flight recorders.

Runs in a process of its own, which a person starts in a terminal, called by __main__.py. It needs
no torch: what it reads is plain data.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

from distlab.errors import DistlabError
from distlab.scripts.explaining.files import files_named
from distlab.scripts.explaining.findings import find
from distlab.scripts.explaining.gathering import gather
from distlab.scripts.explaining.groups import job_of
from distlab.scripts.explaining.plain import as_plain
from distlab.scripts.explaining.stacks_of_processes import of_processes, pids_given
from distlab.scripts.explaining.stacks_report import of_files, with_stacks
from distlab.scripts.explaining.words import report
from distlab.words import fitted

EXPLAINED = 0  # exit statuses
UNEXPLAINED = 1
BAD_INPUT = 2


def explain(arguments: Sequence[str]) -> int:
    """`distlab explain`: say why a job waits, from its flight recorder's dumps.

    Returns the exit status: 0 if it is explained, 1 if nothing explains it, 2 if the files cannot
    be used.
    """
    parser = _parser()
    chosen = parser.parse_args(arguments)
    if bool(chosen.files) == bool(chosen.pids):
        parser.error("give either FILES or --pids. For example: distlab explain dumps/")
    try:
        if chosen.pids:
            _print_fitted(of_processes(chosen.pids))
            return EXPLAINED
        files = files_named(chosen.files)
        stacks = with_stacks(files)
        if stacks:
            _print_fitted(of_files(stacks))
            return EXPLAINED
        gathered = gather(files)
        job = job_of(gathered.ranks, chosen.world_size)
    except DistlabError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return BAD_INPUT
    findings = find(job)
    if chosen.json:
        print(json.dumps(as_plain(findings), indent=1))
    else:
        for line in report(gathered, findings).split("\n"):
            is_row = line.startswith(" ")  # of a table, which a break would take apart
            print(line if is_row else "\n".join(fitted(line)))
    return EXPLAINED if findings.is_explained else UNEXPLAINED


def _print_fitted(text: str) -> None:
    """Print a text with sentences that fit a page; rows of a table stay as they are."""
    for line in text.splitlines():
        is_row = line.startswith("  ")
        print("\n".join([line] if is_row else fitted(line)))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "distlab explain",
        description="Say why a job waits: which ranks wait, in which call, at which line, and for "
        "whom. It reads the dump of each rank's flight recorder, whatever the backend.",
    )
    parser.add_argument(
        "files",
        nargs="*",
        metavar="FILES",
        help="dumps of the flight recorder, or stacks by py-spy or faulthandler: files, a folder "
        "or a pattern; RANK=FILE says of which rank a file is",
    )
    parser.add_argument(
        "--pids",
        type=pids_given,
        metavar="PID,PID",
        help="look at the stacks of these running processes instead, by py-spy; the process of "
        "torchrun stands for its ranks",
    )
    parser.add_argument(
        "--world-size",
        type=int,
        metavar="N",
        help="how many ranks the job has, where the dumps do not say (those of gloo)",
    )
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    return parser
