"""Whom the output is for: a person at a front end, a program that runs a notebook, or a terminal.

Called wherever something is shown while it changes: the state of a cell, progress, a figure that grows. Runs on the
notebook's kernel.
"""

from __future__ import annotations

import os
import shutil
import sys
from typing import Any

from distlab.compat.ipython import allows_input, current_shell


def somebody_watches() -> bool:
    """Whether a person looks on: a front end that could ask its user for input, or a terminal.

    Programs that execute notebooks (nbclient, nbval) never allow input, and IPP_NONINTERACTIVE says it outright.
    """
    if os.environ.get("IPP_NONINTERACTIVE", "") not in ("", "0"):
        return False
    shell = notebook_shell()
    return sys.stderr.isatty() if shell is None else allows_input(shell.kernel)


def notebook_shell() -> Any:
    """The IPython shell of a notebook's kernel; None in a terminal or a plain script, where output is plain text."""
    shell = current_shell()
    return shell if hasattr(shell, "kernel") else None


def publish(bundle: dict[str, Any], handle: bool = False, update: Any = None) -> Any:
    """Show a MIME bundle in the notebook.

    Args:
        handle: whether it will be updated; a `DisplayHandle` is returned then.
        update: the handle of an output that it takes the place of.
    """
    from IPython.display import display as ipython_display

    if update is not None:
        update.update(bundle, raw=True)
        return update
    return ipython_display(bundle, raw=True, display_id=handle or None)


class Place:
    """Where a person sees something change: an output of the notebook's cell, or one line of a terminal.

    Where nobody watches, as in a file or a pipe, nothing is shown before `leave`.
    """

    def __init__(self) -> None:
        self._watched, self._in_notebook = somebody_watches(), notebook_shell() is not None
        self._handle: Any = None
        self._width = 0  # of what stands on the terminal's line

    def show(self, bundle: dict[str, Any]) -> None:
        """Show a MIME bundle in place of the one before; on a terminal, the first line of its text."""
        if self._watched and self._in_notebook:
            self._handle = publish(bundle, handle=True, update=self._handle)
        elif self._watched:
            line = bundle["text/plain"].partition("\n")[0][: shutil.get_terminal_size().columns - 1]
            print(f"\r{line:<{self._width}}", end="", file=sys.stderr, flush=True)
            self._width = max(self._width, len(line))

    def leave(self, bundle: dict[str, Any]) -> None:
        """Show what stays, in place of what was shown until now; outside of a notebook as text on stdout."""
        if self._in_notebook:
            publish(bundle, update=self._handle)
            self._handle = None
        else:
            self.erase()
            print(bundle["text/plain"])

    def erase(self) -> None:
        """Remove what is shown and was not left."""
        if self._handle is not None:
            self.leave({"text/plain": ""})
        elif self._width:
            print("\r" + " " * self._width + "\r", end="", file=sys.stderr, flush=True)
            self._width = 0
