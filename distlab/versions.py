"""The newest torch that distlab was tested with, and what is said of a newer one. Called by cluster.py.

Runs on the notebook's kernel, which does not import torch for it.
"""

from __future__ import annotations

import functools
import re
import warnings
from importlib import metadata

NEWEST_TORCH = "2.15.0"  # make matrix takes it from here; the oldest stands in pyproject.toml


@functools.cache
def warn_of_newer_torch() -> None:
    """Warn, once a process, where the installed torch is of a newer release than the newest tested one.

    Runs on: the notebook's kernel, called by the constructor of `Cluster`.
    """
    here = metadata.version("torch")
    if release(here) > release(NEWEST_TORCH):
        warnings.warn(
            f"torch {here} is newer than torch {NEWEST_TORCH}, the newest that this distlab was tested with. If ranks "
            f'behave strangely, install that one: pip install "torch=={NEWEST_TORCH}"',
            stacklevel=3,
        )


def release(version: str) -> tuple[int, ...]:
    """The first two numbers of a version: (2, 15) for "2.15.1+cpu"."""
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])
