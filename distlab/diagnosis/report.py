"""Who waits for whom, in words, and what ranks are doing, as a table: pure functions.

Runs on the notebook's kernel, called by cell.py, ranks.py, display.py, meanwhile.py and marks.py.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

from distlab.diagnosis.failures import with_text
from distlab.diagnosis.matching import tensor_words
from distlab.diagnosis.needs import Need
from distlab.diagnosis.proof import need, why_unmatched
from distlab.wire import messages
from distlab.wire.messages import CallRecord, RankStatus
from distlab.wire.source import Line
from distlab.words import grouped, rank_list

WITHOUT_CALL = {  # what a rank does outside of calls
    messages.IDLE: "finished",
    messages.COMPUTING: "computing",
    messages.COMMUNICATING: "waiting in communication",
    messages.BETWEEN: "has not begun, or its reply is pending",
    messages.SILENT: "does not answer: it is stopped, or compiled code holds Python's lock",
}


def headline(
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
            words = f"waits for {_callee(call)}{why}."
        else:
            others = need(state, states).ranks
            words = f"waits in {call_words(call)}{f' for {rank_list(others)}' if others else ''}."
        found.append(((within, words), state.rank))
    sentences = [
        _sentence(sorted(set(ranks)), words, within)
        for (within, words), ranks in grouped(found).items()
    ]
    return " ".join(sentences[:4])


def _callee(call: CallRecord) -> str:
    """What a remote call waits for: "rank 2: add(...)"."""
    what = f"{call.function}(...)" if call.function else ""
    if not call.members:
        return what or f"an answer, in {call.op}"
    return (
        f"{rank_list(call.members)}: {what}" if what else f"{rank_list(call.members)}, in {call.op}"
    )


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
            return f"{_with_line(call)}, {why}"
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


def call_words(call: CallRecord) -> str:
    """A call as the learner would write it, with what matters only: "recv(src=1, tag=3)",
    "all_reduce(op=MAX)".
    """
    given = [call.function] if call.function else []
    if call.kind == messages.REMOTE:
        return f"waiting for {_callee(call)}"
    if call.kind == messages.WAITING:
        whom = f"for {rank_list(call.members)}" if call.members else ""
        return " ".join(filter(None, ["waits", call.function, whom]))
    if call.kind == messages.MESSAGE:
        peer = "any" if call.peer is None else call.peer
        given.append(f"{'dst' if call.is_send else 'src'}={peer}")
        if call.tag:
            given.append(f"tag={call.tag}")
    if call.root is not None:
        given.append(f"{'dst' if call.collective in ('reduce', 'gather') else 'src'}={call.root}")
    if call.reduce_op not in ("", "SUM"):
        given.append(f"op={call.reduce_op}")
    if call.group and not call.members:
        given.append("in a group that was destroyed")
    elif call.group not in ("0", ""):
        given.append(f"group of {rank_list(call.members)}")
    return f"{call.op}({', '.join(given)})"


def rows(states: Mapping[int, RankStatus]) -> list[tuple[list[int], str, str, Line | None]]:
    """What the ranks are doing, a row for those that do the same: (ranks, call or activity,
    tensors, line).
    """
    alike = grouped(
        (row, rank) for rank, state in sorted(states.items()) for row in dict.fromkeys(_does(state))
    )
    return [(ranks, *row) for row, ranks in alike.items()]


def _does(state: RankStatus) -> list[tuple[str, str, Line | None]]:
    """What one rank is doing, itself and in each remote call that it serves: call or activity,
    tensors, line.
    """
    call, line = state.call, with_text(state.lines[-1]) if state.lines else None
    if call is not None:
        begun = with_text(call.lines[-1]) if call.lines else line
        # and it is waited for in another one
        posted = f" of {begun.position}" if line and begun != line else ""
        found = [(f"{call_words(call)}{posted}", tensor_words(call), line)]
    elif state.doing == messages.IDLE and state.threads:
        found = [("finished, serving remote calls", "", None)]
    else:  # the lines of an idle rank mean nothing
        found = [
            (
                _without_call(state),
                "",
                line if state.doing in (messages.COMPUTING, messages.COMMUNICATING) else None,
            )
        ]
    for one in state.other_threads:
        what, tensors, line = _does(one)[0]
        found.append((f"{what} in another thread", tensors, line))
    for one in state.serving:
        what, tensors, line = _does(one)[0]
        found.append((f"serving rank {one.caller}, {one.function}(...): {what}", tensors, line))
    return found


def _without_call(state: RankStatus) -> str:
    """What a rank does outside of calls."""
    if state.paused:
        return "at a breakpoint"
    if state.sleeping:
        return "sleeping"
    if state.awaiting and state.doing == messages.COMPUTING:
        return "awaiting"
    return WITHOUT_CALL[state.doing]


def table(states: Mapping[int, RankStatus]) -> str:
    """`rows` as text, in columns."""
    cells = []
    for ranks, what, tensors, line in rows(states):
        where = f"{line.position}{f' in {line.place}' if line.place else ''}" if line else ""
        cells.append((rank_list(ranks), what, tensors, where, line.text if line else ""))
    widths = [max(len(row[i]) for row in cells) for i in range(5)]
    columns = [i for i in range(5) if widths[i]]
    return "\n".join(
        "  " + "  ".join(f"{row[i]:<{widths[i]}}" for i in columns).rstrip() for row in cells
    )


def activity(state: RankStatus) -> str:
    """What one rank is doing: "idle", "computing, line 4", "recv(src=1), line 3"."""
    if state.doing == messages.IDLE and not state.serving:
        return "serving remote calls" if state.threads else "idle"
    what, _, line = _does(state)[1 if state.doing == messages.IDLE else 0]
    return f"{what}, {line.position}" if line else what


def brief(states: Mapping[int, RankStatus]) -> str:
    """`rows` in one line, for a person who waits: "rank 2: computing (line 4), ranks 0-1:
    all_reduce() (line 6)".
    """
    some = [(f"{rank_list(ranks)}: {what}", line) for ranks, what, _, line in rows(states)[:4]]
    return ", ".join(f"{words} ({line.position})" if line else words for words, line in some)


# --- operations that were begun and not waited for ---


def left(states: Mapping[int, RankStatus]) -> list[str]:
    """A line for each operation that no rank waits for and that the other side has not begun.

    Nothing is known about a rank that does not answer, for example on a busy machine, or that
    computes, and sends no history then: it may have begun any of them.
    """
    if any(state.doing in (messages.SILENT, messages.COMPUTING) for state in states.values()):
        return []
    calls = [(rank, call) for rank, state in states.items() for call in state.abandoned]
    return [
        f"  {_what(rank, call)}, {why}"
        for rank, call in calls
        if (why := why_unmatched(rank, call, states))
    ]


def words_of_left(lines: Sequence[str], stays: bool, gone: str) -> str:
    """What to show of `left`, where the old group stays or is rebuilt; `gone`: what was lost with
    it, in sentences.
    """
    done = f"The process group is rebuilt, so the next cell starts without them. {gone}".rstrip()
    if stays:
        done = "A call in the next cell may match them: cluster.heal() builds a new group."
    return "\n".join(["This cell started operations and did not wait for them:", *lines, done])


def begun_earlier(states: Mapping[int, RankStatus]) -> list[str]:
    """A line for each operation of an earlier cell whose Work still exists: it may have matched a
    call of this one.
    """
    found = dict.fromkeys(
        _what(rank, call) for rank, state in states.items() for call in state.pending
    )
    words = "of an earlier cell, was not waited for, and may have matched a call of this one"
    return [f"  {what}, {words}" for what in found]


def _what(rank: int, call: CallRecord) -> str:
    """An operation with its rank and line."""
    return f"rank {rank}: {_with_line(call)}"


def _with_line(call: CallRecord) -> str:
    return call_words(call) + (f", {call.lines[-1].position}" if call.lines else "")
