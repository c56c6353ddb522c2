"""Who waits for whom, in words, and what ranks do as a table and beside the lines of the cell: pure functions.

Runs on the notebook's kernel, called by cell.py, ranks.py and display.py.
"""

from __future__ import annotations

import html
import linecache
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from distlab.diagnosis.failures import with_text
from distlab.diagnosis.matching import tensor_words
from distlab.diagnosis.proof import Need, need, serving
from distlab.text import grouped, rank_list
from distlab.wire import messages
from distlab.wire.messages import CallRecord, Line, RankStatus

CONTEXT_LINES = 2  # of source around a line where a rank is
MOST_SENTENCES = 4
WITHOUT_CALL = {  # what a rank does that is in no call
    messages.IDLE: "finished",
    messages.COMPUTING: "computes",
    messages.BETWEEN: "has not begun, or its answer is on its way",
    messages.SILENT: "does not answer: it is stopped, or compiled code holds Python's lock",
}


@dataclass(frozen=True)
class MarkedLine:
    """A line of source: its number (0 for a gap), its text, and what the ranks do there as (ranks, words)."""

    number: int
    text: str
    notes: list[tuple[list[int], str]]


def headline(needs: Mapping[int, Need], states: Mapping[int, RankStatus], targets: Sequence[int] | None = None) -> str:
    """Why nobody can go on, in one to three sentences.

    Args:
        targets: the ranks that run the cell; None for all.
    """
    clashes = list(dict.fromkeys(n.clash for _, n in sorted(needs.items()) if n.clash))
    if clashes:
        return " ".join(clashes[:2])
    if any(states[r].call.kind == messages.REMOTE for r in needs):
        return _remote(needs, states, targets)
    tags = [_wrong_tag(states[r], states) for r in sorted(needs)]
    if any(tags):
        return " ".join([*filter(None, tags)][:2])
    finished = {rank: [o for o in need.ranks if states[o].doing == messages.IDLE] for rank, need in needs.items()}
    if not any(finished.values()):
        return _circle(needs, states)
    alike = grouped((_complaint(states[rank], gone, states, targets), rank) for rank, gone in finished.items() if gone)
    sentences = []
    for words, ranks in list(alike.items())[:3]:
        words = words.replace("s ", " ", 1) if len(ranks) > 1 else words  # they wait, or send
        sentences.append(f"{rank_list(ranks).capitalize()} {words}")
    return " ".join(sentences)


def _remote(needs: Mapping[int, Need], states: Mapping[int, RankStatus], targets: Sequence[int] | None) -> str:
    """Why remote calls never end: which call waits for which rank, and what that waits for where it serves the call."""
    waiting = [("", state) for rank, state in sorted(states.items()) if rank in needs]
    for _, state in sorted(states.items()):
        for one, handler in zip(state.serving, serving(state), strict=True):
            waiting.append((f", in {one.function}(...) for rank {one.caller},", handler))
    found, served = [], Counter((s.rank, one.caller, one.function) for s in states.values() for one in s.serving)
    for within, state in waiting:
        call = state.call
        if call.kind == messages.REMOTE:
            callees = [states[callee] for callee in call.members if callee in states]
            why = "".join(_unserved(states[state.rank], call, callee, served) for callee in callees)
            rest = f"waits for {_callee(call)}{why}."
        else:
            others = need(state, states).ranks
            gone = [other for other in others if states[other].doing == messages.IDLE]
            rest = f"waits in {call_words(call)}{f' for {rank_list(others)}' if others else ''}."
            rest = _complaint(state, gone, states, targets) if gone else rest
        found.append(((within, rest), state.rank))
    sentences = []
    for (within, rest), calls in grouped(found).items():
        ranks = sorted(set(calls))
        within = within.replace(", in ", f", in {len(calls)} calls of ") if len(calls) > len(ranks) else within
        rest = re.sub("^(wait|send)s ", r"\1 ", rest) if len(ranks) > 1 else rest
        sentences.append(f"{rank_list(ranks).capitalize()}{within} {rest}")
    more = [f"And {len(sentences) - MOST_SENTENCES} more."] if len(sentences) > MOST_SENTENCES else []
    return " ".join([*sentences[:MOST_SENTENCES], *more])


def _callee(call: CallRecord) -> str:
    """What a remote call waits for: "rank 2: add(...)"."""
    what = f": {call.function}(...)" if call.function else f", in {call.op}"
    return f"{rank_list(call.members)}{what}"


