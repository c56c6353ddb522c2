"""What a rank does not repeat of the words that libraries write to stderr."""

from distlab.compat.ipython import NEEDLESS


def test_the_line_of_the_profilers_library_is_left_out():
    """It says ERROR and means nothing; the lines around it stay."""
    line = "ERROR: External init callback must run in same thread as registerClient (7 != -8)\n"
    assert NEEDLESS.sub("", f"before\n{line}after\n") == "before\nafter\n"
