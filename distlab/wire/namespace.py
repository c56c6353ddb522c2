"""The names that cells on a rank have, also in functions that came to it by value. Runs on every
rank.
"""

import builtins
import sys
from typing import Any

from distlab.compat.ipython import is_ipythons


def namespace_of_cells() -> dict[str, Any]:
    """Where %%px cells run: the rank's __main__."""
    return sys.modules["__main__"].__dict__


def lend_names(fn: Any, **names: Any) -> None:
    """Give a function that came by value the names of this rank that its notebook did not have, and
    `names`.
    """
    fn = getattr(fn, "func", fn)
    own = getattr(getattr(fn, "__func__", fn), "__globals__", None)
    if own is None:  # an object that can be called
        own = getattr(type(fn).__call__, "__globals__", {})
    home = sys.modules.get(own.get("__name__", ""))
    if home is None or vars(home) is not own:
        for name, value in namespace_of_cells().items():
            # a builtin stays Python's own: IPython's open, for cells, refuses the descriptors 0 to
            # 2
            if not (hasattr(builtins, name) and is_ipythons(name, value)):
                own.setdefault(name, value)
        own.update(names)
