"""What cannot be drawn is refused with the rule, the value and what to give, and leaves no figure."""

import re
from types import SimpleNamespace

import matplotlib.pyplot as plt
import pytest
import torch

import distlab
from distlab import plotting

CURVE = 'Give {"gloo": (x, medians, lows, highs)}.'
RATES = 'Give {"digits": ([1, 2], medians, lows, highs)}.'
BAR = 'Give ("rank 0", 0.0, 0.01, "compute").'
SHARES = 'with no part below 0 s, got {}. Give trace.shares(), by name: {{"rank 0": trace.shares()[0]}}.'
PANEL = 'Give {"loss": {"rank 0": ([1, 2], [2.3, 1.9])}}.'
SCHEDULE = "Call steps(algorithms.holdings(plan), plan.steps)."
LISTS = "states must be a list by step of lists by rank of lists by chunk, none of them empty, got"
MESSAGE = (
    "a message must be (src, dst, chunks, operation) with two ranks below 2, chunks below 2, 'reduce' or 'copy', got"
)
STATE = [[{0}, {0}], [{1}, {1}]]
NEGATIVE = SimpleNamespace(compute=-1, hidden=0, communicate=0, wait=0, other=0)


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("rank_color", [True], "rank must be an integer of 0 or more, got True. Call it as rank_color(0)."),
        ("before_after", [[], []], "before must be a list by rank, of at least one, got []. Give"),
        ("before_after", [[1, 2], [1]], "after must be a list of as many ranks as before (2), got [1]. Pull"),
        ("before_after", [5, [1]], "before must be a list by rank, of at least one, got 5."),
        ("before_after", [[1], [{1}]], "after[0] must be None, a number, a text, a tensor or a list of these"),
        ("time_against_size", [{}], f"curves must be at least one curve, got {{}}. {CURVE}"),
        ("time_against_size", [{"a": ([0], [1], [1], [1])}], "curves['a'] must be positive numbers, got 0. Measure a "),
        ("time_against_ranks", [{"a": ([1, 2], [1], [1], [1])}], "curves['a'] must be four lists of one"),
        ("speedup", [{}], f"curves must be at least one curve, got {{}}. {RATES}"),
        ("scaling", [{"a": ([2], [1], [1], [1])}], "curves['a'] must be a curve that begins with 1 rank, got 2. Give"),
        ("overlap", [[]], f"bars must be at least one bar, got []. {BAR}"),
        (
            "memory",
            [{}],
            'bars must be at least one bar, with no part below 0, got {}. Give {"rank 0": {"parameters": ',
        ),
        ("memory", [{"rank 0": {"gradients": -1}}], "bars must be at least one bar, with no part below 0, got "),
        (
            "memory_at",
            [{"at rest": {"gradients": 1}}, "", "kB"],
            "unit must be one of KiB, MiB, GiB, GB, got 'kB'. Give unit",
        ),
        ("overlap", [[("a", 0, 1, "sleep")]], "bars[0][3] must be one of compute, communicate, wait, got 'sleep'."),
        ("overlap", [[("a", 2, 1, "wait")]], f"bars[0] must be a bar that ends after its start 2, got 1. {BAR}"),
        ("time_shares", [{}], f"bars must be at least one bar that is longer than 0 s, {SHARES.format({})}"),
        ("time_shares", [{"a": NEGATIVE}], "bars must be at least one bar that is longer than 0 s, with no part below"),
        ("step_times", [{}], "steps must be at least one way, with times above 0, got {}. Give"),
        ("training_curves", [{}], f"panels must be at least one panel, got {{}}. {PANEL}"),
        ("training_curves", [{"a": {"b": ([1, 2], [1])}}], "panels['a']['b'] must be as many x as y, got ([1"),
        ("images", [[], []], "rows must be at least one row of images, got []. Give [x[:8]]."),
        ("images", [[torch.zeros(2, 8, 8)], [[1]]], "captions must be one for each image, [2] in the rows, got [[1]"),
        ("shards", [[]], "states must be one or more states, each of the same number of ranks, got []. Give shards("),
        ("pipeline", [{}], 'schedules must be at least one, in which a rank computes, got {}. Give {"'),
        ("pipeline", [{"a": [[], []]}], "schedules must be at least one, in which a rank computes, got {'a': [[]"),
        ("graph", [{}, []], "nodes must be a rank for each name, with one name or more, got {}. Write"),
        ("graph", [{"x": 0}, [("x", "y")]], "edges must be pairs of names of nodes, got 'y'. The nodes are 'x'."),
        ("graph", [{"x": 0}, [("x", "x")]], "edges must be without a circle, got ('x', 'x'). Leave"),
        ("served", [{"a": []}], "lanes must be at least one bar, none that ends before it starts, got {'a': []}."),
        ("served", [{"a": [(2, 1, "")]}], "lanes must be at least one bar, none that ends before it starts, got"),
        ("staleness", [{}], 'panels must be at least one run, got {}. Give {"equal trainers": {1: [0, 2, 1]}}.'),
        ("handshake", [[[], []]], "calls must be by rank, with a call of some rank, got [[], []]. Record them: see"),
        *[("steps", [states, []], f"{LISTS} {got}. {SCHEDULE}") for states, got in (([], []), (5, 5), ([[5]], 5))],
        ("play", [[[5]], []], f"{LISTS} 5. {SCHEDULE}"),
        ("steps", [[STATE, [[{0}], [{1}]]], [[]]], "states must be of as many ranks, and chunks on each"),
        ("steps", [[[[{0}]] * 9], []], "states must be states of at most 8 ranks and 16 chunks, got (9, 1). Draw"),
        ("steps", [[STATE], [[]]], "messages must be one list of messages between each two of the 1 states (0)"),
        ("steps", [[[[{2}], [{1}]]], []], "states must be of sets of ranks from 0 to 1, numbers, texts or None, got"),
        *[
            ("steps", [[STATE] * 2, [[sent]]], f"{MESSAGE} {sent}. {SCHEDULE}")
            for sent in [(0, 0, 1), (0, 2, 1), (0, 1, 2), (0, 1, []), (0, 1, 1, "max"), (0, 1), 7]
        ],
    ],
)
def test_what_cannot_be_drawn_is_refused(name, arguments, message):
    """The message is asserted from its beginning."""
    with pytest.raises(distlab.ArgumentError, match=f"^{re.escape(message)}"):
        getattr(plotting, name)(*arguments)
    assert plt.get_fignums() == []
