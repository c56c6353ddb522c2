"""Whether a thread of a rank may still communicate: only what is known to wait for work may not."""

import threading

import pytest

from distlab.rank import activity


@pytest.fixture
def may_act():
    """Whether a thread of the test's may act, as a rank would see it: those that were there before do not count."""
    ours = {thread.native_id for thread in threading.enumerate()}
    assert not activity.actors(threading.get_ident(), ours)
    return lambda: bool(activity.actors(threading.get_ident(), ours))


@pytest.mark.parametrize(
    ("thread", "acts"),
    [
        (lambda end: threading.Timer(10, print), True),  # it runs no code of the learner's yet
        (lambda end: threading.Thread(target=end.wait, args=(10,)), True),
        (lambda end: threading.Thread(target=end.wait, args=(10,), name="distlab-something"), False),
    ],
    ids=["a timer", "a thread", "one of our own"],
)
def test_a_thread_may_act_unless_it_is_ours(may_act, thread, acts):
    """Whatever it does now."""
    end = threading.Event()
    thread = thread(end)
    thread.start()
    assert may_act() == acts
    end.set()
    if isinstance(thread, threading.Timer):
        thread.cancel()
    thread.join()
