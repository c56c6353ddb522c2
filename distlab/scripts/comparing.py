"""`distlab run --compare`: does a program on several ranks train as it does in one process?

Runs in the launcher's process, called by run.py; `run_as_compared` runs on every rank of each
world.
"""

from __future__ import annotations

import functools
import os
import sys

from distlab.comparison.compare import compare
from distlab.errors import DistlabError
from distlab.scripts.options import Chosen
from distlab.scripts.statuses import FAILED, WRONG
from distlab.wire.program import Program


def compare_with_one_process(chosen: Chosen) -> int:
    """Print whether the ranks train as one process does; returns the exit status, 1 if not."""
    if chosen.ranks < 2:
        words = "--compare needs --nproc-per-node 2 or more: one process is compared with them"
        print(f"distlab run: error: {words}", file=sys.stderr)
        return WRONG
    as_compared = functools.partial(run_as_compared, program=chosen.as_program())
    try:
        verdict = compare(as_compared, (1, chosen.ranks), timeout=chosen.timeout)
    except DistlabError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return FAILED
    print(verdict)
    return 0 if verdict.same else FAILED


def run_as_compared(rank: int, world_size: int, program: Program) -> None:
    """Run a program as this rank of a world; its group gives way to those that it makes.

    Runs on: every rank of a world.
    """
    from distlab.rank.main_module import run_as_main  # the launcher needs no torch
    from distlab.rank.this_rank import THIS_RANK

    THIS_RANK.backend = program.backend
    os.environ.update(TORCHELASTIC_RUN_ID=program.run_id, ROLE_NAME=program.role)
    run_as_main(program)
