"""The values of the options of `distlab run`, read from words of the command line.

Runs in the launcher's process, called by argparse for options.py: each function refuses what breaks
its rule, and argparse says of which option that is.
"""

from __future__ import annotations

import argparse
import math
import os
import signal
from pathlib import Path

from distlab import machine
from distlab.scripts.streams import by_rank


def ranks(text: str) -> int:
    """A number of ranks: torchrun also takes "auto", "cpu" and "gpu"."""
    if text == "gpu":
        count = _gpus()
        if count == 0:
            raise argparse.ArgumentTypeError("there is no GPU here: give a number, or cpu")
        return count
    if text == "auto":
        return _gpus() or machine.cores()
    if text == "cpu":
        return machine.cores()
    return _whole_number(text, least=1, what="a number of ranks from 1, or auto, cpu or gpu")


def _gpus() -> int:
    """How many GPUs torch can use. It takes a second to import, and is asked only where one is."""
    if not any(os.path.exists(device) for device in ("/dev/nvidiactl", "/dev/kfd")):
        return 0
    import torch

    return torch.cuda.device_count()


def _whole_number(text: str, least: int, what: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = least - 1
    if number < least:
        raise argparse.ArgumentTypeError(f"must be {what}, got {text!r}")
    return number


def seconds(text: str) -> float:
    """A number of seconds above 0."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds < math.inf:
        raise argparse.ArgumentTypeError(f"must be a number of seconds above 0, got {text!r}")
    return seconds


def predicted_ranks(text: str) -> int:
    """A number of ranks that are predicted."""
    return _whole_number(text, least=1, what="a number of ranks from 1")


def restarts(text: str) -> int:
    """A number of restarts."""
    return _whole_number(text, least=0, what="a number from 0")


def one_machine(text: str) -> str:
    """A number of machines, which is 1."""
    if text not in ("1", "1:1"):
        raise argparse.ArgumentTypeError(
            f"must be 1, got {text!r}: on several machines use torchrun, or in Python "
            "distlab.Cluster(hosts={'nodeA': 4, 'nodeB': 4})"
        )
    return text


def first_machine(text: str) -> int:
    """The number of this machine, which is 0."""
    if text != "0":
        raise argparse.ArgumentTypeError(f"must be 0, got {text!r}: there is one machine")
    return 0


def signals(text: str) -> tuple[signal.Signals, ...]:
    """Names of signals, with commas between them."""
    try:
        return tuple(signal.Signals[name.strip().upper()] for name in text.split(","))
    except KeyError as error:
        words = f"must be names of signals such as SIGTERM,SIGUSR1, got {error.args[0]!r}"
        raise argparse.ArgumentTypeError(words) from None


def new_file(text: str) -> str:
    """A file that can be written: found out now, and not when the program has ended."""
    folder = Path(text).absolute().parent
    if not folder.is_dir():
        raise argparse.ArgumentTypeError(f"there is no folder {str(folder)!r}")
    if Path(text).is_dir() or not os.access(folder, os.W_OK):
        raise argparse.ArgumentTypeError(f"{text!r} cannot be written")
    return text


def folder(text: str) -> str:
    """A folder, which is made if it is not there."""
    try:
        Path(text).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{text!r} cannot be made: {error.strerror}") from error
    return text


def streams(text: str) -> dict[int, int]:
    """Which streams, as torchrun's --redirects and --tee say it."""
    try:
        return by_rank(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"must be 0, 1, 2 or 3, or such numbers by rank as in 0:3,1:2, got {text!r}"
        ) from None


def some_ranks(text: str) -> frozenset[int]:
    """Ranks, with commas between them."""
    try:
        return frozenset(int(word) for word in text.split(","))
    except ValueError:
        words = f"must be ranks with commas between them, got {text!r}"
        raise argparse.ArgumentTypeError(words) from None
