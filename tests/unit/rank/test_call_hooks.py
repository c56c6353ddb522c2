"""The layer under torch.distributed: what it says of a wait; zoo_of_peers.py has the calls that it refuses."""

import pytest
import torch
import torch.distributed as dist

from distlab.rank import call_hooks
from distlab.rank.call_log import NOTES
from tests.unit.rank.threads import Slow, noted, on_thread


def test_a_wait_says_what_is_waited_for(four):
    """While it lasts, and not afterwards; to begin and to end it count as movement."""
    work, note = noted()
    before = NOTES.total
    thread, outcome = on_thread(call_hooks._waiting(Slow.wait), work)
    assert work.entered.wait(10)
    assert (NOTES.now[thread.ident], note.done) == (note, False)
    work.end.set()
    thread.join(10)
    assert (outcome, thread.ident in NOTES.now) == (["done"], False)
    assert (NOTES.total, note.done) == (before + 2, True)


@pytest.mark.parametrize("method", ["", "allreduce", "recv_anysource"])
def test_a_wait_returns_what_the_work_returns(four, method):
    """Its value, or its error; also for a Work that somebody else has made."""
    work = noted(method, [torch.ones(1)], 0)[0] if method else Slow()
    work.end.set()
    assert call_hooks._waiting(Slow.wait)(work) == "done"

    def fail(self):
        raise RuntimeError("Timed out")

    with pytest.raises(RuntimeError, match="Timed out"):
        call_hooks._waiting(fail)(work)


def test_a_future_is_waited_for_as_its_work_is(alone):
    """Also one that was made from it by then()."""
    work = dist.all_reduce(torch.ones(1), async_op=True)
    future = work.get_future()
    half = future.then(lambda future: future.value()[0] / 2)
    note = NOTES.ties[work]
    assert (NOTES.ties[future], NOTES.ties[half]) == (note, note)
    assert half.wait().tolist() == [0.5]
    assert note.done
