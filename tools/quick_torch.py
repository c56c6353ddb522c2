"""Imports torch without Python's garbage collector, in every Python of this project's environment.

`make setup` copies this file among the environment's packages, where each Python imports it when it
starts. The labs and their tests start hundreds of Pythons that import torch. Each looked for
garbage among what it imported, where nothing is garbage, and once more when it ended. Both together
took a quarter of its time. It imports as little as it can, because Pythons without torch pay, too.
"""

from __future__ import annotations

import gc
import sys

TYPE_CHECKING = False  # that of typing, which takes long to import
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType


class TorchFinder:
    """Finds torch where Python finds it, and imports it without the collector."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec of torch; None for any other module, and for a torch that is on no path."""
        if name != "torch":
            return None
        from importlib.machinery import PathFinder

        spec = PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def execute_without_collector(module: ModuleType) -> None:
            was_enabled = gc.isenabled()
            gc.disable()
            try:
                execute(module)
                gc.freeze()  # torch stays until the end: nobody has to look through it again
            finally:
                if was_enabled:
                    gc.enable()

        # a loader belongs to one module: nothing else is executed by this method
        spec.loader.exec_module = execute_without_collector  # type: ignore[method-assign]
        return spec


if __name__ == "quick_torch":  # and not where a test loads it, or a type checker reads it
    sys.meta_path.insert(0, TorchFinder())