def _unserved(caller: RankStatus, call: CallRecord, callee: RankStatus, served: Counter[tuple[int, int, str]]) -> str:
    """Why a callee does not answer, where it does not serve the call; "" where it does.

    Args:
        served: how many calls of a callee, caller and function are served and have no caller yet; one is taken out.
    """
    served[callee.rank, caller.rank, call.function] -= 1
    if served[callee.rank, caller.rank, call.function] >= 0:
        return ""
    if not callee.serves:
        return f", but rank {callee.rank} has no RPC agent any more"
    if len(callee.serving) >= callee.threads > 0:
        return f", but {_threads(callee.threads, f'of rank {callee.rank} that ')}"
    if len(caller.serving) >= caller.threads > 0:  # C++ takes an answer in on one of these, too
        return f", whose answer cannot come in, because {_threads(caller.threads, f'of rank {caller.rank} that ')}"
    return ", which has returned a Future that nobody completes" if call.function else ""


def _threads(count: int, whose: str) -> str:
    """A pool of threads that is full: "all 2 threads of rank 1 that serve calls wait"."""
    return f"the one thread {whose}serves calls waits" if count == 1 else f"all {count} threads {whose}serve calls wait"


def _wrong_tag(state: RankStatus, states: Mapping[int, RankStatus]) -> str:
    """What to say of a send whose receiver waits for another tag; "" of anything else."""
    sent = state.call
    got = states[sent.peer].call if sent.is_send and sent.peer in states else None
    if got is None or got.kind != messages.MESSAGE or got.is_send or got.peer not in (state.rank, None):
        return ""
    if got.group != sent.group or got.tag == sent.tag:
        return ""
    return f"Rank {state.rank} sends with tag {sent.tag}, but rank {sent.peer} waits for tag {got.tag}."


def _complaint(
    state: RankStatus, gone: list[int], states: Mapping[int, RankStatus], targets: Sequence[int] | None
) -> str:
    """What a rank waits for that cannot come, after its name."""
    call, who = state.call, rank_list(gone)
    if targets is not None and not set(gone) & set(targets):
        verb = "does" if len(gone) == 1 else "do"
        finished, without = f"{who}, which {verb} not run this cell", ""
    else:
        finished, without = f"{who}, which {'has' if len(gone) == 1 else 'have'} finished", " without calling it"
    if call.kind == messages.MESSAGE:
        without = without and (" without receiving it" if call.is_send else " without sending it")
        return f"{'sends a message to' if call.is_send else 'waits for a message from'} {finished}{without}."
    if call.kind == messages.WAITING:
        return f"waits {call.function} for {finished}."
    if call.op == "new_group":
        callers = "every rank" if call.sequence else "every member of the group"
        return f"waits in new_group, which {callers} must call, for {finished}{without}."
    if call.op == "backward":
        return f"waits in backward() for gradients of {finished}: does the loss of every rank use every parameter?"
    again = " once more" if without and any(_called_before(call, states[r]) for r in gone) else ""
    return f"waits in {call.op} for {finished}{without}{again}."


def _called_before(call: CallRecord, state: RankStatus) -> bool:
    """Whether a rank has come to the same collective of the group in the same line before, as in a loop."""
    return any((old.group, old.op, old.place) == (call.group, call.op, call.place) for old in state.history)


def _circle(needs: Mapping[int, Need], states: Mapping[int, RankStatus]) -> str:
    unfinished, everyone = len(needs), len(states)
    first = f"{unfinished} of {everyone} ranks wait for each other" if unfinished > 1 else "The rank waits for itself"
    calls = [states[r].call for r in needs]
    if all(call.kind == messages.MESSAGE for call in calls):
        if not any(call.is_send for call in calls):
            return f"{first}; nobody will send."
        if all(call.is_send for call in calls):
            return f"{first}; nobody will receive, and a send waits for its receiver."
    if all(call.kind == messages.COLLECTIVE for call in calls) and len({call.group for call in calls}) > 1:
        return f"{first}: they call {' and '.join(sorted({call.op for call in calls}))} in different groups."
    links = [f"{rank_list([r])} {_means(states[r].call)} for {rank_list(needs[r].ranks)}" for r in sorted(needs)[:4]]
    return f"{first}: {', '.join(links)}{', and so on' if unfinished > 4 else ''}."


