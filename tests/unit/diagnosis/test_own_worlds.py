"""Worlds that ranks make by themselves: who waits for whom, and calls that never meet."""

from dataclasses import replace

import pytest

from distlab.diagnosis import stuck
from distlab.diagnosis.proof import proof
from distlab.wire import messages
from distlab.wire.messages import CallRecord, RankStatus

CALL = CallRecord(
    op="init_process_group",
    kind=messages.OWN_WORLD,
    members=(0, 1, 2),
    group="this machine, port 29500",
    sequence=1,
    world_size=3,
)


def waits(rank, **fields):
    call = replace(CALL, **{"number": rank, **fields})
    return RankStatus(rank, messages.COMMUNICATING, call)


def finished(rank, *worlds):
    return RankStatus(rank, messages.IDLE, worlds=worlds)


def why(*states):
    by_rank = {state.rank: state for state in states}
    needs = proof(by_rank)
    return needs and stuck.why_stuck(needs, by_rank)


def test_a_rank_that_has_finished_never_comes():
    assert why(waits(0), waits(1), finished(2)) == (
        "Ranks 0-1 wait in init_process_group for rank 2, which has finished without calling it."
    )


def test_it_has_come_to_an_earlier_world():
    assert why(waits(0, sequence=2), waits(1, sequence=2), finished(2, CALL)).endswith(
        "which has finished without calling it again."
    )


def test_a_rank_may_still_come():
    computes = RankStatus(2, messages.COMPUTING)
    assert why(waits(0), waits(1), computes) is None


def test_all_have_come():
    """A rank that has not seen it yet goes on, also where another one has finished since."""
    assert why(waits(0), waits(1), waits(2)) is None
    assert why(waits(0), waits(1), finished(2, replace(CALL, number=2))) is None


def test_a_call_that_ends_by_itself():
    assert why(waits(0, own_limit=True), finished(1), finished(2)) is None


def test_a_rank_in_a_barrier_of_the_group_before():
    """Rank 0 has left that group, and rank 1 waits for it there."""
    barrier = CallRecord("barrier", messages.COLLECTIVE, (0, 1), group="0", sequence=3)
    in_barrier = RankStatus(1, messages.COMMUNICATING, barrier, history=(barrier,))
    assert why(waits(0, world_size=2), in_barrier) == (
        "2 of 2 ranks wait for each other: rank 0 in init_process_group for rank 1, "
        "rank 1 in barrier for rank 0."
    )


@pytest.mark.parametrize(
    ("states", "words"),
    [
        (
            (waits(0), waits(1), waits(2, world_size=2)),
            "do not match: rank 2 has world_size=2, ranks 0-1 have world_size=3.",
        ),
        (
            (waits(0), waits(1), waits(2, group="this machine, port 29501")),
            "rank 2 meets at this machine, port 29501, ranks 0-1 meet at this machine, port 29500.",
        ),
        (
            (waits(0), waits(1, number=0), waits(2)),
            "Ranks 0-1 call init_process_group with rank=0: each rank of a world needs a number",
        ),
        (
            (waits(0, number=1), waits(1, number=2), waits(2, number=3)),
            "Rank 2 calls init_process_group with rank=3, but a world of 3 ranks counts them from",
        ),
        (
            (waits(0, world_size=4), waits(1, world_size=4), waits(2, world_size=4)),
            "waits for a world_size of 4 ranks, and there are only 3 here.",
        ),
    ],
)
def test_calls_that_never_meet(states, words):
    assert words in why(*states)
