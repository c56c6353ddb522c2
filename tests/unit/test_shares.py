"""Where time goes: what a trace's events add up to, and the pictures of it and of what more ranks bring."""

import random
from math import inf

import pytest

import distlab
from distlab import plotting
from distlab.trace.events import Event
from distlab.trace.shares import Shares, common, length, shares_of, union, without
from tests.unit.test_plotting import assert_tidy, headless, visible_texts  # noqa: F401 - headless is a fixture


def seconds(parts):
    return [round(getattr(parts, name), 9) for name in ("compute", "hidden", "communicate", "wait", "other")]


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([], [0, 0, 0, 0, 0]),
        ([Event(0, "compute", "mm", 0, 2), Event(1, "compute", "mm", 0, 3)], [2, 0, 0, 0, 1]),
        # a collective of which half is beside backward, and a wait for it
        (
            [
                Event(0, "backward", "backward", 0, 4),
                Event(0, "collective", "all_reduce", 2, 6, blocking=False, ready=2),
                Event(0, "wait", "all_reduce", 4, 6, ready=2),
            ],
            [2, 2, 2, 0, 0],
        ),
        # the partner comes at 5: until then it waits, but for what it computes meanwhile
        (
            [
                Event(0, "forward", "forward", 0, 3),
                Event(0, "collective", "all_reduce", 1, 7, blocking=False, ready=5),
            ],
            [3, 0, 2, 2, 0],
        ),
        ([Event(0, "recv", "recv", 0, 3, ready=inf), Event(0, "compute", "mm", 4, 5)], [1, 0, 0, 3, 1]),
        ([Event(0, "recv", "recv", 1, 3), Event(0, "range", "mine", 0, 9)], [0, 0, 2, 0, 7]),
    ],
)
def test_shares(events, expected):
    """Computing, hidden and other communication, waiting and the rest add up to the whole time."""
    parts = shares_of(events, 0)
    assert seconds(parts) == expected
    assert parts.total == max((event.end for event in events), default=0)


def test_shares_add_up():
    """Whatever a rank did, its parts are not negative and add up to the whole time."""
    chance = random.Random(1)
    for _ in range(200):
        events = []
        for _ in range(chance.randrange(1, 12)):
            start, kind = chance.random(), chance.choice(["compute", "backward", "send", "collective", "range"])
            ready = chance.choice([None, inf, start + chance.random() - 0.2])
            events.append(Event(chance.randrange(2), kind, kind, start, start + chance.random(), ready=ready))
        whole = max(event.end for event in events) - min(event.start for event in events)
        for rank in (0, 1):
            parts = shares_of(events, rank)
            assert min(seconds(parts)) >= 0
            assert parts.total == pytest.approx(whole)


def test_spans():
    """Spans are joined, cut and subtracted as sets of times are."""
    assert union([(3, 4), (0, 1), (1, 2), (5, 5)]) == [(0, 2), (3, 4)]
    assert common([(0, 2), (3, 5)], [(1, 4)]) == [(1, 2), (3, 4)]
    assert without([(0, 5)], [(1, 2), (4, 9)]) == [(0, 1), (2, 4)]
    assert without([(0, 5)], []) == [(0, 5)]
    assert length([(0, 2), (3, 4)]) == 3


@pytest.mark.parametrize("ranks", [1, 4, 8])
def test_time_shares(ranks):
    """Each bar is as long as its rank's time, with percentages in the wide parts and the kinds in the legend."""
    bars = {f"rank {rank}": Shares(0.02, 0.01, 0.0056, 0.0037, 0.0007) for rank in range(ranks)}
    ax = plotting.time_shares(bars, "a step")
    assert [text.get_text() for text in ax.texts] == ["50%", "25%", "14%", "9%"] * ranks
    assert [label.get_text() for label in ax.get_yticklabels()] == list(bars)
    assert ax.patches[4].get_x() + ax.patches[4].get_width() == pytest.approx(0.04)
    legend = [text.get_text() for text in ax.figure.legends[0].get_texts()]
    assert legend == ["computes", "computes while data travel", "data travel", "waits for others", "other"]
    assert_tidy(ax.figure)


def test_time_shares_of_different_lengths():
    """Relative bars are all as long as each other, whatever time they took."""
    bars = {"short": Shares(0.001, 0, 0.001, 0, 0), "long": Shares(3, 0, 1, 0, 0)}
    ax = plotting.time_shares(bars, relative=True)
    assert [text.get_text() for text in ax.texts] == ["50%", "50%", "75%", "25%"]
    assert ax.get_xlabel() == "share of the time"
    assert ax.patches[7].get_x() + ax.patches[7].get_width() == 100
    assert_tidy(ax.figure)


def test_scaling():
    """Three panels: rates, multiples of one rank's, and these as shares of the ideal; the cores are on the axis."""
    curves = {
        "small": ([1, 2, 4], [100, 120, 80], [90, 100, 70], [110, 130, 90]),
        "large": ([1, 2, 4], [10, 19, 20], [9, 18, 17], [11, 20, 21]),
    }
    figure = plotting.scaling(curves, "digits", cores=2)
    rates, ups, shares = figure.axes
    assert list(rates.containers[0].lines[0].get_ydata()) == [100, 120, 80]
    assert list(ups.containers[1].lines[0].get_ydata()) == [1, 1.9, 2]
    assert list(shares.containers[1].lines[0].get_ydata()) == [100, 95, 50]
    assert [ax.get_ylabel() for ax in figure.axes] == ["throughput, samples/s", "speed-up", "efficiency, %"]
    assert sorted(text.get_text() for text in shares.texts) == ["2 cores", "ideal", "large", "small"]
    assert_tidy(figure)
    assert_tidy(plotting.scaling({"one": ([1], [5], [4], [6])}, cores=8))
    many = plotting.scaling({"one": ([1, 2], [5, 9], [4, 8], [6, 10])}, cores=64)
    assert all("cores" not in text.get_text() for text in visible_texts(many))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: plotting.time_shares({}), "bars must be at least one bar of parts of 0 s or more, got {}."),
        (
            lambda: plotting.time_shares({"a": Shares(-1, 0, 0, 0, 0)}),
            "bars must be at least one bar of parts of 0 s or more, got {'a': Shares(compute=-1",
        ),
        (lambda: plotting.time_shares({"a": Shares(0, 0, 0, 0, 0)}), "bars must be longer than 0 s, one at least,"),
        (lambda: plotting.scaling({}), "curves must be at least one curve, got {}."),
        (lambda: plotting.scaling({"a": ([2], [1], [1], [1])}), "curves['a'] must begin with 1 rank, got 2."),
    ],
)
def test_bad_values_are_refused(call, message):
    """What cannot be drawn is an error that names the value."""
    with pytest.raises(distlab.ArgumentError) as caught:
        call()
    assert str(caught.value).startswith(message)
