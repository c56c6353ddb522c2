"""The names that cells on a rank have, also in functions that came to it by value.

Runs on every rank, called wherever a function that came from the notebook is run: entry.py,
rpc_calls.py, trial.py, sweep.py and on_rank.py; watchdog.py reads the names.
"""

import builtins
import sys
from typing import Any

from distlab.compat.ipython import is_ipythons


def namespace_of_cells() -> dict[str, Any]:
    """Where %%px cells run: the rank's __main__."""
    return sys.modules["__main__"].__dict__


def bind_rank_globals(fn: Any, **names: Any) -> None:
    """Fill in the globals that a function which came by value lacked in its notebook.

    Args:
        fn: the function, or an object that can be called.
        names: globals that it gets besides, in place of others with these names.
    """
    function_globals = globals_brought_by(fn)
    if function_globals is None:
        return
    for name, value in namespace_of_cells().items():
        # a builtin stays Python's own: IPython's open, for cells, refuses the descriptors 0 to 2
        if hasattr(builtins, name) and is_ipythons(name, value):
            continue
        function_globals.setdefault(name, value)
    function_globals.update(names)


def globals_brought_by(fn: Any) -> dict[str, Any] | None:
    """The globals that a function brought along; None if it was imported here."""
    called = getattr(fn, "func", fn)  # of a partial function, the one that it calls
    function_globals = _globals_of(called)
    module = sys.modules.get(function_globals.get("__name__", ""))
    if module is not None and vars(module) is function_globals:
        return None
    return function_globals


def _globals_of(fn: Any) -> dict[str, Any]:
    """The globals of a function, of a method, or of a class whose objects can be called."""
    function = getattr(fn, "__func__", fn)
    found: dict[str, Any] | None = getattr(function, "__globals__", None)
    if found is not None:
        return found
    call = type(fn).__call__  # of an object that can be called
    of_call: dict[str, Any] = getattr(call, "__globals__", {})
    return of_call
