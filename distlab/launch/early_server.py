"""The fork server of a launcher, which imports what its ranks share before it knows its plan.

Runs as a process of its own, started by notebook/early.py.
"""

from __future__ import annotations

import gc
import importlib
import os
import signal
import sys

from distlab import programs
from distlab.launch.preloading import import_ranks_of_launcher

FRESH = "fresh"  # the word on the command line for ranks that share nothing


def main() -> None:
    """Import, unless ranks are fresh, and serve."""
    parent = os.getppid()
    # while it imports, it does not see the end of its orders
    programs.end_with_parent(parent, signal.SIGTERM)
    if FRESH not in sys.argv:
        gc.disable()  # nothing that is imported is garbage
        import_ranks_of_launcher(())
    importlib.import_module("distlab.launch.fork_server").main()
