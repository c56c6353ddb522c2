"""From what ranks report to one paragraph: the sentences, in full, without any process."""

import pytest

from distlab import diagnosis
from distlab.errors import Failure, Line

RECV = Line(4, "dist.recv(t, src=1)")
TIMED_OUT = "Timed out waiting 3000ms for recv operation to complete"


RAISE = Line(2, "raise ValueError('no')")


def failed(rank, kind="ValueError", message="no", lines=(RAISE,), consequence=False):
    return Failure(rank, kind, message, lines, "", consequence)


def waited(rank, lines=(RECV,)):
    return failed(rank, "RuntimeError", TIMED_OUT, lines, consequence=True)


def test_ranks_that_fail_alike_are_folded():
    """The same error at the same line is told once."""
    error = diagnosis.rank_error([failed(0), failed(1)], [0, 1], 3, healed=False, subgroups=0)
    assert str(error) == "ranks 0-1 raised ValueError: no\n  ranks 0-1   line 2   raise ValueError('no')"


def test_the_culprit_comes_before_those_that_waited():
    """Whatever the order of ranks, the rank that raised is first."""
    error = diagnosis.rank_error([waited(0), failed(2), waited(1)], [0, 1, 2, 3], 3, healed=True, subgroups=1)
    assert str(error) == (
        "rank 2 raised ValueError: no\n"
        "  rank 2   line 2   raise ValueError('no')\n"
        "ranks 0-1 waited in communication and could not go on:\n"
        "  ranks 0-1   line 4   dist.recv(t, src=1)\n"
        "Rank 3 finished.\n"
        "The process group is rebuilt and variables are kept: change the cell and run it again. "
        "Groups made with dist.new_group, and device meshes, are gone: make them again."
    )
    assert (error.rank, error.finished) == (2, (3,))


def test_a_lonely_wait():
    """One rank that waited for a finished one."""
    error = diagnosis.rank_error([waited(1)], [0, 1], 3.0, healed=True, subgroups=0)
    assert str(error).splitlines()[0] == "rank 1 waited for another rank, and nothing came for 3 s."


def test_a_wait_that_gloo_explains_is_told_in_its_words():
    """monitored_barrier names the rank that is missing; that is not replaced by our own sentence."""
    said = "[Rank 0]: Ranks 3 failed to pass monitoredBarrier in 1000 ms, Timed out waiting"
    error = diagnosis.rank_error([failed(0, "RuntimeError", said, (RECV,), True)], [0], 3, healed=False, subgroups=0)
    assert said in str(error)


def test_a_communication_fault_without_a_timeout_is_told_as_it_is():
    """A connection that broke is not called a wait."""
    broken = failed(0, "RuntimeError", "Connection closed by peer", (RECV,), consequence=True)
    error = diagnosis.rank_error([broken], [0], 3, healed=False, subgroups=0)
    assert str(error).startswith("rank 0 raised RuntimeError: Connection closed by peer\n")


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (f"[/__w/pytorch/gloo/transport/tcp/unbound_buffer.cc:78] {TIMED_OUT}", TIMED_OUT),
        ("[a/pair.cc:553] Connection closed by peer [127.0.0.1]:13706", "Connection closed by peer"),
        ("plain [1, 2] text", "plain [1, 2] text"),
        ("first\nException raised from run at x.cpp:1\nframe #0", "first"),
    ],
)
def test_messages_are_made_readable(raw, message):
    """Paths of gloo's sources, byte-swapped ports and C++ stacks are left out."""
    assert diagnosis.readable(raw) == message


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (None, "died"),
        (0, "ended with exit status 0"),
        (7, "ended with exit status 7"),
        (-9, "was killed by SIGKILL (often the system, out of memory, or kill -9)"),
        (-6, "was killed by SIGABRT (often gloo: a send and its recv had different sizes)"),
        (-2, "was killed by SIGINT"),
        (-200, "was killed by signal 200"),
    ],
)
def test_how_a_process_ended(status, words):
    """Exit statuses and signals in words, with the usual cause."""
    assert diagnosis.exit_words(status) == words


def test_a_line_of_a_cell_counts_the_magic_line():
    """A %%px cell's first line of code is line 2 in the notebook."""
    report = {"kind": "E", "message": "", "traceback": "", "consequence": False, "communicated": False}
    cell = diagnosis.failure(0, {**report, "lines": [("/tmp/ipykernel_1/2.py", 1, "x", "", True)]})
    script = diagnosis.failure(0, {**report, "lines": [("script.py", 1, "x", "f", False)]})
    assert (cell.lines[0], script.lines[0]) == (Line(2, "x", ""), Line(1, "x", "f"))