def _means(call: CallRecord) -> str:
    """In what, or by what means, a rank waits."""
    return call.function if call.kind == messages.WAITING else f"in {call.op}"


def call_words(call: CallRecord) -> str:
    """A call as the learner would write it, with what matters only: "recv(src=1, tag=3)", "all_reduce(op=MAX)"."""
    given = [call.function] if call.function else []
    if call.kind == messages.REMOTE:
        return f"waiting for {_callee(call)}"
    if call.kind == messages.WAITING:
        return f"waits {call.function} for {rank_list(call.members)}"
    if call.kind == messages.MESSAGE:
        peer = "any" if call.peer is None else call.peer
        given.append(f"{'dst' if call.is_send else 'src'}={peer}")
        if call.tag:
            given.append(f"tag={call.tag}")
    if call.root is not None:
        given.append(f"{'dst' if call.collective in ('reduce', 'gather') else 'src'}={call.root}")
    if call.reduce_op not in ("", "SUM"):
        given.append(f"op={call.reduce_op}")
    if call.group not in ("0", ""):
        given.append(f"group of {rank_list(call.members)}")
    return f"{call.op}({', '.join(given)})"


def rows(states: Mapping[int, RankStatus]) -> list[tuple[list[int], str, str, Line | None]]:
    """What the ranks do as rows of ranks that do the same: (ranks, call or activity, tensors, line)."""
    alike = grouped((row, rank) for rank, state in sorted(states.items()) for row in (_row(state), *_served(state)))
    return [(ranks, *row) for row, ranks in alike.items()]


def _served(state: RankStatus) -> list[tuple[str, str, Line | None]]:
    """What one rank does for others, by their remote calls, in the form of `_row`."""
    found = []
    for one, handler in zip(state.serving, serving(state), strict=True):
        handler = handler if one.call else replace(handler, doing=messages.COMPUTING)
        found.append(((one, _row(handler)), handler))
    rows = []
    for (one, (what, tensors, line)), alike in grouped(found).items():
        times = f"{len(alike)} calls of " if len(alike) > 1 else ""
        rows.append((f"serves rank {one.caller}, {times}{one.function}(...): {what}", tensors, line))
    return rows


def _row(state: RankStatus) -> tuple[str, str, Line | None]:
    """What one rank does: call or activity, tensors, line."""
    call, line = state.call, with_text(state.lines[-1]) if state.lines else None
    if call is None:  # the lines of an idle rank mean nothing
        if state.doing == messages.IDLE and state.serves:
            return "finished, and serves remote calls", "", None
        return WITHOUT_CALL[state.doing], "", line if state.doing == messages.COMPUTING else None
    begun = with_text(call.lines[-1]) if call.lines else line
    posted = f" of line {begun.number}" if line and begun != line else ""  # and waited for in another one
    return f"{call_words(call)}{posted}", tensor_words(call), line


def table(states: Mapping[int, RankStatus]) -> str:
    """`rows` as text, in columns."""
    cells = []
    for ranks, what, tensors, line in rows(states):
        where = f"line {line.number}{f' in {line.place}' if line.place else ''}" if line else ""
        cells.append((rank_list(ranks), what, tensors, where, line.text if line else ""))
    widths = [max(len(row[i]) for row in cells) for i in range(5)]
    columns = [i for i in range(5) if widths[i]]
    return "\n".join("  " + "  ".join(f"{row[i]:<{widths[i]}}" for i in columns).rstrip() for row in cells)


def late(ranks: Sequence[int], timeout: float | None) -> str:
    """The first sentence for ranks that were interrupted, by the clock or by a person (timeout None)."""
    who = rank_list(ranks) if ranks else "no rank"
    return f"{who} did not come back within {timeout:g} s." if timeout else f"{who.capitalize()} had not ended."


def outcome(seconds: float, busy: Sequence[int], replaced: Mapping[int, str], gone: str, n: int) -> str:
    """What was done about the ranks, and what to do now.

    Args:
        seconds: from the start of the cell until its ranks were free.
        busy: ranks that could not be freed.
        replaced: what was lost with ranks that could not be freed.
        gone: what went with the old group, in sentences.
        n: number of ranks in the cluster.
    """
    if busy:
        return f"{rank_list(busy).capitalize()} could not be freed: call cluster.restart()."
    kept = "Variables are kept and the process group is rebuilt: change the cell and run it again."
    if replaced:
        kept = "The other ranks keep their variables, and the " if len(replaced) < n else "The "
        kept += "process group is rebuilt."
    ended = [f"Rank {r} could not be freed: a new process took its place, {what}." for r, what in replaced.items()]
    return " ".join([f"Freed after {seconds:.1f} s.", *ended, kept, gone]).rstrip()


