"""What ranks are doing, in words and as a table, and operations that nobody waits for.

No process is asked; lines of files are read. Runs on the notebook's kernel, called by cell.py,
failed_cell.py, unmatched.py, live.py and questions.py, and by meanwhile.py, marks.py, stuck.py and
ddp_passes.py beside it.
"""

from collections.abc import Sequence
from typing import NamedTuple

from distlab.diagnosis.lines import position_words, with_text
from distlab.diagnosis.matching import tensor_words
from distlab.diagnosis.proof import why_unmatched
from distlab.wire import messages
from distlab.wire.messages import CallRecord, RankStatus, States
from distlab.wire.source import Line
from distlab.words import grouped, rank_list

WITHOUT_CALL = {  # what a rank does outside of calls
    messages.IDLE: "finished",
    messages.COMPUTING: "computing",
    messages.COMMUNICATING: "waiting in communication",
    messages.BETWEEN: "has not begun, or its reply is pending",
    messages.SILENT: "does not answer: it is stopped, or compiled code holds Python's lock",
    messages.OUTSIDE: "not in a call",
    messages.UNKNOWN: "not known",
}
MOST_ROWS_IN_BRIEF = 4  # in one line
ROOT_RECEIVES = ("reduce", "gather")  # so that the function calls its root dst


# --- a call in words ---


def call_words(call: CallRecord) -> str:
    """A call as the learner would write it, with what matters only: "recv(src=1, tag=3)"."""
    if call.kind == messages.REMOTE:
        return f"waiting for {callee_words(call)}"
    if call.kind == messages.WAITING:
        whom = rank_list(call.members) if call.members else ""
        return f"waits {own_wait_words(call, whom)}".rstrip()
    if call.kind == messages.OWN_WORLD:
        return f"{call.op}()"
    given = []
    if call.function:
        given.append(call.function)
    if call.kind == messages.MESSAGE:
        given += _arguments_of_message(call)
    if call.root is not None:
        end = "dst" if call.collective in ROOT_RECEIVES else "src"
        given.append(f"{end}={call.root}")
    if call.reduce_op not in ("", "SUM"):
        given.append(f"op={call.reduce_op}")
    if call.group and not call.members:
        given.append("in a group that was destroyed")
    elif call.group not in ("0", ""):
        given.append(f"group of {rank_list(call.members)}")
    return f"{call.op}({', '.join(given)})"


def _arguments_of_message(call: CallRecord) -> list[str]:
    """The arguments of a send or recv that matter."""
    end = "dst" if call.is_send else "src"
    peer = "any" if call.peer is None else call.peer
    given = [f"{end}={peer}"]
    if call.tag:
        given.append(f"tag={call.tag}")
    return given


def own_wait_words(call: CallRecord, whom: str) -> str:
    """How a wait of a backend's or a learner's own waits: "through a file for rank 1".

    Args:
        call: the wait; its words may be "".
        whom: for whom it waits, in words; "" if that is not known.
    """
    words = []
    if call.function:
        words.append(call.function)
    if whom:
        words.append(f"for {whom}")
    return " ".join(words)


def callee_words(call: CallRecord) -> str:
    """What a remote call waits for: "rank 2: add(...)"."""
    if call.members and call.function:
        return f"{rank_list(call.members)}: {call.function}(...)"
    if call.members:
        return f"{rank_list(call.members)}, in {call.op}"
    if call.function:
        return f"{call.function}(...)"
    return f"an answer, in {call.op}"


def with_line(call: CallRecord) -> str:
    """A call with its line: "all_reduce(), line 4"."""
    if not call.lines:
        return call_words(call)
    return f"{call_words(call)}, {call.lines[-1].position}"


# --- what ranks are doing ---


class Activity(NamedTuple):
    """What one rank, or one of its threads, is doing.

    Attributes:
        what: its call, or what it does outside of calls.
        tensors: those of the call, or "".
        line: where it is, if that is known and means something.
    """

    what: str
    tensors: str
    line: Line | None


class Row(NamedTuple):
    """What several ranks are doing alike.

    Attributes:
        ranks: the ranks.
        what, tensors, line: as those of Activity.
    """

    ranks: list[int]
    what: str
    tensors: str
    line: Line | None


def rows(states: States) -> list[Row]:
    """What the ranks are doing, with one row for all ranks that do the same."""
    activities = []
    for rank in sorted(states):
        for found in dict.fromkeys(_activities(states[rank])):  # each once for a rank
            activities.append((found, rank))
    found_rows = []
    for found, ranks in grouped(activities).items():
        found_rows.append(Row(ranks, found.what, found.tensors, found.line))
    return found_rows


def _activities(state: RankStatus) -> list[Activity]:
    """What one rank is doing itself, in other threads, and in each remote call that it serves."""
    found = [_own_activity(state)]
    for thread in state.other_threads:
        what, tensors, line = _own_activity(thread)
        found.append(Activity(f"{what} in another thread", tensors, line))
    for thread in state.serving:
        what, tensors, line = _own_activity(thread)
        serving = f"serving rank {thread.caller}, {thread.function}(...)"
        found.append(Activity(f"{serving}: {what}", tensors, line))
    return found


