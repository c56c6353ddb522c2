"""Where something fell out of what a rank remembers, nothing is claimed."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from distlab.diagnosis import report
from distlab.diagnosis.afterwards import EndedWithGroup
from distlab.diagnosis.proof import proof
from distlab.notebook.unmatched import rebuild_without_unmatched
from distlab.rank.log import REMEMBERED
from tests.unit.paper import Paper

# --- kinds of messages ---

KIND_LEFT_OUT = {  # what really happened, and what is left of it
    "the recv has its message": "2 ranks; 0 isend 1 tag=7; 1 recv 0 tag=7",
    "the recv has none": "2 ranks; 1 recv 0 tag=7",
}


@pytest.mark.parametrize("steps", KIND_LEFT_OUT.values(), ids=KIND_LEFT_OUT)
def test_a_message_whose_kind_fell_out_at_the_other_end(steps):
    """The two look alike: neither is stuck, and neither is left."""
    states = Paper(steps).states()
    states[0] = replace(states[0], traffic=(), more_traffic=True)
    assert proof(states) is None
    states[1] = replace(states[1], doing="idle", call=None, abandoned=(states[1].call,))
    assert report.unmatched_operations(states) == []
    assert report.unmatched_operations({**states, 0: replace(states[0], more_traffic=False)}) != []


@pytest.mark.parametrize(
    ("steps", "is_deadlock"),
    [
        ("2 ranks; 0 recv 1; 1 recv 0", False),  # each may have sent what the other one waits for
        ("2 ranks; 0 all_reduce; 1 barrier", True),  # what is not left out is judged as ever
        ("2 ranks; 0 all_reduce", True),
        ("2 ranks; 0-1 all_reduce", False),
    ],
)
def test_ranks_that_report_only_some_kinds(steps, is_deadlock):
    states = Paper(steps).states(more_traffic=True)
    assert (proof(states) is not None) == is_deadlock


# --- collectives ---


@pytest.mark.parametrize(
    ("last", "is_deadlock"),
    [
        ("0 all_reduce", False),  # rank 1 has called it, long ago
        # rank 1 has called an all_reduce then, which it does not remember
        ("0 broadcast root=0", False),
        ("0 all_reduce; " * (REMEMBERED + 7) + "0 all_reduce", False),
        ("0 all_reduce; " * (REMEMBERED + 8) + "0 all_reduce", True),  # one more than rank 1
        # which it does remember
        ("0 all_reduce; " * (REMEMBERED + 7) + "0 broadcast root=0", True),
    ],
)
def test_a_rank_that_is_further_ahead_than_it_remembers(last, is_deadlock):
    """Rank 1 has called 8 more than it remembers, and has finished."""
    states = Paper("2 ranks; " + "1 all_reduce async; " * (REMEMBERED + 8) + last).states()
    states[1] = replace(states[1], history=states[1].history[-REMEMBERED:])
    assert (proof(states) is not None) == is_deadlock


# --- calls that nobody has waited for ---


@pytest.mark.parametrize(("more_unwaited", "rebuilt"), [(False, 1), (True, 0)])
def test_a_group_stays_where_an_older_call_may_be_waited_for(capsys, more_unwaited, rebuilt):
    """A rank that began more than it remembers may still hold a Work of this group."""
    states = Paper("2 ranks; 0 isend 1").states()
    sent = Paper("2 ranks; 0 send 1").states()[0].call
    states[0] = replace(states[0], more_unwaited=more_unwaited, abandoned=(sent,))
    rebuilds = []
    ranks = SimpleNamespace(
        channel=SimpleNamespace(unwaited=True),
        plan=SimpleNamespace(n=2, network=None),
        states=lambda _, patient: states,
        rebuild=lambda: rebuilds.append(1) or EndedWithGroup(),
    )
    rebuild_without_unmatched(ranks, print_report=True)
    assert len(rebuilds) == rebuilt
    shown = capsys.readouterr().err
    assert "rank 0: send(dst=1), was never received" in shown
    assert ("The process group is rebuilt" in shown) == bool(rebuilt)