def activity(state: RankStatus) -> str:
    """What one rank does now: "idle", "computes, line 4", "recv(src=1), line 3"."""
    if state.doing == messages.IDLE and state.serving:
        return _served(state)[0][0]
    if state.doing == messages.IDLE:
        return "serves remote calls" if state.serves else "idle"
    what, _, line = _row(state)
    return f"{what}, line {line.number}" if line else what


def brief(states: Mapping[int, RankStatus]) -> str:
    """`rows` in one line, for a person who waits: "rank 2 computes (line 4), ranks 0-1: all_reduce() (line 6)"."""
    words = []
    for ranks, what, _, line in rows(states)[:4]:
        where = f" (line {line.number})" if line else ""
        words.append(f"{rank_list(ranks)}: {what}{where}")
    return ", ".join(words)


def marked_source(states: Mapping[int, RankStatus], cell: str) -> list[MarkedLine]:
    """The source lines where the ranks are, with some around them; a gap is a line without a number.

    Args:
        cell: the %%px cell's text, its first line the magic's; "" when the code is a function.
    """
    marked: list[MarkedLine] = []
    for file in sorted({s.lines[-1].file for s in states.values() if s.lines}):
        here = {r: s for r, s in states.items() if s.lines and s.lines[-1].file == file}
        source = linecache.getlines(file) if file else cell.splitlines()
        places = grouped((_line_in(source, s.lines[-1:] if file else s.lines), r) for r, s in here.items())
        places.pop(0, None)
        activities = {at: rows({r: here[r] for r in ranks}) for at, ranks in places.items()}
        notes = {at: [(row[0], f"{row[1]} {row[2]}".rstrip()) for row in there] for at, there in activities.items()}
        near = {n for at in notes for n in range(at - CONTEXT_LINES, at + CONTEXT_LINES + 1)}
        shown = {n for n in near if 1 <= n <= len(source) and (source[n - 1].strip() or {n - 1, n + 1} <= near)}
        for number in sorted(shown):
            if marked and number - 1 not in shown:
                marked.append(MarkedLine(0, "...", []))
            marked.append(MarkedLine(number, source[number - 1].rstrip(), notes.get(number, [])))
    return marked


def _line_in(source: Sequence[str], lines: Sequence[Line]) -> int:
    """The number of the innermost line that is one of this source; 0 for none: a function may be of another cell."""
    shown = [*map(with_text, lines)]
    found = [s.number for s in shown if 1 <= s.number <= len(source) and source[s.number - 1].strip() == s.text]
    return found[-1] if found else 0


def source_text(marked: Sequence[MarkedLine]) -> str:
    """`marked_source` as text: an arrow and the ranks at the lines where they are."""
    width = max(len(line.text) for line in marked)
    texts = []
    for line in marked:
        notes = "; ".join(f"{rank_list(ranks)}: {what}" for ranks, what in line.notes)
        head = f"{'>' if notes else ' '} {line.number or '':>3}  "
        texts.append(f"{head}{line.text:<{width}}   {notes}".rstrip() if notes else f"{head}{line.text}".rstrip())
    return "\n".join(texts)


def source_html(marked: Sequence[MarkedLine], chips: Callable[[Sequence[int]], str]) -> str:
    """`marked_source` as HTML: a coloured edge and the ranks at the lines where they are.

    Args:
        marked: the lines.
        chips: gives the ranks' colours as HTML.
    """
    body = []
    for line in marked:
        notes = "; ".join(f"{chips(ranks)}{html.escape(f'{rank_list(ranks)}: {what}')}" for ranks, what in line.notes)
        color = "#d55e00;background:rgba(213,94,0,0.12)" if notes else "transparent"
        text = f"{line.number or '':>4}  {html.escape(line.text)}   {notes}".rstrip()
        body.append(f'<div style="border-left:3px solid {color}">{text}</div>')
    return f'<pre style="margin:4px 0;background:transparent;white-space:pre-wrap">{"".join(body)}</pre>'
