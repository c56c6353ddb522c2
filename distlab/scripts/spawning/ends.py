"""With which status a spawned process has ended, from what a cluster says of its rank.

Runs in the process that calls `distlab.spawn`, called by spawn.py and errors.py.
"""

from __future__ import annotations

import re
import signal

from distlab.diagnosis.deaths import DIED
from distlab.wire.messages import Failure


def exit_status_of(failure: Failure) -> int:
    """The exit status of the process of a rank that failed, or minus the signal that ended it."""
    if failure.kind == "SystemExit":
        return int(failure.message) if failure.message.isdigit() else 1
    status = re.search(r"exit status (\d+)", failure.message)
    if failure.kind == DIED and status is not None:
        return int(status[1])
    name = signal_of(failure)
    if name:
        return -signal.Signals[name]
    return 1


def signal_of(failure: Failure) -> str:
    """The name of the signal that has ended the process of a rank; "" if none has."""
    if failure.kind != DIED:
        return ""
    found = re.search(r"SIG[A-Z0-9]+", failure.message)
    if found is None or found[0] not in signal.Signals.__members__:
        return ""
    return found[0]
