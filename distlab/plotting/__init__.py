"""Every figure of the project: functions that take data and return a matplotlib figure or axes, all in one style.

Called by the notebooks and by results that draw themselves. Runs in the notebook's process.
A module is imported when one of its functions is first used: `import distlab` must not cost the import of matplotlib.
"""

from importlib import import_module

HOMES = (
    ("bars", ("overlap",)),
    ("diagrams", ("DIAGRAMS", "diagram", "write_figs")),
    ("grids", ("before_after",)),
    ("handshakes", ("handshake",)),
    ("heat", ("heat_maps",)),
    ("live", ("LivePlot",)),
    ("pictures", ("images",)),
    ("player", ("play",)),
    ("rates", ("scaling",)),
    ("shares", ("time_shares",)),
    ("stepping", ("steps",)),
    ("style", ("rank_color", "rank_colors")),
    ("timelines", ("space_time",)),
    ("timings", ("latency_bandwidth", "time_against_ranks", "time_against_size")),
    ("training", ("speedup", "step_times", "training_curves")),
)

__all__ = [
    "DIAGRAMS",
    "LivePlot",
    "before_after",
    "diagram",
    "handshake",
    "heat_maps",
    "images",
    "latency_bandwidth",
    "overlap",
    "play",
    "rank_color",
    "rank_colors",
    "scaling",
    "space_time",
    "speedup",
    "step_times",
    "steps",
    "time_against_ranks",
    "time_against_size",
    "time_shares",
    "training_curves",
    "write_figs",
]


def __getattr__(name: str) -> object:
    """Import a public name from its module. Runs on: anywhere."""
    for module, names in HOMES:
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """The public names. Runs on: anywhere."""
    return __all__
