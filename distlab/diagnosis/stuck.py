"""Why no rank can go on, in one to four sentences: the words for what proof.py has proven.

Pure functions. Runs on the notebook's kernel, called by cell.py.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

from distlab.diagnosis.needs import Need
from distlab.diagnosis.proof import need, why_unmatched
from distlab.diagnosis.report import call_words, callee_words, with_line
from distlab.wire import messages
from distlab.wire.messages import CallRecord, RankStatus
from distlab.words import grouped, rank_list


def why_stuck(
    needs: Mapping[int, Need],
    states: Mapping[int, RankStatus],
    targets: Sequence[int] | None = None,
) -> str:
    """Why no rank can go on, in one to four sentences.

    Args:
        targets: the ranks that run the cell; None for all.
    """
    if ranks := [rank for rank in sorted(needs) if _shares_a_group(states[rank])]:
        who = f"each of {rank_list(ranks)}" if len(ranks) > 1 else rank_list(ranks)
        return f"Two threads of {who} use one group at once: give the second a group of its own."
    if clashes := list(dict.fromkeys(n.clash for _, n in sorted(needs.items()) if n.clash)):
        return " ".join(clashes[:2])
    waiting = [states[rank] for rank in sorted(needs)]
    if any(state.call.kind == messages.REMOTE for state in waiting):
        return _remote(waiting, states)
    finished = {
        rank: [r for r in need.ranks if states[r].doing == messages.IDLE]
        for rank, need in needs.items()
    }
    if not any(finished.values()):
        return _circle(needs, states)
    alike = grouped(
        (_complaint(states[rank], gone, states), rank) for rank, gone in finished.items() if gone
    )
    sentences = [_sentence(ranks, words) for words, ranks in list(alike.items())[:3]]
    # nobody knows for which ranks a backward pass waits
    awaited = {
        r for rank, gone in finished.items() if states[rank].call.op != "backward" for r in gone
    }
    if targets is not None and awaited - set(targets):
        sentences.append(f"This cell runs on {rank_list(targets)} only.")
    return " ".join(sentences)


def _shares_a_group(state: RankStatus) -> bool:
    """Whether two threads of a rank are in collectives of one group, whose order nobody knows then.

    A thread that waits for the Work of a call that was made elsewhere is in none.
    """
    threads = [
        one
        for one in (state, *state.other_threads)
        if one.call is not None and one.call.lines == one.lines
    ]
    groups = [one.call.group for one in threads if one.call.kind == messages.COLLECTIVE]
    return len(groups) > len(set(groups))


def _sentence(ranks: Sequence[int], words: str, within: str = "") -> str:
    """What ranks do, from the words for one of them."""
    return f"{rank_list(ranks).capitalize()}{within} {words.replace('s ', ' ', 1) if len(ranks) > 1 else words}"


def _remote(waiting: Sequence[RankStatus], states: Mapping[int, RankStatus]) -> str:
    """Why remote calls never end: which call waits for which rank, and what that rank waits for
    while it serves it.
    """
    serving = [one for _, state in sorted(states.items()) for one in state.serving]
    served = Counter((one.rank, one.caller, one.function) for one in serving)
    places = [("", state) for state in waiting]
    places += [(f", in {one.function}(...) for rank {one.caller},", one) for one in serving]
    found = []
    for within, state in places:
        call = state.call
        if call.kind == messages.REMOTE:
            callees = [states[callee] for callee in call.members if callee in states]
            why = "".join(_unserved(states[state.rank], call, callee, served) for callee in callees)
            words = f"waits for {callee_words(call)}{why}."
        else:
            others = need(state, states).ranks
            words = f"waits in {call_words(call)}{f' for {rank_list(others)}' if others else ''}."
        found.append(((within, words), state.rank))
    sentences = [
        _sentence(sorted(set(ranks)), words, within)
        for (within, words), ranks in grouped(found).items()
    ]
    return " ".join(sentences[:4])


def _unserved(
    caller: RankStatus, call: CallRecord, callee: RankStatus, served: Counter[tuple[int, int, str]]
) -> str:
    """Why a callee does not answer if it does not serve the call; "" if it does.

    Args:
        served: how many calls of a callee, caller and function are served and have no caller yet;
            one is taken out.
    """
    served[callee.rank, caller.rank, call.function] -= 1
    if served[callee.rank, caller.rank, call.function] >= 0:
        return ""
    if not callee.threads:
        return f", but rank {callee.rank} no longer has an RPC agent"
    for busy in (callee, caller):  # C++ needs one of these threads for an answer, too
        if len(busy.serving) >= busy.threads > 0:
            one = busy.threads == 1
            threads = (
                "only thread for calls is" if one else f"{busy.threads} threads for calls are all"
            )
            return f", but rank {busy.rank}'s {threads} waiting"
    return ", which returned a Future that nobody completes" if call.function else ""


def _complaint(state: RankStatus, gone: Sequence[int], states: Mapping[int, RankStatus]) -> str:
    """What a rank waits for that cannot come; the words after its name."""
    call = state.call
    finished = f"{rank_list(gone)}, which {'have' if len(gone) > 1 else 'has'} finished"
    if call.kind == messages.MESSAGE and call.is_send:
        return f"sends a message to {finished} without receiving it."
    if call.kind == messages.MESSAGE:
        return f"waits for a message from {finished} without sending it."
    if call.kind == messages.WAITING:
        return f"waits {call.function} for {finished}."
    if call.op == "backward":
        why = _why_no_gradients(state, gone, states)
        return f"waits in backward() for gradients of {finished}{why}"
    if call.op == messages.DDP_FORWARD:
        advice = ": to evaluate on some ranks only, call the model inside, with .module."
        why = _why_by_passes(state, gone, states, advice)
        forward = "the forward pass of DDP, which broadcasts buffers and the order of buckets"
        return f"waits in {forward}, for {finished}{why}"
    rule = (
        ", which every rank must call," if call.kind == messages.NEW_GROUP and call.sequence else ""
    )
    again = " again" if any(_called_before(call, states[r]) for r in gone) else ""
    return f"waits in {call.op}{rule} for {finished} without calling it{again}."


def _called_before(call: CallRecord, state: RankStatus) -> bool:
    """Whether a rank has made a call like this one before, as in a loop."""
    if call.kind == messages.NEW_GROUP:
        return any(group.name.isdigit() for group in state.made) if call.sequence else False
    return (call.group, call.op, call.place) in [
        (old.group, old.op, old.place) for old in state.history
    ]


def _why_by_passes(
    state: RankStatus, gone: Sequence[int], states: Mapping[int, RankStatus], advice: str
) -> str:
    """The end of a sentence about DDP: why ranks that have finished do not come, by the forward
    passes of each.

    Args:
        advice: if they made as many as the rank that waits.
    """
    passes = {rank: states[rank].passes for rank in gone}
    if all(count == state.passes for count in passes.values()):
        return advice
    if fewer := _fewer(passes, state.passes, "forward pass{es}"):
        return f". {fewer}: with fewer batches on some ranks, use drop_last=True, or DDP's join()."
    return "."


def _why_no_gradients(
    state: RankStatus, gone: Sequence[int], states: Mapping[int, RankStatus]
) -> str:
    """The end of a sentence about a backward pass of DDP: why ranks that have finished send no
    gradients.
    """
    advice = ": does the loss of every rank use every parameter?"
    if any(states[rank].passes != state.passes for rank in gone):
        return _why_by_passes(state, gone, states, advice)
    backward = {rank: states[rank].backward_passes for rank in gone}
    if fewer := _fewer(backward, state.backward_passes, "backward pass{es}"):
        return (
            f". {fewer}: all ranks must skip the same ones, so let them agree with an all_reduce."
        )
    averaging = {rank: states[rank].averaging_passes for rank in gone}
    if fewer := _fewer(averaging, state.averaging_passes, "forward pass{es} outside of no_sync()"):
        return f". {fewer}: every rank must enter no_sync() in the same steps."
    if why := _call_of_a_hook(state, states):
        return f": {why}."
    return advice


def _call_of_a_hook(state: RankStatus, states: Mapping[int, RankStatus]) -> str:
    """The newest collective of a rank in a backward pass that others have not called, as from a
    hook; "" for none.
    """
    newest = {call.group: call for call in state.history}  # in each group they are in their order
    for call in newest.values():
        if why := why_unmatched(state.rank, call, states):
            return f"{with_line(call)}, {why}"
    return ""


def _fewer(counts: Mapping[int, int], own: int, what: str) -> str:
    """Which ranks have made fewer passes than the one that waits, in words; "" where none has.

    Args:
        counts: of the others, by rank.
        own: of the one that waits.
        what: the passes, with {es} where their number is.
    """
    fewer = grouped((count, rank) for rank, count in counts.items() if count < own)
    if not fewer:
        return ""
    made = []
    for count, ranks in fewer.items():
        have = "have" if len(ranks) > 1 else "has"
        made.append(
            f"{rank_list(ranks)} {have} made {count} {what.format(es='' if count == 1 else 'es')}"
        )
    words = ", ".join([*made, f"and this one is number {own}"])
    return words[0].upper() + words[1:]


def _circle(needs: Mapping[int, Need], states: Mapping[int, RankStatus]) -> str:
    unfinished, everyone = len(needs), len(states)
    first = (
        f"{unfinished} of {everyone} ranks wait for each other"
        if unfinished > 1
        else "The rank waits for itself"
    )
    rule = ""
    calls = {rank: states[rank].call for rank in sorted(needs)}
    kinds = {(call.kind, call.is_send) for call in calls.values()}
    if kinds == {(messages.MESSAGE, False)}:
        return f"{first}; nobody will send."
    if kinds == {(messages.MESSAGE, True)}:
        return f"{first}; nobody will receive, and a send waits for its receiver."
    if kinds == {(messages.COLLECTIVE, False)} and len({call.group for call in calls.values()}) > 1:
        return f"{first}: they call {' and '.join(sorted({call.op for call in calls.values()}))} in different groups."
    if {call.kind for call in calls.values()} == {messages.NEW_GROUP} and not any(
        c.sequence for c in calls.values()
    ):
        rule = " Every rank must make the groups that it shares with others in the same order."
    means = {
        r: call.function if call.kind == messages.WAITING else f"in {call.op}"
        for r, call in calls.items()
    }
    links = [
        f"rank {rank} {means[rank]} for {rank_list(needs[rank].ranks)}" for rank in list(calls)[:4]
    ]
    return f"{first}: {', '.join(links)}{', and so on' if unfinished > 4 else ''}.{rule}"
