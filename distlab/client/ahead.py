"""Fork server and controller, started in a notebook before a cluster is asked for. Runs on the notebook's kernel.

`%load_ext distlab` begins; ranks.py takes.
"""

import contextlib
import os
import threading

from distlab.client.plan import FORK, ControllerEndedError, Plan, check_launcher
from distlab.client.processes import Processes

IDLE_SECONDS = 300.0  # after which processes end that no cluster has taken
BEGUN: list["Ahead"] = []  # one at most


def started(plan: Plan) -> Processes:
    """The processes of a plan, started again if another program has taken a port first."""
    try:
        return Processes(plan)
    except ControllerEndedError:
        return Processes(plan)


class Ahead:
    """Processes without engines, started in a thread, which ends them if no cluster takes them for a while.

    Importing torch takes most of the time of a start, and a person needs some for the next cell.
    """

    def __init__(self) -> None:
        self._surroundings = _surroundings()
        self._processes: Processes | None = None
        self._wanted = threading.Event()
        self._thread = threading.Thread(target=self._start, name="distlab-ahead", daemon=True)
        self._thread.start()

    def _start(self) -> None:
        """Start processes, and end them if they are not wanted for a while.

        Whatever goes wrong here, nobody has asked for it yet: the next cluster starts its own, and says why it cannot.
        """
        with contextlib.suppress(Exception):
            self._processes = started(Plan(0, "gloo", "tcp", FORK, timeout=60.0, threads=1))
            if not self._wanted.wait(IDLE_SECONDS):
                unwanted, self._processes = self._processes, None
                unwanted.stop()

    def take(self, plan: Plan) -> Processes | None:
        """They, for a cluster with this plan; if they are of no use to it, they end, and it is None."""
        self._wanted.set()
        self._thread.join()
        found, wanted = self._processes, (plan.engines, plan.hosts, plan.preload, _surroundings())
        if found is None or (found.can_fork and wanted == (FORK, None, (), self._surroundings)):
            return found
        found.stop()
        return None


def begin() -> None:
    """Start processes for the next cluster, where a fork server starts ranks; once, until a cluster is asked for."""
    if not BEGUN and check_launcher(None) == FORK:
        BEGUN.append(Ahead())


def take(plan: Plan) -> Processes | None:
    """The processes that were started ahead, for a cluster with this plan; None if there are none of use to it."""
    return BEGUN.pop().take(plan) if BEGUN else None


def _surroundings() -> tuple[dict[str, str], str]:
    """What the ranks get from this process as it is now.

    Any change counts: torch and other libraries read some variables once, when they are imported.
    """
    return dict(os.environ), os.getcwd()
