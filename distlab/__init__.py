"""distlab: learn and try distributed PyTorch on real process clusters, from a notebook.

    import distlab
    cluster = distlab.Cluster(4)
    cluster.run(lambda rank, world_size: rank)

Names are loaded when they are first used: `import distlab` alone costs nothing, on a rank or in the guard.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from distlab import algorithms, checkpoints
    from distlab.cluster import Cluster
    from distlab.devices import device_for
    from distlab.errors import (
        ArgumentError,
        ArgumentTypeError,
        CheckpointError,
        ClusterError,
        DataError,
        DeadlockError,
        DistlabError,
        MismatchError,
        RankDied,
        RankError,
        RanksFailed,
        RankTimeout,
        SerializationError,
        SweepError,
    )
    from distlab.measured import Sweep
    from distlab.probing import probe
    from distlab.probing.table import Probe
    from distlab.sweeps import sweep
    from distlab.trace import Trace

__version__ = "0.1.0"

__all__ = [
    "ArgumentError",
    "ArgumentTypeError",
    "CheckpointError",
    "Cluster",
    "ClusterError",
    "DataError",
    "DeadlockError",
    "DistlabError",
    "MismatchError",
    "Probe",
    "RankDied",
    "RankError",
    "RankTimeout",
    "RanksFailed",
    "SerializationError",
    "Sweep",
    "SweepError",
    "Trace",
    "algorithms",
    "checkpoints",
    "device_for",
    "probe",
    "sweep",
]
# where names come from; the rest is in errors
HOMES = {
    "Cluster": "cluster",
    "Probe": "probing.table",
    "Sweep": "measured",
    "Trace": "trace",
    "device_for": "devices",
    "probe": "probing",
    "sweep": "sweeps",
}
ROOMS = ("algorithms", "checkpoints")  # modules that are names of their own


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'distlab' has no attribute {name!r}. It has {', '.join(__all__)}.")
    try:
        room = importlib.import_module(f"distlab.{name if name in ROOMS else HOMES.get(name, 'errors')}")
    except (ImportError, AttributeError) as error:
        from distlab.errors import ClusterError, namesake

        if words := namesake(error):
            raise ClusterError(f"distlab.{name} cannot be imported: {error}.\n{words}") from error
        raise
    return room if name in ROOMS else getattr(room, name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])


def load_ipython_extension(shell: Any) -> None:
    """%load_ext distlab: %%px runs a cell on the ranks of the current cluster."""
    from distlab.cluster import Cluster
    from distlab.magics import register

    register(shell, lambda: Cluster.current)


def _offer_px() -> None:
    """In IPython, make %%px known: before there is a cluster, it says how to make one."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if shell is not None and "px" not in shell.magics_manager.magics["cell"]:

        def px(line: str, cell: str | None = None) -> Any:
            load_ipython_extension(shell)
            return shell.run_line_magic("px", line) if cell is None else shell.run_cell_magic("px", line, cell)

        shell.register_magic_function(px, "line_cell")


_offer_px()
