"""Lab 41: how stale the gradients are that reach a parameter server.

The notebook calls it through `distlab_course.figures`, in its kernel.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from distlab.plotting.describing import describe
from distlab.plotting.style import filled, new_figure, rank_color, style

Ages = Mapping[int, Sequence[int]]


def staleness(panels: Mapping[str, Ages]) -> Figure:
    """Draw histograms of the staleness of gradients, with the share of each trainer.

    Args:
        panels: by title, the staleness of each gradient, by the rank of its trainer.

    Returns:
        a panel for each title, all with the same axes.
    """
    figure = new_figure(7.5, 3.4, layout="constrained")
    with style():
        axes = figure.subplots(1, len(panels), sharex=True, sharey=True, squeeze=False)[0]
        for ax, (title, ages) in zip(axes, panels.items(), strict=True):
            _stack(ax, ages)
            ax.set(title=title, xlabel="staleness", ylabel="gradients, %")
            ax.locator_params("x", nbins=6, integer=True)
            ax.tick_params(labelleft=True)
        figure.legend(*ax.get_legend_handles_labels(), loc="outside lower center", ncols=3)
    describe(figure, "the staleness of gradients", map(_in_words, panels, panels.values()))
    return figure


def _stack(ax: Axes, ages: Ages) -> None:
    """Draw a bar for each staleness, with a part for each trainer, in percent of all gradients."""
    total = sum(map(len, ages.values()))
    below: Counter[int] = Counter()
    for rank, own in ages.items():
        counted = Counter(own)
        places = sorted(counted)
        heights = [100 * counted[age] / total for age in places]
        bottoms = [100 * below[age] / total for age in places]
        ax.bar(places, heights, 0.8, bottoms, label=f"rank {rank}", **filled(rank_color(rank)))
        below.update(counted)


def _in_words(title: str, ages: Ages) -> str:
    """A panel: of each trainer the number of gradients, their mean staleness, and the largest."""
    words = []
    for rank, own in ages.items():
        mean = sum(own) / max(1, len(own))
        oldest = max(own, default=0)
        words.append(f"rank {rank} {len(own)} gradients, on average {mean:.1f}, at most {oldest}")
    return f"{title}, " + ", ".join(words)
