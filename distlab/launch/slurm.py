"""Slurm as the program that reaches hosts: srun's arguments, what it writes while a job waits, and why it refuses.

Runs on the notebook's kernel, called by hosts.py. One srun starts one fork server on each node; its stdin goes to all
of them, and their reports come over its stdout. ipyparallel's own launcher submits a batch file that starts every
engine by itself, and drops `options`.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass

from distlab.text import refuse

NAME = "slurm"
ASK_SECONDS = 1.0  # between two questions for what a job waits
HOPELESS = ("PartitionConfig", "PartitionNodeLimit", "PartitionTimeLimit", "BadConstraints", "AccountNotAllowed")


@dataclass(frozen=True)
class Job:
    """What is asked of Slurm.

    Attributes:
        nodes: how many.
        ranks: of the node that has most.
        partition: as srun takes it; None for Slurm's default.
        time: as srun takes it; None for Slurm's default.
        options: more words for srun, which override these.
        queue_timeout: seconds in the queue, at most.
    """

    nodes: int
    ranks: int
    partition: str | None = None
    time: str | None = None
    options: tuple[str, ...] = ()
    queue_timeout: float = 60.0


def check() -> None:
    """ArgumentError where Slurm's commands are not installed."""
    if shutil.which("srun") is None:
        advice = "srun was not found: run this on a machine of the Slurm cluster, or call Cluster(n)."
        refuse("engines", "a launcher whose programs are installed here", NAME, advice)


def nodes_of_allocation() -> int | None:
    """How many nodes the allocation has that this process is in; None outside of one."""
    return int(os.environ["SLURM_JOB_NUM_NODES"]) if "SLURM_JOB_NUM_NODES" in os.environ else None


def command(job: Job) -> list[str]:
    """srun's command line, without the program."""
    words = ["srun", "--job-name=distlab", f"--nodes={job.nodes}", f"--ntasks={job.nodes}", "--ntasks-per-node=1"]
    found = _ask("sinfo", "-h", "-o", "%c", *(["-p", job.partition] if job.partition else []))
    cpus = min((int(number) for number in re.findall(r"\d+", found)), default=job.ranks)  # of the smallest node
    words += [f"--cpus-per-task={min(job.ranks, cpus)}"]
    words += ["--no-kill", "--kill-on-bad-exit=0", "--input=all", "--unbuffered"]
    words += ["--overlap"] if nodes_of_allocation() is not None else []
    words += [f"--partition={job.partition}"] if job.partition else []
    words += [f"--time={job.time}"] if job.time else []
    return [*words, *job.options]


def _ask(*words: str) -> str:
    """What a command of Slurm writes; "" where it does not."""
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        return subprocess.run(words, capture_output=True, text=True, timeout=10).stdout.strip()
    return ""


class Queue:
    """Looks whether a job waits in Slurm's queue; `notify` is called once with words for a person."""

    def __init__(self, notify: Callable[[str], None]):
        self._notify, self._asked, self._notified = notify, time.monotonic(), False

    def is_hopeless(self, written: str) -> bool:
        """Whether the job will never start; asked again and again, with what srun has written so far."""
        number = _job_in_queue(written)
        if not number or time.monotonic() - self._asked < ASK_SECONDS:
            return False
        self._asked, reason = time.monotonic(), _reason(number)
        if not self._notified:
            self._notify(f"job {number} waits in Slurm's queue ({reason}); interrupt this cell to cancel it")
        self._notified = True
        return reason in HOPELESS


def _job_in_queue(written: str) -> str:
    """Number of the job that srun waits for; "" where it does not."""
    found = re.findall(r"job (\d+) (queued|has been allocated)", written)
    return found[-1][0] if found and found[-1][1] == "queued" else ""


def _reason(number: str) -> str:
    return _ask("squeue", "-h", "-j", number, "-o", "%r")


def trouble(job: Job, written: str, waits: bool) -> str:
    """Why no ranks started, from what srun has written; `waits`: it still waits, and the job is cancelled now."""
    if waits:
        number = _job_in_queue(written)
        reason = _reason(number) or "it did not answer"
        if number:
            _ask("scancel", number)
        return (
            f"{f'job {number} was cancelled' if number else 'no job began'}, which did not start within "
            f"{job.queue_timeout:g} s, or never will (Slurm says: {reason}). `squeue` shows the queue, and `sinfo` "
            "what there is. Give queue_timeout=600 to wait longer, or ask for fewer nodes or another partition."
        )
    last = "; ".join(line.removeprefix("srun: ").removeprefix("error: ") for line in written.splitlines()[-3:])
    return f"srun ended: {last or 'it wrote nothing'}. `sinfo` shows the partitions, with their nodes and CPUs."
