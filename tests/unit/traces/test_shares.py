"""Where time goes: what a trace's events add up to."""

from math import inf

import pytest

from distlab.traces.events import Event
from distlab.traces.trace import shares_of


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
        ([Event(0, "recv", "recv", 1, 3), Event(1, "compute", "mm", 0, 9)], [0, 0, 2, 0, 7]),
    ],
)
def test_shares(events, expected):
    """Computing, hidden and other communication, waiting and the rest add up to the whole time."""
    parts = shares_of(events, 0)
    assert parts == pytest.approx(expected)
    assert sum(parts) == max((event.end for event in events), default=0)
