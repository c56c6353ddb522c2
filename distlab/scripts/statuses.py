"""The exit statuses of `distlab run`, besides those of a program's own.

Read in the launcher's process, by running.py, outcome.py, comparing.py and predicting.py.
"""

import signal

from distlab.diagnosis.endings import SIGNALLED

FAILED = 1  # as of a program that raises
WRONG = 2  # what was asked for cannot be, as argparse has it
INTERRUPTED = SIGNALLED + signal.SIGINT


def signalled(number: int) -> int:
    """The status of a program that a signal has ended, by its number."""
    return SIGNALLED + number
