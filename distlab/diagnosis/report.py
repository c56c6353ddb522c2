"""What ranks are doing, in words and as a table, and operations that nobody waits for.

Pure functions. Runs on the notebook's kernel, called by cell.py, ranks.py, display.py, meanwhile.py and marks.py.
"""

from collections.abc import Mapping, Sequence

from distlab.diagnosis.failures import with_text
from distlab.diagnosis.matching import tensor_words
from distlab.diagnosis.proof import why_unmatched
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


def callee_words(call: CallRecord) -> str:
    """What a remote call waits for: "rank 2: add(...)"."""
    what = f"{call.function}(...)" if call.function else ""
    if not call.members:
        return what or f"an answer, in {call.op}"
    return (
        f"{rank_list(call.members)}: {what}" if what else f"{rank_list(call.members)}, in {call.op}"
    )


def call_words(call: CallRecord) -> str:
    """A call as the learner would write it, with what matters only: "recv(src=1, tag=3)",
    "all_reduce(op=MAX)".
    """
    given = [call.function] if call.function else []
    if call.kind == messages.REMOTE:
        return f"waiting for {callee_words(call)}"
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
    return f"rank {rank}: {with_line(call)}"


def with_line(call: CallRecord) -> str:
    return call_words(call) + (f", {call.lines[-1].position}" if call.lines else "")
