"""What a rank remembers has limits: what fell out is marked, so that nothing is false.

tests/unit/diagnosis/test_limits.py has what is said then.
"""

import threading

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

from distlab.rank import log, status
from distlab.rank.log import LOG
from distlab.rank.message_counter import MOST_KINDS


def seen():
    """What this rank reports of itself, from outside of a cell."""
    return status.summary(threading.get_ident(), set(), status.Traffic)


@pytest.mark.parametrize(("more", "left_out"), [(0, False), (1, True)])
def test_kinds_of_messages(four, more, left_out):
    """All are counted, the newest are reported."""
    for tag in range(MOST_KINDS + more):
        dist.send(torch.ones(1), 2, tag=tag)
    dist.send(torch.ones(1), 2, tag=more)
    found = seen()
    assert found.more_traffic == left_out
    assert len(found.traffic) == MOST_KINDS
    assert (found.traffic[-1].tag, found.traffic[-1].sequence) == (more, 2)


@pytest.mark.parametrize(("more", "left_out"), [(0, False), (1, True)])
def test_calls_that_nobody_has_waited_for(four, more, left_out):
    for _ in range(log.MOST_UNWAITED + more):
        dist.isend(torch.ones(1), 2)
    found = seen()
    assert found.more_unwaited == left_out
    assert len(found.abandoned) == log.MOST_UNWAITED
    LOG.forget()
    assert not seen().more_unwaited


def test_collectives_of_a_group(four):
    """The numbers of those that are left out follow from the others."""
    pair = dist.new_group([1, 3])
    dist.barrier(pair)
    for _ in range(log.REMEMBERED + 1):
        dist.barrier()
    assert [(old.group == "0", old.sequence) for old in seen().history] == [
        (False, 1),
        *((True, number) for number in range(2, log.REMEMBERED + 2)),
    ]


def test_a_group_that_was_destroyed(four):
    """The ends of its messages are known; without members nothing waits in it."""
    pair = dist.new_group([1, 3])
    dist.isend(torch.ones(1), 3, group=pair)
    dist.destroy_process_group(pair)
    (count,) = seen().traffic
    assert (count.peer, count.sequence) == (3, 1)
    (call,) = seen().abandoned
    assert (call.peer, call.members) == (3, ())


def test_results_that_nobody_waits_for(alone, monkeypatch):
    """The wait for a forgotten one gives the same result, and is not noted."""
    monkeypatch.setattr(log, "MOST_UNWAITED", 3)
    results = [functional.all_reduce(torch.ones(2), "sum", dist.group.WORLD) for _ in range(4)]
    assert len(LOG.results) == 3
    assert [result.tolist() for result in results] == [[1.0, 1.0]] * 4  # which waits
    notes = LOG.collectives[dist.group.WORLD.group_name]
    assert [note.done for note in notes] == [False, True, True, True]
    assert LOG.results == {}
