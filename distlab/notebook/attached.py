"""Engines of a running ipyparallel cluster, which others started and which can become ranks.

Runs on the notebook's kernel, called by cluster.py for `Cluster.attach`; processes.py uses them.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distlab.errors import ClusterError

START = "Start one with `ipcluster start -n 4`, or call Cluster(4)."
CONNECT_SECONDS = 10.0  # for a controller to answer


@dataclass(frozen=True)
class Engines:
    """Engines of a running ipyparallel cluster.

    Attributes:
        client: their ipyparallel Client.
        where: what `connect` was given.
    """

    client: Any
    where: str


def connect(where: Any) -> Engines:
    """The engines of a running cluster, by a profile's name or a connection file.

    Raises:
        ClusterError: no controller is found or answers, or its engines are not 0 to n - 1.
    """
    import ipyparallel

    try:
        client = ipyparallel.Client(
            connection_info=_connection_file(where), timeout=CONNECT_SECONDS
        )
    except (OSError, ipyparallel.error.IPythonError) as error:
        raise ClusterError(
            f"No ipyparallel cluster answers at {where!r} ({error}). {START}"
        ) from error
    if not client.ids or client.ids != list(range(len(client.ids))):
        found = client.ids
        client.close()
        raise ClusterError(
            f"Ranks are engines 0 to n - 1, and this cluster has {found}: start its engines again."
        )
    return Engines(client, os.fspath(where))


def _connection_file(where: Any) -> str:
    """The path of the connection file that is meant; of a profile, the newest."""
    from IPython.paths import get_ipython_dir

    path = Path(os.fspath(where))
    of_profile = Path(get_ipython_dir()).glob(f"profile_{path}/security/ipcontroller*-client.json")
    newest = path if path.is_file() else max(of_profile, key=os.path.getmtime, default=None)
    if newest is None:
        raise ClusterError(
            f"No ipyparallel cluster runs in profile {where!r}, and no file has this path. {START}"
        )
    return str(newest)
