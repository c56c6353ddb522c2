"""`pytest --distlab-spawn`: `distlab.spawn` in the place of torch.multiprocessing.spawn.

Runs in pytest's process, called by plugin.py.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from distlab.scripts.spawning.warm import WARM

# Modules that the functions of most tests need: an optimizer imports the first at its first step,
# and the test's module, which a spawned process imports, the second.
PRELOADED = ("torch._dynamo", "pytest")
# what has replaced a function has the function as this attribute
ORIGINAL = "replaced_by_distlab"


def replace_torchs() -> None:
    """Put `distlab.spawn` in the place of torch's functions, wherever they are by now.

    Meanwhile the processes start that the first call needs.
    """
    WARM.begin(PRELOADED)
    from torch import multiprocessing

    for name in ("spawn", "start_processes"):
        original = getattr(multiprocessing, name)
        if hasattr(original, ORIGINAL):
            continue
        _put(original, _replacement(original))


def restore_torchs() -> None:
    """Put torch's own functions back, and end the processes that wait for a call."""
    multiprocessing = sys.modules.get("torch.multiprocessing")
    for name in ("spawn", "start_processes"):
        replacement = getattr(multiprocessing, name, None)
        original = getattr(replacement, ORIGINAL, None)
        if original is not None:
            _put(replacement, original)
    WARM.end()


def _replacement(original: Callable[..., Any]) -> Callable[..., Any]:
    """What is called in the place of one of torch's functions."""

    @functools.wraps(original)
    def call(
        fn: Any,
        args: Any = (),
        nprocs: int = 1,
        join: bool = True,
        daemon: bool = False,
        start_method: str = "spawn",
        **options: Any,
    ) -> Any:
        from distlab.scripts.spawn import NEW_PYTHONS, spawn

        __tracebackhide__ = True
        if start_method not in NEW_PYTHONS:  # a fork has the memory of this process
            return original(fn, args, nprocs, join, daemon, start_method, **options)
        return spawn(fn, args, nprocs, join, daemon, start_method)

    setattr(call, ORIGINAL, original)
    return call


def _put(old: Any, new: Any) -> None:
    """Put a function in the place of another one in every module that has that by any name."""
    for module in list(sys.modules.values()):
        if not isinstance(module, ModuleType):
            continue
        for name, value in list(vars(module).items()):
            if value is old:
                setattr(module, name, new)
