"""distlab: learn and try distributed PyTorch on real process clusters, from a notebook.

    import distlab
    cluster = distlab.Cluster(4)
    cluster.run(lambda rank, world_size: rank)

Names are loaded when they are first used: `import distlab` alone costs nothing.

Which process runs what:

    the notebook's kernel   notebook, diagnosis, measure, traces, plotting; __main__ is the doctor
    every rank              rank; devices, and the backend in simulated
    pytest's process        testing, and its other half on the ranks
    their own processes     launch: the fork server, the engine, the controller, the guard;
                            scripts: the command that runs a person's own program
    both sides              wire between them; debugger, checking and comparison have a half on each
    anywhere                arguments, words, tables, errors, machine, programs, supervised,
                            progress_bar, compat
"""

import importlib
from typing import Any

from distlab import errors
from distlab.compat.ipython import current_shell, show_errors_with

__version__ = "0.1.0"

# module -> its names that are public here; at most 30, so that they fit on a screen. Results that a
# call returns are not among them, nor the errors that few programs catch: distlab.errors has them.
PUBLIC = {
    "distlab.notebook.cluster": ["Cluster", "run", "trace"],
    "distlab.notebook.start_methods": ["Mpi", "Slurm", "Ssh"],
    "distlab.checking": ["exercise", "question"],
    "distlab.checking.check": ["check", "exercises", "hint"],
    "distlab.checking.progress": ["progress"],
    "distlab.comparison.compare": ["compare"],
    "distlab.devices": ["device_for"],
    "distlab.errors": [
        "ArgumentError",
        "CheckpointError",
        "ClusterError",
        "DeadlockError",
        "RankDied",
        "RankError",
        "RankTimeout",
        "RanksFailed",
    ],
    "distlab.measure.sweep": ["sweep"],
    "distlab_predict.predict": ["predict"],
    "distlab.rank.waits": ["waiting"],
    "distlab.scripts.spawn": ["spawn"],
    "distlab.simulated.devices": ["Device"],
    "distlab.simulated.network": ["Link", "Network"],
    "distlab.simulated.notes": ["compute"],
}

__all__ = sorted(name for names in PUBLIC.values() for name in names)


def __getattr__(name: str) -> Any:
    for module, names in PUBLIC.items():
        if name in names:
            return getattr(importlib.import_module(module), name)
    has = ", ".join(__all__)
    raise AttributeError(f"module 'distlab' has no attribute {name!r}. It has {has}.")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])


def load_ipython_extension(shell: Any) -> None:
    """%load_ext distlab: %%px runs a cell on the ranks of the current cluster."""
    from distlab.notebook import ahead
    from distlab.notebook.cluster import Cluster
    from distlab.notebook.magics import install_magics

    install_magics(shell)
    _look_at_errors(shell)
    _fit_errors()
    if hasattr(shell, "kernel") and Cluster.current is None:
        ahead.begin()


def _offer_px() -> None:
    """In IPython, define %px and %%px.

    Their first use loads the real ones, which explain how to make a cluster.
    """
    shell = current_shell()
    if shell is None or "px" in shell.magics_manager.magics["cell"]:
        return

    def px(line: str, cell: str | None = None) -> Any:
        load_ipython_extension(shell)
        if cell is None:
            return shell.run_line_magic("px", line)
        return shell.run_cell_magic("px", line, cell)

    shell.register_magic_function(px, "line_cell")
    _look_at_errors(shell)


def _look_at_errors(shell: Any) -> None:
    """Have IPython ask, about an error of a cell, whether the cell was meant for the ranks."""

    def explain(
        shell: Any, kind: type, error: Exception, traceback: Any, tb_offset: int | None = None
    ) -> None:
        # imported when there is an error: `import distlab` alone costs nothing
        from distlab.notebook import magics

        magics.explain(shell, kind, error, traceback, tb_offset)

    if shell.custom_exceptions != ():
        return  # another extension's handler stays
    # a name that only the ranks have, and what torch raises where there is no process group
    asked_about = (NameError, ValueError, RuntimeError, AssertionError)
    shell.set_custom_exc(asked_about, explain)


def _show_error(error: BaseException, lines: list[str]) -> list[str]:
    """See paragraphs.show_error, which is imported when there is an error to show."""
    from distlab.notebook.paragraphs import show_error

    return show_error(error, lines)


def _fit_errors() -> None:
    """In a notebook, show errors of distlab's as wide as its pane is; once."""
    show_errors_with(_show_error, (errors.DistlabError, errors.Interrupted))


_offer_px()
_fit_errors()
