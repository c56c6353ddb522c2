"""Slurm as the way to hosts: what it is asked for, and srun's arguments.

Runs on the notebook's kernel, called by plan.py and processes.py. One srun starts one fork server on each node; its
stdin goes to all of them, and their reports come over its stdout. ipyparallel's own launcher submits a batch file that
starts every engine by itself, and drops `options`.
"""

import math
import os
import shutil
from dataclasses import dataclass

from distlab.text import refuse

NAME = "slurm"
END_SECONDS = 10.0  # that srun has to give back the nodes, which stay allocated where it is killed


@dataclass(frozen=True)
class Job:
    """What Slurm is asked for.

    Attributes:
        nodes: how many.
        ranks: on the node that has the most.
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
    """srun's command line: a task a node, with a CPU for each of its ranks."""
    words = ["srun", "--job-name=distlab", f"--nodes={job.nodes}", f"--ntasks={job.nodes}", "--ntasks-per-node=1"]
    words += [f"--cpus-per-task={job.ranks}", f"--immediate={math.ceil(job.queue_timeout)}"]
    words += ["--no-kill", "--kill-on-bad-exit=0", "--input=all", "--unbuffered"]
    words += ["--overlap"] if nodes_of_allocation() is not None else []
    words += [f"--partition={job.partition}"] if job.partition else []
    words += [f"--time={job.time}"] if job.time else []
    return [*words, *job.options]
