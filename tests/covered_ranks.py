"""A plugin of pytest for `make coverage`: ranks write down which lines they ran before they end.

A cluster ends its ranks by a signal, which leaves a process no time for that.
"""

import contextlib
import functools
from typing import Any

import ipyparallel

import distlab

SECONDS = 5.0  # for ranks that are blocked, whose lines are not counted then


def pytest_configure() -> None:
    distlab.Cluster._end = functools.partialmethod(_end, distlab.Cluster._end)


def _end(cluster: distlab.Cluster, end: Any, *arguments: Any, **options: Any) -> Any:
    if cluster is distlab.Cluster.current:
        with contextlib.suppress(distlab.ClusterError, ipyparallel.error.IPythonError):
            cluster.client[:].apply_async(_save).wait(SECONDS)
    return end(cluster, *arguments, **options)


def _save() -> None:
    """Write the lines of this process into a file. Runs on: every rank."""
    import coverage

    coverage.Coverage.current().save()