def _own_activity(state: RankStatus) -> Activity:
    """What the thread of a status is doing."""
    line = None
    if state.lines:
        line = with_text(state.lines[-1])
    call = state.call
    if call is not None:
        return Activity(f"{call_words(call)}{_begun_at(call, line)}", tensor_words(call), line)
    if state.doing == messages.IDLE and state.threads:
        return Activity("finished, serving remote calls", "", None)
    if state.doing not in (messages.COMPUTING, messages.COMMUNICATING, messages.OUTSIDE):
        line = None  # the lines of a rank that is idle or does not answer mean nothing
    return Activity(_without_call(state), "", line)


def _begun_at(call: CallRecord, line: Line | None) -> str:
    """The line of a call that is waited for in another line: " of line 3"; "" otherwise."""
    if line is None or not call.lines:
        return ""
    begun = with_text(call.lines[-1])
    if begun == line:
        return ""
    return f" of {begun.position}"


def _without_call(state: RankStatus) -> str:
    """What a rank does outside of calls."""
    if state.paused:
        return "at a breakpoint"
    if state.sleeping:
        return "sleeping"
    if state.awaiting and state.doing == messages.COMPUTING:
        return "awaiting"
    return WITHOUT_CALL[state.doing]


def table(states: States) -> str:
    """`rows` as text, in columns."""
    cells = []
    for row in rows(states):
        position = ""
        text = ""
        if row.line is not None:
            position = position_words(row.line)
            text = row.line.text
        cells.append((rank_list(row.ranks), row.what, row.tensors, position, text))
    columns = []
    for column in zip(*cells, strict=True):
        if any(column):
            columns.append(_padded(column))
    lines = []
    for padded in zip(*columns, strict=True):
        lines.append("  " + "  ".join(padded).rstrip())
    return "\n".join(lines)


def _padded(column: Sequence[str]) -> list[str]:
    """The cells of a column, all as wide as the widest."""
    width = max(map(len, column))
    return [cell.ljust(width) for cell in column]


def activity(state: RankStatus) -> str:
    """What one rank is doing: "idle", "computing, line 4", "recv(src=1), line 3"."""
    own, *of_threads = _activities(state)
    shown = own
    if state.doing == messages.IDLE:
        if not state.serving:
            return "serving remote calls" if state.threads else "idle"
        shown = of_threads[0]
    if shown.line is None:
        return shown.what
    return f"{shown.what}, {shown.line.position}"


def brief(states: States) -> str:
    """`rows` in one line, for a person who waits: "rank 2: computing (line 4), rank 1: ...".

    Only the first MOST_ROWS_IN_BRIEF are in it.
    """
    parts = []
    for row in rows(states)[:MOST_ROWS_IN_BRIEF]:
        words = f"{rank_list(row.ranks)}: {row.what}"
        if row.line is not None:
            words += f" ({row.line.position})"
        parts.append(words)
    return ", ".join(parts)


# --- operations that were begun and not waited for ---


def unmatched_operations(states: States) -> list[str]:
    """A line for each operation that no rank waits for and that the other side has not begun.

    Where nobody knows which message a recv from any source took, a line says "perhaps". Nothing is
    known about a rank that does not answer, for example on a busy machine, or that computes, and
    sends no history then: it may have begun any of them.
    """
    for state in states.values():
        if state.doing in (messages.SILENT, messages.COMPUTING):
            return []
    lines = []
    for rank, state in states.items():
        for call in state.abandoned:
            why = why_unmatched(rank, call, states)
            if why:
                lines.append(f"  {_of_rank(rank, call)}, {why}")
    return lines


def words_of_unmatched(lines: Sequence[str], stays: bool, gone: str) -> str:
    """What to show of operations that no rank waits for.

    Args:
        lines: as `unmatched_operations` gives them.
        stays: whether the process group stays; if not, it is rebuilt.
        gone: what was lost with the old group, in sentences.
    """
    if stays:
        done = "A call in the next cell may match them: cluster.heal() builds a new group."
    else:
        done = "The process group is rebuilt, so the next cell starts without them."
        done = f"{done} {gone}".rstrip()
    return "\n".join(["This cell started operations and did not wait for them:", *lines, done])


def begun_earlier(states: States) -> list[str]:
    """A line for each operation of an earlier cell whose Work still exists.

    It may have matched a call of this cell.
    """
    words = "of an earlier cell, was not waited for, and may have matched a call of this one"
    lines: list[str] = []
    for rank, state in states.items():
        for call in state.pending:
            line = f"  {_of_rank(rank, call)}, {words}"
            if line not in lines:
                lines.append(line)
    return lines


def _of_rank(rank: int, call: CallRecord) -> str:
    """An operation with its rank and line."""
    return f"rank {rank}: {with_line(call)}"
