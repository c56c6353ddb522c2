"""What acts on the cluster of this notebook without naming it: `distlab.run`, `trace`, `export`; and `attach`.

Runs on the notebook's kernel.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from distlab.client.cluster import Cluster, current_cluster

if TYPE_CHECKING:
    from distlab.client.export import Export
    from distlab.traces.trace import Trace

attach = Cluster.attach


def run(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> list[Any]:
    """Call fn(rank, world_size, ...) on every rank of the current cluster; see `Cluster.run`.

    Runs on: the notebook's kernel; `fn` runs on the ranks.
    """
    return current_cluster().run(fn, *args, **kwargs)


def trace(ranks: list[int] | None = None) -> contextlib.AbstractContextManager[Trace]:
    """Record what the ranks of the current cluster do; see `Cluster.trace`. Runs on: the notebook's kernel."""
    return current_cluster().trace(ranks)


def export(path: str | os.PathLike, force: bool = False, slurm: bool | None = None) -> Export:
    """Write what has run on the current cluster as a script; see `Cluster.export`. Runs on: the notebook's kernel."""
    return current_cluster().export(path, force, slurm)
