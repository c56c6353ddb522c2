"""Which versions of other libraries are here: the newest torch that was tested, and private parts that one may lack.

Runs on the notebook's kernel, called by cluster.py, and in the doctor's process. It imports no other library.
"""

from __future__ import annotations

import contextlib
import functools
import pkgutil
import re
import warnings
from collections.abc import Mapping
from importlib import metadata

NEWEST_TORCH = "2.15.0"  # the matrix takes it from here; the oldest stands in pyproject.toml


@functools.cache
def warn_of_newer_torch() -> None:
    """Warn, once a process, where the installed torch is of a newer release than the newest tested one.

    Runs on: the notebook's kernel, called by the constructor of `Cluster`.
    """
    here = metadata.version("torch")
    if release(here) > release(NEWEST_TORCH):
        newer = f"torch {here} is newer than torch {NEWEST_TORCH}, the newest that this distlab was tested with."
        advice = f'If ranks behave strangely, install that one: pip install "torch=={NEWEST_TORCH}"'
        warnings.warn(f"{newer} {advice}", stacklevel=3)


def release(version: str) -> tuple[int, ...]:
    """The first two numbers of a version: (2, 15) for "2.15.1+cpu"."""
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])


def missing(parts: Mapping[str, str]) -> list[str]:
    """A sentence for each of the parts that the installed torch does not have.

    Args:
        parts: "module:name.name" -> what distlab cannot do without it.
    """
    here = f"torch {metadata.version('torch')}"
    absent = {part.replace(":", "."): use for part, use in parts.items() if not _exists(part)}
    return [f"{here} has no {name}, without which distlab cannot {use}." for name, use in absent.items()]


def _exists(part: str) -> bool:
    with contextlib.suppress(ImportError, AttributeError):
        pkgutil.resolve_name(part)
        return True
    return False
