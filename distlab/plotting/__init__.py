"""Figures of distributed programs, drawn from plain data in one style, on the notebook's kernel.

Each function returns a matplotlib figure or axes. Lessons call them, and so do results that draw
themselves. A module is imported only when one of its functions is first used, because
`import distlab` must not import matplotlib.
"""

from importlib import import_module
from itertools import chain

MODULES = {
    "cells": ("before_after",),
    "curves": ("badge", "time_against_size", "training_curves"),
    "lanes": ("spans", "step_times", "time_shares"),
    "player": ("play",),
    "stepping": ("steps",),
    "style": ("rank_color",),
    "timelines": ("space_time",),
}

__all__ = sorted(chain.from_iterable(MODULES.values()))


def __getattr__(name: str) -> object:
    """Import a public name from its module. Runs on: anywhere."""
    for module, names in MODULES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """The public names. Runs on: anywhere."""
    return __all__
