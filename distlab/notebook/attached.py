"""Engines of a running ipyparallel cluster, which others started and which can become ranks.

Runs on the notebook's kernel, called by cluster.py for `Cluster.attach`; attaching.py uses them.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distlab.errors import ClusterError

START = "Start one with `ipcluster start -n 4`, or call Cluster(4)."
CONTROLLER_SECONDS = 10.0  # for a controller to answer


@dataclass(frozen=True)
class Attached:
    """Engines of a running ipyparallel cluster.

    Attributes:
        client: their ipyparallel Client.
        where: what `attach_to` was given.
    """

    client: Any
    where: str


def attach_to(where: str | os.PathLike[str]) -> Attached:
    """The engines of a running cluster, by a profile's name or a connection file.

    Raises:
        ClusterError: no controller is found or answers, or its engines are not 0 to n - 1.
    """
    import ipyparallel

    try:
        file = _connection_file(where)
        client = ipyparallel.Client(connection_info=file, timeout=CONTROLLER_SECONDS)
    except (OSError, ipyparallel.error.IPythonError) as error:
        silent = f"No ipyparallel cluster answers at {where!r} ({error})"
        raise ClusterError(f"{silent}. {START}") from error
    ids = client.ids
    if not ids or ids != list(range(len(ids))):
        client.close()
        rule = f"Ranks are engines 0 to n - 1, and this cluster has {ids}"
        raise ClusterError(f"{rule}: start its engines again.")
    return Attached(client, os.fspath(where))


def _connection_file(where: str | os.PathLike[str]) -> str:
    """The path of the connection file that is meant; of a profile, the newest."""
    from IPython.paths import get_ipython_dir

    path = Path(where)
    if path.is_file():
        return str(path)
    folder = Path(get_ipython_dir(), f"profile_{path}", "security")
    files = list(folder.glob("ipcontroller*-client.json"))
    if not files:
        missing = f"No ipyparallel cluster runs in profile {where!r}, and no file has this path"
        raise ClusterError(f"{missing}. {START}")
    return str(max(files, key=os.path.getmtime))
