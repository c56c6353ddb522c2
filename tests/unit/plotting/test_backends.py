"""The figures of notebook 06: what works where, and the handshake."""

from matplotlib.colors import to_hex
from matplotlib.patches import Rectangle

from distlab import plotting
from distlab.measure import format_seconds
from distlab.measure.probe_result import Outcome
from distlab.plotting.style import rank_color
from tests.unit.plotting.conftest import assert_tidy, texts, visible_texts

ROWS = ("broadcast", "all_to_all_single uneven")
KINDS = {"gloo CPU": ("works", "refused"), "mpi GPU": ("depends", "hangs"), "ucc CPU": ("not built", "no device")}
TABLE = {head: dict(zip(ROWS, map(Outcome, kinds), strict=True)) for head, kinds in KINDS.items()}


def test_heat_maps_say_what_works():
    """Every row, column and kind is written; nothing overlaps or is cut off."""
    figure = plotting.heat_maps([("today", TABLE), ("op by dtype", {"PREMUL_SUM": {"int64": Outcome("works")}})])
    shown = texts(figure)
    assert {"today", "broadcast", "gloo CPU", "PREMUL_SUM", "yes", "no", "?", "HANGS", "-"} <= {*shown}
    key = "yes: works;  no: refused;  HANGS: hangs;  -: not built, or no such device;  ?: depends on how it was built"
    assert " ".join(shown[-2:]) == key
    assert_tidy(figure)


# rank 1 comes first and waits for rank 0; the set of rank 0 returns after rank 1 has read it
CALLS = [
    [("set", "k0", 5.0, 5.4), ("wait", "k0", 5.4, 5.41), ("get", "k0", 5.41, 5.5), ("get", "k1", 5.5, 5.6)],
    [("set", "k1", 1.0, 1.1), ("wait", "k0", 1.1, 5.2), ("get", "k0", 5.2, 5.3), ("get", "k1", 5.3, 5.35)],
]


def test_the_handshake_is_drawn():
    """Ranks, store and keys are named, each call has its time, and the one wait is hatched in its rank's lane.

    A key is written before it is read, and its box has the colour of the rank that wrote it.
    """
    figure = plotting.handshake(CALLS, "two ranks")
    assert {"two ranks", "store", "rank 0", "rank 1", "k0", "k1", format_seconds(4.0)} <= {*texts(figure)}
    (ax,) = figure.axes
    hatched = [patch for patch in ax.patches if isinstance(patch, Rectangle) and patch.get_hatch()]
    assert len(hatched) == 1
    (lane,) = (text.get_position()[1] for text in ax.texts if text.get_text() == "rank 1")
    assert hatched[0].get_y() < lane < hatched[0].get_y() + hatched[0].get_height()
    boxes = [text.get_window_extent() for text in visible_texts(figure)]
    assert all(box.x0 >= 0 and box.y0 >= 0 and box.x1 <= figure.bbox.x1 for box in boxes)
    # no read stands before the write, though the writing call may return later
    arrows = [text for text in ax.texts if getattr(text, "arrow_patch", None)]
    written = {arrow.arrow_patch.get_facecolor(): arrow.xy[0] for arrow in arrows if arrow.xy[1] < arrow.xyann[1]}
    assert len(written) == 2
    for arrow in arrows:
        assert arrow.xy[0] >= written[arrow.arrow_patch.get_facecolor()]
    colors = {to_hex(patch.get_facecolor()).upper() for patch in ax.patches if not patch.get_hatch()}
    assert {rank_color(0), rank_color(1)} <= colors
