"""From what ranks report to one paragraph: the sentences, in full, without any process."""

import pytest

from distlab.diagnosis import explanation
from distlab.errors import Failure, Line
from distlab.wire.messages import Raised, SourceLine

RECV = Line(4, "dist.recv(t, src=1)")
TIMED_OUT = "Timed out waiting 3000ms for recv operation to complete"


RAISE = Line(2, "raise ValueError('no')")


def failed(rank, kind="ValueError", message="no", lines=(RAISE,), consequence=False):
    return Failure(rank, kind, message, lines, "", consequence)


def waited(rank, lines=(RECV,)):
    return failed(rank, "RuntimeError", TIMED_OUT, lines, consequence=True)


def told(failures, targets=(0, 1), healed=False, subgroups=0):
    """The error's lines."""
    return str(explanation.rank_error(failures, targets, 3.0, healed, subgroups)).splitlines()


def test_ranks_that_fail_alike_are_folded():
    """The same error at the same line is told once."""
    assert told([failed(0), failed(1)]) == [
        "ranks 0-1 raised ValueError: no",
        "  ranks 0-1   line 2   raise ValueError('no')",
    ]


def test_the_culprit_comes_before_those_that_waited():
    """Whatever the order of ranks, the rank that raised is first."""
    failures = [waited(0), failed(2), waited(1)]
    assert told(failures, range(4), healed=True, subgroups=1) == [
        "rank 2 raised ValueError: no",
        "  rank 2   line 2   raise ValueError('no')",
        "ranks 0-1 waited in communication and could not go on:",
        "  ranks 0-1   line 4   dist.recv(t, src=1)",
        "Rank 3 finished.",
        "The process group is rebuilt and variables are kept: change the cell and run it again. "
        "Groups made with dist.new_group, and device meshes, are gone: make them again.",
    ]
    error = explanation.rank_error(failures, range(4), 3, healed=True, subgroups=1)
    assert (error.failures[0].rank, error.finished) == (2, (3,))


MONITORED = "[Rank 0]: Ranks 3 failed to pass monitoredBarrier in 1000 ms, Timed out waiting"


@pytest.mark.parametrize(
    ("message", "first"),
    [
        (TIMED_OUT, "rank 0 waited for another rank, and nothing came for 3 s."),
        (MONITORED, f"rank 0 raised RuntimeError: {MONITORED}"),
        ("Connection closed by peer", "rank 0 raised RuntimeError: Connection closed by peer"),
    ],
    ids=["a wait", "a wait that gloo explains", "a connection that broke"],
)
def test_a_lonely_wait(message, first):
    """One rank that waited, in our words where gloo's say no more."""
    assert told([failed(0, "RuntimeError", message, (RECV,), consequence=True)])[0] == first


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (f"[/__w/pytorch/gloo/transport/tcp/unbound_buffer.cc:78] {TIMED_OUT}", TIMED_OUT),
        ("[a/pair.cc:553] Connection closed by peer [127.0.0.1]:13706", "Connection closed by peer"),
        ("plain [1, 2] text", "plain [1, 2] text"),
        ("first\nException raised from run at x.cpp:1\nframe #0", "first"),
        ("part of group <torch.ProcessGroup object at 0x7f5a3cf8aef0>", "part of group <torch.ProcessGroup object>"),
    ],
)
def test_messages_are_made_readable(raw, message):
    """Paths of gloo's sources, byte-swapped ports, addresses and C++ stacks are left out."""
    assert explanation.readable(raw) == message


def test_known_messages_come_with_advice():
    """The message stays, and what to do stands once below all that raised, however their messages differ."""
    said = "Could not resolve the process group registered under the name"
    gone = [failed(rank, "RuntimeError", f"{said} {rank}", (RECV,)) for rank in (0, 1)]
    text = str(explanation.rank_error(gone, [0, 1], 3, healed=False, subgroups=0))
    assert text.splitlines()[:2] == [f"rank 0 raised RuntimeError: {said} 0", "  rank 0   line 4   dist.recv(t, src=1)"]
    assert text.splitlines()[4] == (
        "This belongs to a process group that was rebuilt, or destroyed, since. Make it again: a device mesh with "
        "mesh = init_device_mesh(...), a group with dist.new_group(...), and every model or DTensor that is on them."
    )
    assert text.count("init_device_mesh") == 1


@pytest.mark.parametrize(
    ("kind", "message", "advice"),
    [
        ("ProcessExitedException", "process 0 terminated with signal SIGKILL", ""),
        ("ProcessRaisedException", "\n-- Process 0 terminated with the following error:\n1/0", ""),
        ("PicklingError", "Can't pickle <function f>: attribute lookup f on __main__ failed", "%%writefile work.py"),
        ("ValueError", "bad batch", ""),
    ],
)
def test_advice_fits_its_message(kind, message, advice):
    """What torch and Python say of these is explained; other errors are left as they are."""
    given = {words for _, words in explanation.ADVICE} & set(told([failed(0, kind, message, ())], [0]))
    assert len(given) == bool(advice)
    assert all(advice in words for words in given)


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (None, "died"),
        (7, "ended with exit status 7"),
        (-9, "was killed by SIGKILL (often the system, out of memory, or kill -9)"),
        (-2, "was killed by SIGINT"),
        (-200, "was killed by signal 200"),
    ],
)
def test_how_a_process_ended(status, words):
    """Exit statuses and signals in words, with the usual cause."""
    assert explanation.exit_words(status) == words


def test_a_line_of_a_cell_counts_the_magic_line():
    """A %%px cell's first line of code is line 2 in the notebook."""
    cell = explanation.failure(0, Raised("E", "", (SourceLine("/tmp/ipykernel_1/2.py", 1, "x", "", True),)))
    script = explanation.failure(0, Raised("E", "", (SourceLine("script.py", 1, "x", "f"),)))
    assert (cell.lines[0], script.lines[0]) == (Line(2, "x", ""), Line(1, "x", "f"))
