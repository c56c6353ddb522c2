"""Keeps this machine busy with COUNT processes until it is ended.

Called by `make test LOAD=15`, and by hand: python tools/load.py 15
"""

import multiprocessing
import os
import signal
import sys


def compute(parent: int) -> None:
    """Compute as long as the process that has asked for it is alive."""
    while os.getppid() == parent:
        sum(range(1_000_000))


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    if os.getpid() != os.getpgrp():
        # as from another terminal: Linux shares the cores among sessions, and the tests have theirs
        os.setsid()
    for _ in range(int(sys.argv[1])):
        multiprocessing.Process(target=compute, args=[os.getpid()], daemon=True).start()
    signal.pause()
