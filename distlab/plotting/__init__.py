"""Every figure of the project: functions that take data and return a matplotlib figure or axes, all in one style.

Called by the notebooks and by results that draw themselves. Runs in the notebook's process.
A module is imported when one of its functions is first used: `import distlab` must not cost the import of matplotlib.
"""

from importlib import import_module

HOMES = {
    "bars": ("overlap", "step_times", "time_shares"),
    "choices": ("alive", "bubbles", "predictions", "quickest"),
    "curves": ("badge", "latency_bandwidth", "time_against_size"),
    "graphs": ("graph",),
    "grids": ("before_after",),
    "handshakes": ("handshake",),
    "heat": ("heat_maps",),
    "hosts": ("clocks", "machines"),
    "memory_parts": ("memory", "memory_at"),
    "more_ranks": ("scaling", "speedup", "time_against_ranks"),
    "sharding": ("cuts", "mesh", "shards"),
    "pipelines": ("pipeline",),
    "serving": ("served", "staleness"),
    "stepping": ("play", "steps"),
    "style": ("rank_color",),
    "timelines": ("space_time",),
    "training": ("LivePlot", "images", "training_curves"),
}

__all__ = sorted(name for names in HOMES.values() for name in names)


def __getattr__(name: str) -> object:
    """Import a public name from its module. Runs on: anywhere."""
    for module, names in HOMES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """The public names. Runs on: anywhere."""
    return __all__
