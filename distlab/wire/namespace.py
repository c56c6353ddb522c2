"""The names that cells on a rank have, also in functions that came to it by value.

Runs on every rank, called by entry.py and trial.py.
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
    own = _globals_of(getattr(fn, "func", fn))  # of a partial function, the one that it calls
    home = sys.modules.get(own.get("__name__", ""))
    if home is not None and vars(home) is own:
        return  # it was imported here
    for name, value in namespace_of_cells().items():
        # a builtin stays Python's own: IPython's open, for cells, refuses the descriptors 0 to 2
        if not (hasattr(builtins, name) and is_ipythons(name, value)):
            own.setdefault(name, value)
    own.update(names)


def _globals_of(fn: Any) -> dict[str, Any]:
    """The globals of a function, of a method, or of a class whose objects can be called."""
    function = getattr(fn, "__func__", fn)
    own = getattr(function, "__globals__", None)
    if own is None:  # an object that can be called
        own = getattr(type(fn).__call__, "__globals__", {})
    found: dict[str, Any] = own
    return found
