"""Imports torch without Python's garbage collector, in every Python of this project's environment.

`make setup` copies this file among the environment's packages, where each Python imports it when it
starts. The labs and their tests start hundreds of Pythons that import torch, and many of them its
compiler, as its optimizers do. Each looked for garbage among what it imported, where nothing is
garbage, and once more when it ended. For torch, both together took a quarter of its time, and for
the compiler half. It imports as little as it can, because Pythons without torch pay, too.
"""

from __future__ import annotations

import gc
import sys

TYPE_CHECKING = False  # that of typing, which takes long to import
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

COMPILER = "torch._dynamo"


class TorchFinder:
    """Finds torch and its compiler where Python does, and imports them without the collector."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec of torch or its compiler; None for others, and for a torch on no path."""
        if name not in ("torch", COMPILER):
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
                if name != COMPILER or not _has_tensors():
                    gc.freeze()  # it stays until the end: nobody has to look through it again
            finally:
                if was_enabled:
                    gc.enable()

        # a loader belongs to one module: nothing else is executed by this method
        spec.loader.exec_module = execute_without_collector  # type: ignore[method-assign]
        return spec


def _has_tensors() -> bool:
    """Whether the program has begun to compute: what it has made by then may become garbage."""
    tensor = sys.modules["torch"].Tensor
    return any(issubclass(type(one), tensor) for one in gc.get_objects())


if __name__ == "quick_torch":  # and not where a test loads it, or a type checker reads it
    sys.meta_path.insert(0, TorchFinder())
