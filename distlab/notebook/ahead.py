"""Fork server and controller without ranks, for the next cluster of a notebook.

Runs on the notebook's kernel. `%load_ext distlab` starts them before a cluster is asked for, and
cluster.py keeps those of a cluster that was stopped; ranks.py takes them.
"""

from __future__ import annotations

import os
import threading

import psutil

from distlab.compat.ipython import notebook_shell
from distlab.launch import reaper
from distlab.notebook.plan import Plan
from distlab.notebook.processes import Processes
from distlab.notebook.start_methods import FORK, default_start_method
from distlab.notebook.starting import start_processes
from distlab.supervised import SupervisedThread

IDLE_SECONDS = 300.0  # after which processes end that no cluster has taken
BEGUN: list[Ahead] = []  # the thread whose processes the next cluster may take; one at most


class Ahead(SupervisedThread):
    """The thread that starts or keeps processes without engines, for as long as they may be wanted.

    It ends them if no cluster takes them for a while. Importing torch takes most of the time of a
    start, and a person needs some for the next cell. Nobody has asked for these processes yet. So
    whatever goes wrong is not reported here: the next cluster finds no processes, starts its own,
    and says why it cannot.

    Args:
        kept: processes of a cluster that was stopped; None to start some.
    """

    def __init__(self, kept: Processes | None = None) -> None:
        super().__init__("distlab-ahead")
        self._processes = kept
        self._owner = os.getpid()
        self._wanted = threading.Event()

    def serve(self) -> None:
        """Start processes, unless some were kept; end them if nobody wants them for a while."""
        processes = self._processes
        if processes is None:
            processes = start_processes(Plan(0, "gloo", "tcp", FORK, timeout=60.0, threads=1))
            self._processes = processes
        if not self._wanted.wait(IDLE_SECONDS):
            self._processes = None  # no cluster may take them from now on
            processes.stop()

    def on_error(self, error: BaseException) -> None:
        """Leave the report to the next cluster."""

    def on_end(self) -> None:
        """Leave what was started to the next cluster, which takes it or ends it."""

    def take(self, plan: Plan) -> Processes | None:
        """Return the processes if a cluster with this plan can use them; else stop them.

        Returns None if there are none of use.
        """
        if os.getpid() != self._owner:
            return None  # the notebook has forked this process: they are its parent's
        self._wanted.set()
        self.join()
        found = self._processes
        if found is None:
            return None
        if found.can_fork and found.can_serve(plan):
            return found
        found.stop()
        return None


def _offer_to_next_cluster(ahead: Ahead) -> None:
    """Start the thread, and have the next cluster find it."""
    ahead.start()
    BEGUN.append(ahead)


def begin() -> None:
    """Start processes for the next cluster, where a fork server starts ranks.

    They are started once, until a cluster is asked for.
    """
    if not BEGUN and default_start_method() == FORK:
        _offer_to_next_cluster(Ahead())


def keeps() -> bool:
    """Whether this process keeps the processes of a cluster that it stops.

    A notebook does, but a script, a test or a rank does not.
    """
    is_rank = reaper.TAG in os.environ
    return notebook_shell() is not None and not is_rank and not BEGUN


def keep_for_next_cluster(stopped: Processes) -> None:
    """Keep the processes of a cluster that was stopped for the next one, without its ranks.

    What the ranks started ends with them. Processes that lead to other hosts are of no use to most
    clusters, so they end.
    """
    if not stopped.is_only_here:
        stopped.stop()
        return
    try:
        stopped.end_engines()
        _offer_to_next_cluster(Ahead(stopped))
    except (RuntimeError, psutil.Error):
        # a process has died, or the system does not let this one have another thread
        stopped.stop()


def take_for_cluster(plan: Plan) -> Processes | None:
    """Take the processes that wait for a cluster, if one with this plan can use them.

    Returns None if there are none, or none of use: these end.
    """
    if not BEGUN:
        return None
    return BEGUN.pop().take(plan)
