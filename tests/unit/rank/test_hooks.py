"""The layer under torch.distributed: what it says of a wait; zoo_of_peers.py has the calls that it refuses."""

from concurrent.futures import ThreadPoolExecutor

import torch
import torch.distributed as dist

from distlab.rank import hooks
from distlab.rank.log import LOG
from tests.unit.rank.conftest import Slow, noted


def test_a_wait_says_what_is_waited_for(four):
    """While it lasts, and not afterwards; to begin and to end it count as movement."""
    work, note = noted()
    before = LOG.total
    with ThreadPoolExecutor(1) as pool:
        waits = pool.submit(hooks.waiting("wait", Slow.wait), work)
        assert work.entered.wait(10)
        assert (note in LOG.now.values(), note.done) == (True, False)
        work.end.set()
        assert waits.result() == "done"
    assert note not in LOG.now.values()
    assert (LOG.total, note.done) == (before + 2, True)


def test_a_future_is_waited_for_as_its_work_is(alone):
    """Also one that was made from it by then()."""
    work = dist.all_reduce(torch.ones(1), async_op=True)
    future = work.get_future()
    half = future.then(lambda future: future.value()[0] / 2)
    note = LOG.ties[work]
    assert (LOG.ties[future], LOG.ties[half]) == (note, note)
    assert half.wait().tolist() == [0.5]
    assert note.done
