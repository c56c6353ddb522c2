"""Operations that nothing matches, compared with every way in which recvs may have been served."""

import itertools
from dataclasses import replace

from distlab.diagnosis import report
from distlab.diagnosis.proof import why_unmatched
from tests.unit.paper import Paper

SENDERS = (1, 2)
SURE = ("was never received", "nothing was sent for it")
PERHAPS = ("was perhaps never received", "perhaps nothing was sent for it")


def outcomes(sent, named, from_any):
    """By sender, how many messages recvs from any source may have taken; nothing fits any more."""
    for taken in itertools.product(*(range(sent[rank] + 1) for rank in SENDERS)):
        took = dict(zip(SENDERS, taken, strict=True))
        if sum(taken) > from_any:
            continue
        is_over = all(sent[rank] <= named[rank] + took[rank] for rank in SENDERS)
        if sum(taken) == from_any or is_over:
            yield took


def is_unmatched(call, sender, sent, named, took):
    if call.is_send:
        return call.sequence > named[sender] + took[sender]
    if call.peer is None:
        return call.sequence > sum(took.values())
    return call.sequence > sent[call.peer] - took[call.peer]


def test_what_is_said_of_an_operation_is_true_however_recvs_were_served():
    """What never happened never happens; "perhaps" is said where one operation must go without."""
    for one, two, named_one, named_two, from_any in itertools.product(range(3), repeat=5):
        sent = {1: one, 2: two}
        named = {1: named_one, 2: named_two}
        steps = ["3 ranks"]
        for rank in SENDERS:
            steps += [f"{rank} isend 0"] * sent[rank]
            steps += [f"0 irecv {rank}"] * named[rank]
        steps += ["0 irecv any"] * from_any
        paper = Paper("; ".join(steps))
        states = paper.states()
        ways = list(outcomes(sent, named, from_any))
        for rank in states:
            for call in paper._begun[rank]:
                why = why_unmatched(rank, call, states)
                unmatched = [is_unmatched(call, rank, sent, named, took) for took in ways]
                where = f"{steps}: {call.op} {call.peer} {call.sequence} of rank {rank} {why!r}"
                assert (why in SURE) == all(unmatched), where
                assert why not in PERHAPS or any(unmatched), where


def test_a_recv_from_any_source_that_served_all_is_not_called_unmatched():
    """One named and one from any source, and a message for each."""
    paper = Paper("3 ranks; 0 irecv any; 0 irecv 1; 1 isend 0; 2 isend 0")
    states = paper.states()
    states[0] = replace(states[0], abandoned=tuple(paper._begun[0]))
    assert report.unmatched_operations(states) == []


def test_which_of_two_messages_a_recv_from_any_source_took_is_not_known():
    paper = Paper("3 ranks; 0 irecv any; 1 isend 0; 2 isend 0")
    states = paper.states()
    for rank in SENDERS:
        states[rank] = replace(states[rank], abandoned=tuple(paper._begun[rank]))
    assert report.unmatched_operations(states) == [
        "  rank 1: isend(dst=0), was perhaps never received",
        "  rank 2: isend(dst=0), was perhaps never received",
    ]
