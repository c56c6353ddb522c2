"""On the notebook's kernel: figures of distributed programs from plain data, in one style.

Each function returns a matplotlib figure or axes; lessons and results that draw themselves call
them. A module is imported when one of its functions is first used: `import distlab` must not import
matplotlib.
"""

from importlib import import_module

MODULES = {
    "cells": ("before_after",),
    "curves": ("badge", "time_against_size", "training_curves"),
    "lanes": ("spans", "step_times", "time_shares"),
    "stepping": ("play", "steps"),
    "style": ("rank_color",),
    "timelines": ("space_time",),
}

__all__ = sorted(name for names in MODULES.values() for name in names)


def __getattr__(name: str) -> object:
    """Import a public name from its module. Runs on: anywhere."""
    for module, names in MODULES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """The public names. Runs on: anywhere."""
    return __all__
