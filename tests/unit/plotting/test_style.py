"""The one look: the front door, the colours, and settings that are restored."""

import matplotlib
import matplotlib.pyplot as plt
import pytest
import torch
from matplotlib.colors import to_rgb

from distlab import plotting
from distlab.plotting.style import rank_color, style
from distlab_course import figures
from tests.unit.plotting.conftest import FIT, curve

# What is seen of linear red, green, blue. Source: Machado, Oliveira and Fernandes, "A Physiologically-based Model for
# Simulation of Color Vision Deficiency" (2009), severity 1.
PROTANOPIA = (
    (0.152286, 1.052583, -0.204868),
    (0.114503, 0.786281, 0.099216),
    (-0.003882, -0.048116, 1.051998),
)
DEUTERANOPIA = (
    (0.367322, 0.860646, -0.227968),
    (0.280085, 0.672501, 0.047413),
    (-0.011820, 0.042940, 0.968881),
)


def linear(color):
    """Linear red, green and blue of a colour, each 0 to 1."""
    return [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(color)]


def test_front_door():
    """Every public name can be imported, and another one is refused."""
    assert plotting.__all__ == dir(plotting)
    assert all(getattr(plotting, name) is not None for name in plotting.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'pie'"):
        _ = plotting.pie


def test_rank_colors_differ():
    """24 ranks have 24 colours, and the first eight differ for those who see no red or no green as well."""
    colors = [rank_color(rank) for rank in range(25)]
    assert len(set(colors)) == 24
    assert colors[24] == colors[0]
    for matrix in (PROTANOPIA, DEUTERANOPIA):
        seen = torch.tensor([linear(color) for color in colors[:8]]) @ torch.tensor(matrix).T
        assert torch.pdist(seen).min() > 0.1


def test_style_is_restored():
    """Neither style() nor a figure changes the user's settings, and no figure stays with pyplot."""
    before = dict(matplotlib.rcParams)
    with style():
        assert matplotlib.rcParams["svg.hashsalt"] == "distlab"
    plotting.before_after([1, 2], [3, None])
    figures.latency_bandwidth(*curve(1e-5), FIT)
    assert dict(matplotlib.rcParams) == before
    assert plt.get_fignums() == []
