"""Whom the output is for: a person at a front end, a program that runs a notebook, or a terminal.

Called by display.py and live.py, on the notebook's kernel.
"""

from __future__ import annotations

import os
import sys
from typing import Any


def somebody_watches() -> bool:
    """Whether a person looks on: a front end that could ask its user for input, or a terminal.

    Programs that execute notebooks (nbclient, nbval) never allow input, and IPP_NONINTERACTIVE says it outright.
    """
    if os.environ.get("IPP_NONINTERACTIVE", "") not in ("", "0"):
        return False
    shell = notebook_shell()
    kernel = getattr(shell, "kernel", None)
    if kernel is not None:
        return bool(getattr(kernel, "_allow_stdin", False))
    return sys.stderr.isatty()


def notebook_shell() -> Any:
    """The IPython shell of a notebook's kernel; None in a terminal or a plain script, where output is plain text."""
    get_ipython = getattr(sys.modules.get("IPython"), "get_ipython", None)
    shell = get_ipython() if get_ipython else None
    return shell if hasattr(shell, "kernel") else None


def publish(bundle: dict[str, Any], handle: bool = False, update: Any = None) -> Any:
    """Show a MIME bundle in the notebook.

    Args:
        handle: whether it will be updated; a `DisplayHandle` is returned then.
        update: the handle of an output that it takes the place of.
    """
    from IPython.display import DisplayHandle
    from IPython.display import display as ipython_display

    if update is not None:
        update.update(bundle, raw=True)
        return update
    if handle:
        fresh = DisplayHandle()
        fresh.display(bundle, raw=True)
        return fresh
    ipython_display(bundle, raw=True)
    return None
