"""distlab: learn and try distributed PyTorch on real process clusters, from a notebook.

    import distlab
    cluster = distlab.Cluster(4)
    cluster.run(lambda rank, world_size: rank)

Names are loaded when they are first used: `import distlab` alone costs nothing, on a rank or in the guard.
"""

from __future__ import annotations

import importlib
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from distlab import errors, text
from distlab.compat.ipython import current_shell

__version__ = "0.1.0"

# module -> the public names in it
HOMES = {
    "client.cluster": ["Cluster"],
    "checking": ["exercise", "question"],
    "client.check": ["check", "exercises", "hint", "progress"],
    "client.probe": ["probe"],
    "errors": errors.NAMES,
    "measure.probe_result": ["Probe"],
    "measure.sweep": ["Sweep", "sweep"],
    "traces.trace": ["Trace"],
    "rank.devices": ["device_for"],
    "simulated.network": ["Device", "Link", "Network"],
    "simulated.notes": ["compute"],
}
# modules that notebooks name without their folder: `from distlab.measure import measure`
SHORT = {
    "devices": "rank.devices",
    "mpi_backend": "rank.mpi_backend",
    "rendezvous": "wire.rendezvous",
}


__all__ = sorted(name for names in HOMES.values() for name in names)


def __getattr__(name: str) -> Any:
    home = next((module for module, names in HOMES.items() if name in names), SHORT.get(name))
    if home is None:
        raise AttributeError(f"module 'distlab' has no attribute {name!r}. It has {', '.join(__all__)}.")
    try:
        room = importlib.import_module(f"distlab.{home}")
    except (ImportError, AttributeError) as error:
        if words := text.namesake(error):
            raise errors.ClusterError(f"distlab.{name} cannot be imported: {error}.\n{words}") from error
        raise
    return room if name in SHORT else getattr(room, name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])


def load_ipython_extension(shell: Any) -> None:
    """%load_ext distlab: %%px runs a cell on the ranks of the current cluster."""
    from distlab.client.magics import register

    register(shell)


class _ShortNames:
    """Finds distlab.measure and the others of `SHORT`: each is the one module in its folder."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        package, _, short = fullname.partition(".")
        if package != "distlab" or short not in SHORT:
            return None
        return ModuleSpec(fullname, self)

    def create_module(self, spec: ModuleSpec) -> None:
        """As usual, an empty module, for which `exec_module` then gives the one in its folder."""

    def exec_module(self, module: ModuleType) -> None:
        sys.modules[module.__name__] = importlib.import_module(f"distlab.{SHORT[module.__name__.partition('.')[2]]}")


def _offer_px() -> None:
    """In IPython, make %%px known: before there is a cluster, it says how to make one."""
    shell = current_shell()
    if shell is not None and "px" not in shell.magics_manager.magics["cell"]:

        def px(line: str, cell: str | None = None) -> Any:
            load_ipython_extension(shell)
            return shell.run_line_magic("px", line) if cell is None else shell.run_cell_magic("px", line, cell)

        shell.register_magic_function(px, "line_cell")


sys.meta_path.append(_ShortNames())
_offer_px()
