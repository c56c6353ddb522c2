"""The private parts of torch, ipyparallel, IPython and pytest, and the newest torch tested.

Runs on the notebook's kernel and on ranks.
"""

import functools
import re
import warnings

NEWEST_TORCH = "2.15.0"  # the matrix takes it from here; the oldest stands in pyproject.toml


@functools.cache
def warn_of_newer_torch() -> None:
    """Warn, once in a process, if the installed torch is a newer release than the newest tested.

    Runs on: the notebook's kernel, called by the constructor of `Cluster`.
    """
    from importlib import metadata  # while the ranks start: it takes 20 ms

    here = metadata.version("torch")
    if release(here) > release(NEWEST_TORCH):
        warnings.warn(
            f"torch {here} is newer than torch {NEWEST_TORCH}, the newest that this distlab was "
            "tested with. If ranks behave strangely, install that one: "
            f'pip install "torch=={NEWEST_TORCH}"',
            stacklevel=3,
        )


def release(version: str) -> tuple[int, ...]:
    """The first two numbers of a version: (2, 15) for "2.15.1+cpu"."""
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])
