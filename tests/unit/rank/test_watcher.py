"""What a rank notes of its calls for the portability report, and how little it keeps."""

import sys
import threading

import pytest
import torch

from distlab.rank import portability
from distlab.rank.log import LOG, Note
from distlab.rank.portability import Watcher
from distlab.wire.messages import COLLECTIVE, MESSAGE


@pytest.fixture(autouse=True)
def in_a_group(monkeypatch):
    """This process is rank 0 of a group of two, "0"."""
    monkeypatch.setattr(portability, "members_of", lambda name: (0, 1))
    LOG.forget()
    yield
    LOG.forget()


def note(op="all_reduce", method="allreduce", **given):
    made = Note(op, MESSAGE if method in ("send", "recv") else COLLECTIVE)
    made.method = method
    made.group = "0"
    for name, value in given.items():
        setattr(made, name, value)
    return made


def see(watcher, one, *tensors):
    watcher.see(one, None, (list(tensors),), sys._getframe())


def test_tensors_are_noted_by_what_they_are():
    """In lists of lists, too; a call without a tensor has none."""
    watcher = Watcher()
    see(watcher, note(), torch.ones(1), [torch.ones(2, dtype=torch.int16)])
    see(watcher, note("barrier", "barrier"))
    reduced, barrier = watcher.end().calls
    assert (reduced.devices, reduced.dtypes) == (("cpu",), ("float32", "int16"))
    assert (barrier.devices, barrier.dtypes) == ((), ())
    assert (reduced.is_first, barrier.is_first) == (True, False)


def test_the_line_is_the_programs_own():
    watcher = Watcher()
    see(watcher, note())
    (call,) = watcher.end().calls
    assert call.line.function == "note"
    assert call.file == __file__
    assert call.is_direct


def test_calls_that_return_at_once_are_forgotten_when_they_were_waited_for():
    """A program that begins a million of them keeps a few thousand notes."""
    watcher = Watcher()
    for _ in range(3 * portability.MOST_UNWAITED):
        see(watcher, note("isend", "send", peer=1))
    assert len(watcher._immediate) <= 2 * portability.MOST_UNWAITED
    newest = note("isend", "send", peer=1)
    LOG.unwaited[newest] = (None, 0)
    see(watcher, newest)
    left = {call.is_left: count for call, count in watcher.end().calls.items()}
    assert left[True] == 1


def test_too_many_calls_say_nothing_of_orders(monkeypatch):
    monkeypatch.setattr(portability, "MOST_IN_ORDER", 3)
    watcher = Watcher()
    for _ in range(4):
        see(watcher, note("send", "send", peer=1))
    seen = watcher.end()
    assert (len(seen.messages), seen.is_whole) == (3, False)
    assert sum(seen.calls.values()) == 4


def test_threads_have_numbers():
    """The main thread has 0, and later ones are not told apart without end."""
    watcher = Watcher()
    see(watcher, note())
    hold = threading.Event()
    threads = []
    for _ in range(2 * portability.MOST_THREADS):
        thread = threading.Thread(target=lambda: (see(watcher, note()), hold.wait(10)))
        thread.start()
        threads.append(thread)
    hold.set()
    for thread in threads:
        thread.join()
    numbers = {call.thread for call in watcher.end().calls}
    assert min(numbers) == 0
    assert max(numbers) <= portability.MOST_THREADS


def test_messages_of_a_batch_belong_together():
    watcher = Watcher()

    def batch_isend_irecv(p2p_op_list):
        for _ in p2p_op_list:
            see_in_batch(watcher)

    def see_in_batch(watcher):
        one = note("batch_isend_irecv", "send", peer=1)
        watcher.see(one, None, ([],), sys._getframe())

    batch_isend_irecv([1, 2])
    batch_isend_irecv([1])
    see(watcher, note("send", "send", peer=1))
    assert [message.batch for message in watcher.end().messages] == [1, 1, 2, 0]
