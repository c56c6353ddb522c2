"""`distlab run`: a program for torchrun, unmodified, on ranks that explain why they wait.

Runs in a process of its own, the launcher's, called by __main__.py. The ranks are those of a
`Cluster`; rank/program.py runs the program on each.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence

from distlab.errors import DistlabError, RanksFailed
from distlab.notebook.cluster import Cluster
from distlab.rank import entry
from distlab.scripts import options, preempting
from distlab.scripts.options import Chosen
from distlab.scripts.terminal import Terminal
from distlab.wire.program import Program

TORCH_TIMEOUT = 1800.0  # seconds; that of a group which is given none, as under torchrun
FAILED = 1  # exit statuses
INTERRUPTED = 130


def run(arguments: Sequence[str]) -> int:
    """`distlab run`: run a program for torchrun on ranks that explain why they wait.

    Returns the exit status.
    """
    chosen = options.read(arguments)
    if chosen.ranks > 1:
        os.environ.setdefault("OMP_NUM_THREADS", "1")  # as torchrun does
    terminal = Terminal(chosen.ranks, bool(chosen.prefix))
    words = ""
    status = 0
    reports: list[str] = []
    try:
        _run_on_ranks(chosen, terminal, reports)
    except KeyboardInterrupt as interrupt:
        words = f"Interrupted: {interrupt}"
        status = INTERRUPTED
    except RanksFailed as error:
        words = f"{type(error).__name__}: {error}"
        status = _status_of(error)
    except DistlabError as error:
        words = f"{type(error).__name__}: {error}"
        status = FAILED
    finally:
        terminal.end()
    for text in (words, *reports):
        if text:
            print(f"\n{text}", file=sys.stderr, flush=True)
    return status


def _run_on_ranks(chosen: Chosen, terminal: Terminal, reports: list[str]) -> None:
    """Start ranks, and run the program on each of them; add what is to be said at the end."""
    program = Program(
        name=chosen.program,
        arguments=chosen.arguments,
        is_module=chosen.is_module,
        folder=os.getcwd(),
        streams=terminal.folder,
    )
    threads = int(os.environ.get("OMP_NUM_THREADS", "1"))
    with contextlib.ExitStack() as ends:
        cluster = ends.enter_context(
            Cluster(chosen.ranks, timeout=TORCH_TIMEOUT, threads=threads, fresh=chosen.fresh)
        )
        if chosen.trace:
            trace = ends.enter_context(cluster.trace())
            ends.callback(lambda: trace.to_chrome(chosen.trace))
        if chosen.preempt:
            preempted = preempting.reported(cluster, chosen.preempt, chosen.grace, reports)
            ends.enter_context(preempted)
        cluster.run(entry.run_program, program, timeout=chosen.timeout, check=chosen.check)


def _status_of(error: RanksFailed) -> int:
    """The exit status of the first rank that failed."""
    for failure in error.failures:
        if failure.kind == "SystemExit" and failure.message.isdigit():
            return int(failure.message)
    return FAILED
