"""Why ranks that have finished do not come to a pass of DDP, by the passes that each has made.

No process is asked. Runs on the notebook's kernel, called by stuck.py.
"""

from collections.abc import Mapping, Sequence

from distlab.diagnosis.needs import newest_collectives
from distlab.diagnosis.proof import why_unmatched
from distlab.diagnosis.report import with_line
from distlab.wire.messages import OUTSIDE, RankStatus, States
from distlab.words import grouped, ranks_and_verb

# what DDP counts, one of them and several
FORWARD_PASS = ("forward pass", "forward passes")
BACKWARD_PASS = ("backward pass", "backward passes")
AVERAGING_PASS = ("forward pass outside of no_sync()", "forward passes outside of no_sync()")


def why_by_passes(state: RankStatus, gone: Sequence[int], states: States, advice: str) -> str:
    """The end of a sentence about DDP: why finished ranks do not come, by the passes of each.

    Args:
        state: the rank that waits.
        gone: the ranks that have finished.
        states: the statuses of every rank, by rank.
        advice: what to say if they made as many forward passes as the rank that waits.
    """
    passes = {rank: states[rank].passes for rank in gone}
    if set(passes.values()) == {state.passes}:
        return advice
    fewer = _fewer(passes, state.passes, FORWARD_PASS)
    if fewer:
        return f". {fewer}: with fewer batches on some ranks, use drop_last=True, or DDP's join()."
    return "."


def why_no_gradients(state: RankStatus, gone: Sequence[int], states: States) -> str:
    """The end of a sentence about a backward pass of DDP: why finished ranks send no gradients."""
    if any(states[rank].doing == OUTSIDE for rank in gone):  # nothing counts passes then
        return ": were there fewer batches, or does the loss use fewer parameters?"
    advice = ": does the loss of every rank use every parameter?"
    passes = {states[rank].passes for rank in gone}
    if passes != {state.passes}:
        return why_by_passes(state, gone, states, advice)
    backward = {rank: states[rank].backward_passes for rank in gone}
    fewer = _fewer(backward, state.backward_passes, BACKWARD_PASS)
    if fewer:
        rule = "all ranks must skip the same ones, so let them agree with an all_reduce"
        return f". {fewer}: {rule}."
    averaging = {rank: states[rank].averaging_passes for rank in gone}
    fewer = _fewer(averaging, state.averaging_passes, AVERAGING_PASS)
    if fewer:
        return f". {fewer}: every rank must enter no_sync() in the same steps."
    why = _call_of_a_hook(state, states)
    if why:
        return f": {why}."
    return advice


def _call_of_a_hook(state: RankStatus, states: States) -> str:
    """The newest collective of a rank in a backward pass that others have not called, or "".

    A hook of the learner's may have called it.
    """
    for call in newest_collectives(state):
        why = why_unmatched(state.rank, call, states)
        if why:
            return f"{with_line(call)}, {why}"
    return ""


def _fewer(numbers: Mapping[int, int], own: int, noun: tuple[str, str]) -> str:
    """Which ranks have made fewer passes than the one that waits, in words; "" if none has.

    Args:
        numbers: how many the others have made, by rank.
        own: how many the rank that waits has made.
        noun: the words for one pass, and for several.
    """
    fewer = []
    for rank, number in numbers.items():
        if number < own:
            fewer.append((number, rank))
    if not fewer:
        return ""
    one, several = noun
    words = ""
    for number, ranks in grouped(fewer).items():
        passes = one if number == 1 else several
        words += f"{ranks_and_verb(ranks, 'has', 'have')} made {number} {passes}, "
    words += f"and this one is number {own}"
    return words[0].upper() + words[1:]
