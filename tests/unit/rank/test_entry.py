"""What a rank says of an exception: whether it is only a consequence of what another rank did."""

import os

import pytest
import torch.distributed as dist

from distlab.rank import freed, raised
from distlab.rank.log import InCall, Note
from distlab.rank.raised import describe_failure
from distlab.wire.messages import REMOTE
from distlab.wire.source import message_and_lines

CUT = [  # what torch says of a store's connection that is shut while it writes, or reads
    "Broken pipe",
    "Connection reset by peer",
    (
        "Failed to recv, got 0 bytes. Connection was likely closed. "
        "Did the remote server shutdown or crash?"
    ),
    (
        "Failed to send, sent 0 bytes. Connection was likely closed. "
        "Did the remote server shutdown or crash?"
    ),
]


CALLS = compile(
    "def call(error):\n    raise error", os.path.join("torch", "distributed", "calls.py"), "exec"
)


def call(error):
    """A call inside of torch.distributed that raises this."""
    names = {}
    exec(CALLS, names)
    names["call"](error)


def described(error):
    """The failure of a call inside of torch.distributed that raises this."""
    try:
        call(error)
    except Exception as error:
        return describe_failure(error)


@pytest.mark.parametrize("message", CUT)
def test_a_store_that_is_lost_is_a_consequence(message):
    assert described(dist.DistNetworkError(message)).consequence


FREED = [
    *(text for name, text in vars(freed).items() if name.isupper()),
    freed.from_processes("store.get"),
    freed.from_waiting("through shared memory"),
]


@pytest.mark.parametrize("message", FREED)
def test_a_rank_that_was_freed_is_not_at_fault(message):
    assert described(RuntimeError(message)).consequence


def test_also_where_the_learner_has_called_the_store():
    """No frame of torch's is on the stack then."""
    assert describe_failure(dist.DistNetworkError(CUT[0])).consequence


def test_another_error_of_torch_is_none():
    failure = described(ValueError("Invalid rank"))
    assert failure.communicated
    assert not failure.consequence


def test_a_closed_connection_of_the_learners_own_is_none():
    assert not describe_failure(ConnectionResetError("Connection reset by peer")).consequence


class SilentError(Exception):
    """Nobody can say what it is."""

    def __str__(self):
        raise KeyError("words")


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (SyntaxError(), "None"),
        (SyntaxError(42), "42"),
        (SyntaxError("no such grammar"), "no such grammar"),
        (SilentError(), "(its text cannot be made: KeyError)"),
    ],
    ids=["no words", "a number", "words", "raises"],
)
def test_whatever_a_learner_raises_is_described(error, message):
    """Describing it never raises an error of its own, which would hide the learner's line."""
    assert described(error).message == message


def test_an_error_that_was_being_handled_is_described():
    """The learner's first; not what `from None` hides."""
    closed = "Connection closed by peer"
    try:
        raise ValueError("no data")
    except ValueError:
        handled = described(RuntimeError(closed)).handled
        hidden = RuntimeError(closed)
        hidden.__suppress_context__ = True
        assert described(hidden).handled is None
        own = KeyError("x")
        own.__context__ = ValueError("no data")
        assert describe_failure(own).handled is None
    assert (handled.kind, handled.message, handled.traceback) == ("ValueError", "no data", "")
    assert [line.function for line in handled.lines] == [
        "test_an_error_that_was_being_handled_is_described"
    ]
    assert described(RuntimeError(closed)).handled is None


def test_a_chain_of_errors_is_looked_at_once(monkeypatch):
    """A loop that tries again where it has failed makes such a chain."""
    looks = []

    def counted(error):
        looks.append(error)
        return message_and_lines(error)

    monkeypatch.setattr(raised, "message_and_lines", counted)
    first = newest = RuntimeError("Connection closed by peer, says gloo")
    for _ in range(30):
        newest = RuntimeError("Connection closed by peer, says gloo")
        newest.__context__ = first
        first = newest
    assert describe_failure(newest).consequence
    assert len(looks) == 31


def test_a_deep_recursion_ends_with_the_line_that_raised():
    def falls(depth):
        if depth:
            return falls(depth - 1)
        raise ValueError("at the bottom")

    with pytest.raises(ValueError, match="at the bottom") as caught:
        falls(500)
    lines = describe_failure(caught.value).lines
    assert len(lines) == 200
    assert lines[0].text == "falls(500)"
    assert lines[-1].text == 'raise ValueError("at the bottom")'


def test_a_chain_may_be_a_circle():
    error = RuntimeError("Timed out waiting")
    error.__context__ = ValueError("no data")
    error.__context__.__context__ = error
    assert describe_failure(error).handled is None


def wait_and_fail(note):
    """A wait for another rank that ends in an error of C++'s."""
    with InCall(note):
        raise RuntimeError("Connection closed")


def note_of_a_remote_call(readable):
    note = Note("rpc_sync", REMOTE, [1])
    note.readable = lambda _: readable
    return note


def test_a_readable_error_says_what_was_being_handled():
    """As the error does whose place it takes, which is not in the chain."""
    readable = RuntimeError("RPC timeout: f(...) on rank 1 did not answer within 100 ms.")
    try:
        raise KeyError("x")
    except KeyError as error:
        own = error
        with pytest.raises(RuntimeError) as seen:
            wait_and_fail(note_of_a_remote_call(readable))
    assert seen.value is readable
    assert readable.__context__ is own
    with pytest.raises(RuntimeError) as seen:
        wait_and_fail(note_of_a_remote_call(readable))
    assert readable.__context__ is None


def test_a_readable_error_that_comes_twice_does_not_handle_itself():
    """The Work of a call that does not match raises the same error each time it is waited for."""
    readable = RuntimeError("The arguments do not match.")
    try:
        wait_and_fail(note_of_a_remote_call(readable))
    except RuntimeError:
        with pytest.raises(RuntimeError):
            wait_and_fail(note_of_a_remote_call(readable))
    assert readable.__context__ is None


def raise_deeply(depth, error):
    if depth:
        raise_deeply(depth - 1, error)
    call(error)


def test_an_error_of_torch_is_known_as_one_below_many_frames():
    """However deep the program has recursed before."""
    with pytest.raises(ValueError, match="Invalid rank") as seen:
        raise_deeply(300, ValueError("Invalid rank"))
    assert describe_failure(seen.value).communicated
