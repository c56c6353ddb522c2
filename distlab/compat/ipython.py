"""The private parts of IPython and ipykernel that distlab uses. Tried with IPython 8 and 9, ipykernel 6.29 to 7.

Runs on the notebook's kernel, and on ranks.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# Modules and functions that a rank's stack is searched for: a cell runs in the first, its error is shown by the second.
CELL = ("IPython.core.interactiveshell", "run_code")
SHOWS_ERROR = ("IPython.core.interactiveshell", "showtraceback")
HISTORY = "IPython.core.history"  # its thread waits for work


def current_shell() -> Any:
    """The IPython shell of this process; None outside of IPython, which is not imported for the question."""
    return getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()


def start_folder() -> Path:
    """The folder in which this kernel was started, that of its notebook. Private: IPython's list of folders."""
    folders = current_shell().user_ns.get("_dh") if current_shell() is not None else None
    return Path(folders[0] if folders else ".").absolute()


def allows_input(kernel: Any) -> bool:
    """Whether the front end of the cell that runs could ask its user for input. Private: an attribute of the kernel."""
    return bool(getattr(kernel, "_allow_stdin", False))


class NeverBusy:
    """Before a class of kernels in a class's bases: it reports when it is idle, but not when it becomes busy."""

    def _publish_status(self, status: str, *args: Any, **kwargs: Any) -> None:
        if status != "busy":
            super()._publish_status(status, *args, **kwargs)  # type: ignore[misc]


@contextlib.contextmanager
def debugger_hidden() -> Iterator[None]:
    """While ipykernel is imported, debugpy is not: 25 MB that a kernel without a debugger's channel cannot use.

    Not documented: ipykernel's debugger takes an ImportError as a sign that there is none.
    """
    sys.modules["debugpy"] = None  # type: ignore[assignment]
    yield
    del sys.modules["debugpy"]
