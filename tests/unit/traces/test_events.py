"""Parts of a rank's time, cut into moments."""

from distlab.traces.events import moments


def test_moments_are_cut_where_something_else_goes_on():
    """Not where a part ends and another of its kind begins."""
    parts = [
        ("compute", 4, 5),
        ("compute", 0, 2),
        ("compute", 1, 3),
        ("move", 2, 6),
        ("move", 6, 7),
        ("wait", 9, 9),
    ]
    cut = [
        (0, 2, {"compute"}),
        (2, 3, {"compute", "move"}),
        (3, 4, {"move"}),
        (4, 5, {"compute", "move"}),
    ]
    assert [*moments(parts)] == [*cut, (5, 7, {"move"})]
