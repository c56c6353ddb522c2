"""`distlab run`: a program for torchrun, unmodified, on ranks that explain why they wait.

Runs in a process of its own, the launcher's, called by __main__.py. It starts what takes longest,
the process that imports torch, and only then imports the rest: running.py.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence

from distlab.notebook.early import start_early
from distlab.scripts import options
from distlab.scripts.options import Chosen
from distlab.scripts.requests import Requests

INTERRUPTED = "Interrupted while the ranks started."


def run(arguments: Sequence[str]) -> int:
    """`distlab run`: run a program for torchrun on ranks that explain why they wait.

    Returns the exit status.
    """
    chosen = options.read(arguments)
    if chosen.predict or chosen.compare:
        return _instead_of_a_run(chosen)
    requests = Requests()
    requests.listen(chosen.signals)
    if chosen.ranks > 1:
        os.environ.setdefault("OMP_NUM_THREADS", "1")  # as torchrun does
    early = start_early(chosen.fresh)
    try:
        from distlab.scripts.running import run_program

        return run_program(chosen, requests, early)
    except KeyboardInterrupt:  # before there was anything to end
        number = requests.number
        words = f"Ended by {signal.Signals(number).name}." if number else INTERRUPTED
        print(words, file=sys.stderr)
        return 128 + (number or signal.SIGINT)
    finally:
        early.abandon()


def _instead_of_a_run(chosen: Chosen) -> int:
    """Predict the program, or compare its ranks with one process; returns the exit status."""
    if chosen.predict:
        from distlab.scripts.predicting import predict

        return predict(chosen)
    from distlab.scripts.comparing import compare_with_one_process

    return compare_with_one_process(chosen)
