"""A graph over ranks."""

from matplotlib.colors import to_hex

from distlab import plotting
from distlab.plotting.style import curve_color
from tests.unit.plotting.conftest import assert_tidy, texts

NODES = {"rref": 0, "rref\n2": 2, "object": 1, "alone": 1}
EDGES = [("rref\n2", "object"), ("rref", "object"), ("object", "alone")]


def test_a_graph_over_ranks_is_drawn():
    """Each node stands in its rank's lane and right of what leads to it; arrows between ranks have the first's colour."""
    figure = plotting.graph(NODES, EDGES, "who holds what", hollow={"rref"})
    assert sorted(texts(figure)) == sorted(
        ["who holds what", "rank 0", "rank 1", "rank 2", "rref", "rref", "object", "alone"]
    )
    assert_tidy(figure)
    (ax,) = figure.axes
    arrows = [text for text in ax.texts if getattr(text, "arrow_patch", None)]
    assert all(arrow.xyann[0] < arrow.xy[0] for arrow in arrows)
    colors = [to_hex(arrow.arrow_patch.get_facecolor()).upper() for arrow in arrows[:2]]
    assert colors == [curve_color(2).upper(), curve_color(0).upper()]
