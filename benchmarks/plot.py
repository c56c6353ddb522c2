"""The start-up times as bars, for the README, in the style of the project's other figures."""

from __future__ import annotations

import statistics
from pathlib import Path

from distlab.plotting.style import INK, curve_color, new_figure, style


def startup_bars(seconds: dict[str, list[float]], n: int, path: Path) -> None:
    """Draw each contestant's median with its quickest and slowest run, the quickest on top, and save it at `path`."""
    names = sorted(seconds, key=lambda name: statistics.median(seconds[name]), reverse=True)
    with style():
        figure = new_figure(7.2, 0.5 * len(names) + 1.3, layout="constrained")
        ax = figure.add_subplot()
        for place, name in enumerate(names):
            median = statistics.median(seconds[name])
            color = curve_color(0) if name == "distlab" else INK
            ax.barh(place, median, height=0.62, color=color, alpha=0.5)
            ax.plot([min(seconds[name]), max(seconds[name])], [place, place], color=color, linewidth=1.5)
            ax.text(max(seconds[name]) + 0.12, place, f"{median:.1f} s", va="center")
        labels = ["import torch, nothing else" if name == "import torch" else name for name in names]
        ax.set(yticks=range(len(names)), yticklabels=labels, xlabel="seconds, from a new Python process")
        ax.set_title(f"to the first all_reduce on {n} ranks")
        ax.set_xlim(0, max(max(values) for values in seconds.values()) * 1.12)
        ax.grid(visible=False, axis="y")
        ax.tick_params(axis="y", length=0)
        figure.savefig(path)
