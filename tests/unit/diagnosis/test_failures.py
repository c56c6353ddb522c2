"""From what ranks report to one paragraph, without any process; tests/cluster/client/test_faults.py has whole ones."""

import pytest

from distlab.diagnosis.failures import ADVICE, exit_words, rank_error, readable
from distlab.wire.messages import Failure, Line

RECV = Line(4, "dist.recv(t, src=1)")
TIMED_OUT = "Timed out waiting 3000ms for recv operation to complete"


RAISE = Line(2, "raise ValueError('no')")


def failed(rank, kind="ValueError", message="no", lines=(RAISE,), consequence=False):
    return Failure(rank, kind, message, lines, "", consequence)


def told(failures, targets):
    """The error's lines."""
    return str(rank_error(failures, targets, False, "")).splitlines()


MONITORED = "[Rank 0]: Ranks 3 failed to pass monitoredBarrier in 1000 ms, Timed out waiting"


@pytest.mark.parametrize(
    ("message", "first"),
    [
        (TIMED_OUT, "rank 0 waited for another rank, and nothing came for 3 s."),
        (TIMED_OUT.replace("3000", "1500"), "rank 0 waited for another rank, and nothing came for 1.5 s."),
        (MONITORED, f"rank 0 raised RuntimeError: {MONITORED}"),
        ("Connection closed by peer", "rank 0 raised RuntimeError: Connection closed by peer"),
    ],
    ids=["a wait", "a wait with a limit of its own", "a wait that gloo explains", "a connection that broke"],
)
def test_a_lonely_wait(message, first):
    """One rank that waited, in our words where gloo's say no more."""
    assert told([failed(0, "RuntimeError", message, (RECV,), consequence=True)], [0, 1])[0] == first


def test_a_recursion_is_told_in_a_few_lines():
    calls = tuple(Line(number, f"f({number})") for number in range(200))
    lines = told([failed(0, "RecursionError", "maximum recursion depth exceeded", calls)], [0])
    assert lines[1] == "  rank 0   line 0   f(0)"
    assert lines[6:8] == ["           ... 190 calls more ...", "           line 195   f(195)"]
    assert len(lines) == 12


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (f"[/__w/pytorch/gloo/transport/tcp/unbound_buffer.cc:78] {TIMED_OUT}", TIMED_OUT),
        ("[a/pair.cc:553] Connection closed by peer [127.0.0.1]:13706", "Connection closed by peer"),
        ("[enforce fail at /gloo/pair.cc:801] state_ >= CONNECTED. 1 vs 4", "state_ >= CONNECTED. 1 vs 4"),
        ("Pair is not connected (127.0.0.1:4711 <-->)", "Pair is not connected"),
        ("Pair is not connected (127.0.0.1:4711 <--> [none])", "Pair is not connected"),
        ("plain [1, 2] text", "plain [1, 2] text"),
        ("[rank3]:[F1123 13:17:28.055 ProcessGroupGloo.cpp:1537] Check failed: a == b", "Check failed: a == b"),
        ("first\nException raised from run at x.cpp:1\nframe #0", "first"),
        ("part of group <torch.ProcessGroup object at 0x7f5a3cf8aef0>", "part of group <torch.ProcessGroup object>"),
    ],
)
def test_messages_are_made_readable(raw, message):
    """Paths of gloo's sources, byte-swapped ports, addresses and C++ stacks are left out."""
    assert readable(raw) == message


@pytest.mark.parametrize(
    ("kind", "message", "advice"),
    [
        ("ProcessExitedException", "process 0 terminated with signal SIGKILL", ""),
        ("ProcessRaisedException", "\n-- Process 0 terminated with the following error:\n1/0", ""),
        ("ValueError", "bad batch", ""),
        ("RuntimeError", "a and b must have same reduction dim, but got", ""),
        ("RuntimeError", "Check failed: outputShape[0] * worldSize == inputShape[0] (8 vs. 5).", "world_size times"),
        ("RuntimeError", "invalid output tensor list at index 0 (expected length 4, got 3)", "world_size times"),
    ],
)
def test_advice_fits_its_message(kind, message, advice):
    """What torch and Python say of these is explained, once below all that raised; more of them are in the zoo.

    Other errors are left as they are.
    """
    lines = told([failed(rank, kind, f"{message} {rank}", ()) for rank in (0, 1)], [0, 1])
    given = [line for line in lines if line in ADVICE.values()]
    assert len(given) == bool(advice)
    assert all(advice in words for words in given)


@pytest.mark.parametrize(
    ("status", "words"),
    [(None, "died"), (-2, "was killed by SIGINT"), (-200, "was killed by signal 200")],
)
def test_how_a_process_ended(status, words):
    """An unknown end, and signals without a usual cause; the zoo has exit statuses and the others."""
    assert exit_words(status) == words
