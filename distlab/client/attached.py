"""The engines of an ipyparallel cluster that runs already, as ranks: found and joined, and left when the cluster stops.

Runs on the notebook's kernel, called by ranks.py in the place of processes.py. Nothing here starts or ends a process.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distlab.compat.ipyparallel import address_of_controller
from distlab.diagnosis import failures
from distlab.errors import ClusterError
from distlab.rank import entry
from distlab.text import refuse
from distlab.wire.channel import ControlChannel
from distlab.wire.rendezvous import Rendezvous, address_towards

NAME = "attached"  # of Cluster.engines
RULE = "the name of an ipyparallel profile that is there, or the path of a connection file"
START = "Start one with `ipcluster start -n 4`, or call Cluster(4)."
EXAMPLE = 'Call Cluster.attach("default"), or with the path of ipcontroller-client.json.'
SECONDS = 10.0  # for a controller to answer, and for engines to say where they are


@dataclass(frozen=True)
class Engines:
    """Engines of a cluster that was found.

    Attributes:
        client: ipyparallel's, of them.
        where: what `connect` was given.
    """

    client: Any
    where: str


def connect(where: Any) -> Engines:
    """The engines of a cluster that runs, by a profile's name or a connection file.

    Raises:
        ArgumentError: neither of them. ClusterError: no controller answers, or it has no engines 0 to n - 1.
    """
    import ipyparallel

    try:
        client = ipyparallel.Client(connection_info=_connection_file(where), timeout=SECONDS)
    except (OSError, ipyparallel.error.IPythonError) as error:
        raise ClusterError(f"No ipyparallel cluster answers at {where!r} ({error}). {START}") from error
    if not client.ids or client.ids != list(range(len(client.ids))):
        found = client.ids
        client.close()
        raise ClusterError(f"Ranks are engines 0 to n - 1, and this cluster has {found}: start its engines anew.")
    return Engines(client, os.fspath(where))


def _connection_file(where: Any) -> str:
    """The path of the newest connection file that is meant."""
    from IPython.paths import get_ipython_dir

    if not isinstance(where, (str, os.PathLike)) or not os.fspath(where):
        refuse("where", RULE, where, EXAMPLE, True)
    if os.path.isfile(where):
        return os.fspath(where)
    profile = Path(get_ipython_dir(), f"profile_{where}")
    if os.sep in os.fspath(where) or not profile.is_dir():
        refuse("where", RULE, where, EXAMPLE)
    files = sorted(profile.glob("security/ipcontroller*-client.json"), key=os.path.getmtime)
    if not files:
        raise ClusterError(f"No ipyparallel cluster runs in profile {where!r}. {START}")
    return str(files[-1])


class Attached:
    """The same as `Processes`, for engines that others started; see there for the attributes."""

    can_fork, threads, changes = False, None, None

    def __init__(self, client: Any):
        self.client = client
        try:
            names = client.direct_view("all").apply_async(entry.where).get(timeout=SECONDS)
        except Exception as error:  # whatever an engine raises, as where distlab is not installed
            client.close()
            advice = "Each engine needs distlab, as installed here, and must be idle."
            raise ClusterError(f"The engines do not answer: {error}. {advice}") from error
        self.names = tuple(dict.fromkeys(names))
        controller = address_of_controller(client)
        self.channel = ControlChannel("127.0.0.1" if controller.startswith("127.") else address_towards(controller))
        self.rendezvous = Rendezvous("", self.channel.address, hosts=tuple(map(self.names.index, names)))

    def has_ended(self, rank: int, pid: int) -> bool:
        return False  # ipyparallel reports it

    def how_ended(self, rank: int, pid: int) -> str:
        return failures.exit_words(None)

    def host_is_lost(self, rank: int) -> bool:
        return False

    def signal(self, rank: int, pid: int, number: int) -> None:
        self.client.send_signal(number, targets=[rank], block=False)

    def log_of(self, engine_id: int) -> str:
        return ""

    def check_controller(self) -> None:
        """Nobody reports its end."""

    def stop(self) -> None:
        """Leave the engines to those who started them."""
        self.client.close()
        self.channel.close()
