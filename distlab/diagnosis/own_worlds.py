"""Worlds that ranks make by themselves: what a rank in init_process_group needs, and mismatches.

No process is asked. Runs on the notebook's kernel, called by proof.py. What ranks report of such a
call comes from rank/meetings.py: where the world meets, how many ranks it has, which number this
rank takes in it, and how often that number has come there.
"""

from collections.abc import Mapping

from distlab.diagnosis.matching import by_value
from distlab.diagnosis.needs import Need, Waiting
from distlab.wire.messages import OWN_WORLD, CallRecord, States
from distlab.words import rank_list

DIFFERENT_WORLDS = "The ranks' calls of init_process_group do not match"


def need_of_own_world(waiter: Waiting, states: States) -> Need | None:
    """The ranks that have not come to this world yet, or why it can never be complete."""
    call = waiter.call
    waiting = _waiting_in_init(states)
    numbers = {}
    for rank, state in states.items():
        if any(_is_same(call, world) for world in state.worlds):
            return None  # every rank has come, and the waiter will see it
        theirs = waiting.get(rank)
        if theirs is not None and _is_same(call, theirs):
            numbers[rank] = theirs.number
    missing = set(range(call.world_size)) - set(numbers.values())
    if not missing:
        return None
    clash = _why_never(waiting, len(states))
    if all(rank == number for rank, number in numbers.items()):
        others = [rank for rank in sorted(missing) if rank in states]
    else:
        others = [rank for rank in states if rank not in numbers]
    if not others and not clash:
        return None
    return Need(tuple(others), clash)


def _waiting_in_init(states: States) -> dict[int, CallRecord]:
    """The calls of init_process_group that ranks wait in, by rank."""
    found = {}
    for rank, state in states.items():
        for thread in (state, *state.other_threads):
            call = thread.call
            if call is not None and call.kind == OWN_WORLD:
                found[rank] = call
    return found


def _is_same(call: CallRecord, other: CallRecord) -> bool:
    """Whether two calls are about the same world."""
    one = (call.group, call.world_size, call.sequence)
    return one == (other.group, other.world_size, other.sequence)


def _why_never(waiting: Mapping[int, CallRecord], n: int) -> str:
    """A sentence that says why calls of init_process_group never meet; "" if they may.

    Args:
        waiting: the calls, by rank.
        n: how many ranks the cluster has.
    """
    sizes = {rank: f"world_size={call.world_size}" for rank, call in waiting.items()}
    if len(set(sizes.values())) > 1:
        return f"{DIFFERENT_WORLDS}: {by_value(sizes, ('has', 'have'))}."
    places = {rank: call.group for rank, call in waiting.items()}
    if len(set(places.values())) > 1:
        return f"{DIFFERENT_WORLDS}: {by_value(places, ('meets at', 'meet at'))}."
    numbers = {rank: call.number for rank, call in waiting.items()}
    for rank, call in waiting.items():
        if not 0 <= call.number < call.world_size:
            last = call.world_size - 1
            return (
                f"Rank {rank} calls init_process_group with rank={call.number}, but a world of "
                f"{call.world_size} ranks counts them from 0 to {last}."
            )
        alike = [other for other, number in numbers.items() if number == call.number]
        if len(alike) > 1:
            return (
                f"{rank_list(sorted(alike)).capitalize()} call init_process_group with "
                f"rank={call.number}: each rank of a world needs a number of its own."
            )
        if call.world_size > n:
            return (
                f"init_process_group waits for a world_size of {call.world_size} ranks, and there "
                f"are only {n} here."
            )
    return ""
