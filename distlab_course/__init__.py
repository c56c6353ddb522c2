"""The course: what learners read and build, and exercises, figures, practice hosts.

The notebooks import it, in their kernel and on the ranks.
"""

from importlib import import_module
from typing import Any

# what only the notebook's kernel needs is imported when it is first used
MODULES = {"loopback_interface": "practice", "practice_hosts": "practice", "probe": "probing"}


def __getattr__(name: str) -> Any:
    if name in MODULES:
        return getattr(import_module(f"{__name__}.{MODULES[name]}"), name)
    raise AttributeError(f"module 'distlab_course' has no attribute {name!r}.")
