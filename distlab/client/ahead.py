"""Fork server and controller, started in a notebook before a cluster is asked for. Runs on the notebook's kernel.

`%load_ext distlab` begins; ranks.py takes.
"""

import contextlib
import os
import threading
from typing import Any

from distlab.client.plan import FORK, ControllerEndedError, Plan, check_launcher
from distlab.client.processes import Processes
from distlab.errors import ClusterError

IDLE_SECONDS = 300.0  # after which processes end that no cluster has taken


def started(plan: Plan) -> Processes:
    """The processes of a plan, started again if another program has taken a port first."""
    try:
        return Processes(plan)
    except ControllerEndedError:
        return Processes(plan)


class Ahead:
    """Processes without engines, started before a cluster is asked for, and ended if none is for a while.

    Importing torch takes most of the time of a start, and a person needs some for the next cell.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._timer: threading.Timer | None = None
        self._processes: Processes | None = None
        self._surroundings: Any = None

    def begin(self) -> None:
        """Start them in a thread, where a fork server starts ranks; once, until they are taken."""
        if self._thread is None and check_launcher(None) == FORK:
            self._surroundings = _surroundings()
            self._thread = threading.Thread(target=self._start, name="distlab-ahead", daemon=True)
            self._thread.start()
            self._timer = threading.Timer(IDLE_SECONDS, self.take)
            self._timer.daemon = True
            self._timer.start()

    def _start(self) -> None:
        with contextlib.suppress(ClusterError):  # whoever asks for a cluster starts one, and hears why it fails
            self._processes = started(Plan(0, "gloo", "tcp", FORK, timeout=60.0, threads=1))

    def take(self, plan: Plan | None = None) -> Processes | None:
        """They, for a cluster with this plan; if they are of no use to it, they end, and it is None."""
        with self._lock:
            thread, self._thread = self._thread, None
            if thread is None:
                return None
            self._timer.cancel()  # it would end those of a later time
            thread.join()
            found, self._processes = self._processes, None
        usable = plan is not None and (plan.engines, plan.hosts, plan.preload) == (FORK, None, ())
        if found is None or (usable and found.can_fork and self._surroundings == _surroundings()):
            return found
        found.stop()
        return None


def _surroundings() -> tuple[dict[str, str], str]:
    """What the ranks get from this process as it is now."""
    return dict(os.environ), os.getcwd()


AHEAD = Ahead()
