"""One run of a program on ranks: started, waited for, and said how it has ended.

Runs in the launcher's process, called by run.py. The ranks are those of a `Cluster`;
rank/program.py runs the program on each.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from distlab.errors import DistlabError, RanksFailed
from distlab.notebook import interrupts
from distlab.notebook.cell import Options
from distlab.notebook.cluster import Cluster
from distlab.notebook.early import EarlyServer
from distlab.notebook.plan import Plan
from distlab.rank import entry
from distlab.scripts import options, outcome, preempting, tracing
from distlab.scripts.options import Chosen
from distlab.scripts.program_cell import ProgramCell
from distlab.scripts.requests import Requests
from distlab.scripts.statuses import FAILED, INTERRUPTED, signalled
from distlab.scripts.terminal import Terminal
from distlab.wire import direct, pickling
from distlab.wire.preemption import GRACE as PREEMPTED
from distlab.wire.program import Program

TORCH_TIMEOUT = 1800.0  # seconds; that of a group which is given none, as under torchrun
# what distlab sets for its ranks, and a program that torchrun starts does not find
OWN_VARIABLES = (
    "PYTHONUNBUFFERED",
    "IPP_CLUSTER_ID",
    "IPP_PROFILE_DIR",
    direct.VARIABLE,
    "RES_OPTIONS",
    "KINETO_LOG_LEVEL",
    "TORCH_CPP_LOG_LEVEL",
    "TORCH_FR_BUFFER_SIZE",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
)


# what an optimizer imports at its first step, which takes a second
COMPILER = "torch._dynamo"


class ProgramCluster(Cluster):
    """A cluster for one program, whose ranks are no engines of ipyparallel.

    Args:
        early: its fork server.
        preload: modules that the fork server imports once for all ranks.
    """

    def __init__(
        self,
        n: int,
        early: EarlyServer,
        threads: int | None,
        fresh: bool,
        preload: tuple[str, ...],
    ):
        self._early = early
        self._preload = preload
        super().__init__(n, timeout=TORCH_TIMEOUT, threads=threads, fresh=fresh)

    def _adapted(self, plan: Plan) -> Plan:
        return replace(plan, direct=True, early=self._early, preload=self._preload)


def shared_modules(chosen: Chosen) -> tuple[str, ...]:
    """What is imported once instead of on each rank, if the text of the program needs it.

    Ranks that are fresh share nothing, and one rank has nobody to share with.
    """
    if chosen.fresh or chosen.is_module or chosen.ranks == 1:
        return ()
    text = b""
    with contextlib.suppress(OSError):  # the ranks say what is wrong with it
        text = Path(chosen.program).read_bytes()
    return (COMPILER,) if b"optim" in text else ()


def run_program(chosen: Chosen, requests: Requests, early: EarlyServer) -> int:
    """Run a program on ranks, and say how it has ended if it has not ended well.

    Args:
        chosen: what a person has asked for.
        requests: the signals that this process gets.
        early: the fork server for the ranks.

    Returns:
        the exit status.
    """
    for ignored in chosen.ignored:
        say(f"distlab run does without {ignored}.")
    terminal = Terminal(chosen.ranks, chosen.streams, requests.nobody_reads)
    words = ""
    reports: list[str] = []  # of what was asked for beside the run
    try:
        status, words = _run_on_ranks(chosen, terminal, requests, early, reports)
    except KeyboardInterrupt as interrupt:
        status, words = _of_interrupt(interrupt, requests)
    except RanksFailed as error:
        status = outcome.status_of(error)
        words = outcome.words_of(error)
    except DistlabError as error:
        status = FAILED
        words = f"{type(error).__name__}: {error}"
    finally:
        terminal.end()
    if words and requests.number != signal.SIGPIPE:
        say(words if terminal.is_at_begin_of_line else f"\n{words}")
    for report in reports:
        say(f"\n{report}")
    return status


def say(words: str) -> None:
    """Write what concerns all ranks on stderr."""
    with contextlib.suppress(OSError):  # nobody reads it any more
        print(words, file=sys.stderr, flush=True)


def _of_interrupt(interrupt: KeyboardInterrupt, requests: Requests) -> tuple[int, str]:
    """Status and words for Ctrl-C, and for a signal that came while the ranks started."""
    if requests.number:
        return signalled(requests.number), f"Ended by {outcome.name_of(requests.number)}."
    return INTERRUPTED, outcome.words_of_interrupt(interrupt)


def _run_on_ranks(
    chosen: Chosen,
    terminal: Terminal,
    requests: Requests,
    early: EarlyServer,
    reports: list[str],
) -> tuple[int, str]:
    """Start ranks, run the program on each of them, and return status and words."""
    # OpenMP takes a list, too, with a number for each level of threads within threads
    given_threads, _, _ = os.environ.get("OMP_NUM_THREADS", "").partition(",")
    with contextlib.ExitStack() as ends:
        cluster = ends.enter_context(
            ProgramCluster(
                chosen.ranks,
                early,
                threads=int(given_threads) if given_threads.isdecimal() else None,
                fresh=chosen.fresh,
                preload=shared_modules(chosen),
            )
        )
        if chosen.trace:
            ends.enter_context(tracing.traced(cluster, chosen.trace, reports))
        if chosen.preempt:
            grace = chosen.grace or PREEMPTED
            ends.enter_context(preempting.reported(cluster, chosen.preempt, grace, reports))
        with interrupts.held():
            cell = _send(cluster, _program_of(chosen, terminal), chosen)
            cell.attend(terminal, requests, chosen.grace or options.GRACE)
            try:
                replies = cell.finish()
            except RanksFailed as error:
                error.failures = outcome.in_order(error.failures, cell.failed_first)
                raise
        if requests.number:
            return outcome.of_signal(requests.number, replies, cell.ending)
        if cell.portability is not None:
            reports.append(cell.portability.words())
    return 0, ""


def _send(cluster: Cluster, program: Program, chosen: Chosen) -> ProgramCell:
    """Send the program to all ranks."""
    packed = pickling.pack((entry.run_program, (program,), {}), "The program")

    def send(view: Any) -> Any:
        return view.apply_async(entry.call_function, *packed)

    everyone = list(range(chosen.ranks))
    options_of_cell = Options(chosen.timeout, chosen.check)
    return ProgramCell.send(cluster.ranks, everyone, send, options_of_cell)


def _program_of(chosen: Chosen, terminal: Terminal) -> Program:
    """The program, as the ranks get it."""
    stdin = ""
    if sys.platform == "linux":
        stdin = f"/proc/{os.getpid()}/fd/0"
    own = (*OWN_VARIABLES, "OMP_NUM_THREADS")
    unset = [name for name in own if name not in os.environ]
    kept = {name: os.environ[name] for name in own if name in os.environ}
    kept["TORCHELASTIC_SIGNALS_TO_HANDLE"] = ",".join(one.name for one in chosen.signals)
    return replace(
        chosen.as_program(),
        streams=terminal.paths,
        writes_all=chosen.streams.has_files,
        stdin=stdin,
        environment=kept,
        unset=tuple(unset),
    )
