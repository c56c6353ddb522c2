"""A program whose text a lesson changes: it runs, the first one stays, and errors show its line."""

import traceback

import pytest

from distlab.errors import ArgumentError
from distlab_course.changed import changed

FACTOR = 3


def tripled(number):
    result = number * FACTOR
    return result


def test_the_changed_program_runs_with_the_names_of_the_first():
    """It sees the globals that the program sees, and the program itself stays as it is."""
    squared = changed(tripled, "number * FACTOR", "number * number + FACTOR")
    assert squared(5) == 28
    assert tripled(5) == 15
    assert squared.__name__ == "tripled"


def test_a_traceback_shows_the_changed_line():
    """The changed text is where Python looks for lines."""
    broken = changed(tripled, "number * FACTOR", "number / 0")
    with pytest.raises(ZeroDivisionError) as caught:
        broken(5)
    assert "result = number / 0" in "".join(traceback.format_tb(caught.value.__traceback__))


@pytest.mark.parametrize(("old", "times"), [("number *** FACTOR", 0), ("result", 2)])
def test_the_piece_must_be_there_once(old, times):
    """Anything else would change nothing, or too much."""
    with pytest.raises(ArgumentError, match=f"there {times} times"):
        changed(tripled, old, "number")
