"""The figures of notebook 06: what works where, and the handshake."""

import pytest
from matplotlib.patches import Rectangle

import distlab
from distlab import plotting
from distlab.plotting import handshakes
from distlab.plotting.style import rank_color
from distlab.timing import format_seconds


def texts(figure):
    return [text.get_text().strip() for ax in figure.axes for text in ax.texts]


def overlapping(figure):
    """Pairs of texts that cover each other."""
    figure.canvas.draw()
    boxes = [(t.get_text(), t.get_window_extent()) for ax in figure.axes for t in ax.texts if t.get_text().strip()]
    return [(a, b) for i, (a, one) in enumerate(boxes) for b, other in boxes[i + 1 :] if one.overlaps(other)]


def outside(figure):
    """Texts that are cut off at the figure's edge."""
    figure.canvas.draw()
    frame = figure.bbox
    boxes = [(t.get_text(), t.get_window_extent()) for ax in figure.axes for t in ax.texts if t.get_text().strip()]
    return [text for text, box in boxes if box.x0 < 0 or box.y0 < 0 or box.x1 > frame.x1 or box.y1 > frame.y1]


TABLE = {
    "gloo CPU": {"broadcast": "works", "all_to_all_single uneven": "refused"},
    "mpi GPU": {"broadcast": "depends", "all_to_all_single uneven": "hangs"},
    "ucc CPU": {"broadcast": "not built", "all_to_all_single uneven": "no device"},
}


def test_heat_maps_say_what_works():
    """Every row, column and kind is written; nothing overlaps or is cut off."""
    figure = plotting.heat_maps([("today", TABLE), ("op by dtype", {"PREMUL_SUM": {"int64": "works"}})])
    shown = texts(figure)
    for text in ("today", "broadcast", "gloo\nCPU", "PREMUL_SUM", "yes", "no", "?", "HANGS", "-"):
        assert text in shown
    for text in ("works", "refused", "hangs", "depends on how it was built", "not built, or no such device"):
        assert shown.count(text) == 1
    assert overlapping(figure) == []
    assert outside(figure) == []


def test_heat_maps_go_on_below_where_they_do_not_fit():
    """A figure is never wider than a notebook; what does not fit stands below."""
    one = plotting.heat_maps([("a", TABLE)])
    many = plotting.heat_maps([("a", TABLE)] * 5)
    assert many.get_figwidth() < 8
    assert many.get_figheight() > 1.7 * one.get_figheight()


@pytest.mark.parametrize("panels", [[], [("a", {})], [("a", {"gloo": {}})], [("a", {"gloo": {"send": "perhaps"}})]])
def test_heat_maps_refuse_what_cannot_be_drawn(panels):
    """No panel, an empty one, or an unknown kind."""
    with pytest.raises(distlab.ArgumentError, match=r"Give \[\(\"today\""):
        plotting.heat_maps(panels)


# rank 1 comes first and waits for rank 0; the set of rank 0 returns after rank 1 has read it
CALLS = [
    [("set", "k0", 5.0, 5.4), ("wait", "k0", 5.4, 5.41), ("get", "k0", 5.41, 5.5), ("get", "k1", 5.5, 5.6)],
    [("set", "k1", 1.0, 1.1), ("wait", "k0", 1.1, 5.2), ("get", "k0", 5.2, 5.3), ("get", "k1", 5.3, 5.35)],
]


def test_a_wait_and_its_get_are_one_step():
    """A read begins where the rank began to wait for the key."""
    steps = handshakes.fold(1, CALLS[1])
    assert [(step.key, step.writes, step.began, step.ended) for step in steps] == [
        ("k1", True, 1.0, 1.1),
        ("k0", False, 1.1, 5.3),
        ("k1", False, 5.3, 5.35),
    ]


def test_the_handshake_is_drawn():
    """Ranks, store and keys are named, each call has its time, and the one wait is hatched in its rank's lane."""
    figure = plotting.handshake(CALLS, "two ranks")
    shown = texts(figure)
    for text in ("two ranks", "store", "rank 0", "rank 1", "k0", "k1", format_seconds(4.0).strip()):
        assert text in shown
    (ax,) = figure.axes
    hatched = [patch for patch in ax.patches if isinstance(patch, Rectangle) and patch.get_hatch()]
    assert len(hatched) == 1
    top = handshakes.lane_top(handshakes.HEAD + 0.1 + 2 * handshakes.KEY, 1)
    assert top < hatched[0].get_y() < top + handshakes.LANE
    assert outside(figure) == []


def test_a_key_is_written_before_it_is_read():
    """In the picture no read stands before the write, though the writing call may return later."""
    figure = plotting.handshake(CALLS)
    (ax,) = figure.axes
    arrows = [text for text in ax.texts if getattr(text, "arrow_patch", None)]
    written = {arrow.arrow_patch.get_facecolor(): arrow.xy[0] for arrow in arrows if arrow.xy[1] < arrow.xyann[1]}
    assert len(written) == 2
    for arrow in arrows:
        assert arrow.xy[0] >= written[arrow.arrow_patch.get_facecolor()]


def test_the_keys_have_their_ranks_colours():
    """A key's box has the colour of the rank that wrote it."""
    from matplotlib.colors import to_hex

    (ax,) = plotting.handshake(CALLS).axes
    colors = {to_hex(patch.get_facecolor()).upper() for patch in ax.patches if not patch.get_hatch()}
    assert {rank_color(0), rank_color(1)} <= colors


def test_nothing_recorded_is_refused():
    """Without a call there is no picture."""
    with pytest.raises(distlab.ArgumentError, match="calls must hold a call of some rank"):
        plotting.handshake([[], []])
