"""What the ranks of a cell that did not come back were doing, in words and as a picture of the cell's lines.

Called by cell.py and live.py in the notebook's kernel; pure functions over deadlock.State.
"""

from __future__ import annotations

import html
import linecache
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any

from distlab.agreement import tensor_words
from distlab.deadlock import BETWEEN, COMPUTING, IDLE, Need, State
from distlab.diagnosis import GROUPS_GONE, line_from
from distlab.errors import Line, rank_list

CONTEXT_LINES = 2  # of source around a line where a rank is


@dataclass(frozen=True)
class MarkedLine:
    """A line of source: its number (0 for a gap), its text, and what the ranks do there as (ranks, words)."""

    number: int
    text: str
    notes: list[tuple[list[int], str]]


def headline(needs: Mapping[int, Need], states: Mapping[int, State], targets: Sequence[int] | None = None) -> str:
    """Why nobody can go on, in one to three sentences.

    Args:
        targets: the ranks that run the cell; None for all.
    """
    clashes = list(dict.fromkeys(n.clash for _, n in sorted(needs.items()) if n.clash))
    if clashes:
        return " ".join(clashes[:2])
    finished = [r for r, s in states.items() if s.doing == IDLE]
    causes = {r: [o for o in n.ranks if o in finished] for r, n in needs.items()}
    rooted = {r: gone for r, gone in causes.items() if gone}
    if not rooted:
        return _circle(needs, states)
    sentences: dict[tuple[Any, ...], list[int]] = {}
    for rank, gone in rooted.items():
        sentences.setdefault((_complaint(states[rank], gone, states, targets), tuple(gone)), []).append(rank)
    return " ".join(
        f"{_capital(rank_list(ranks))} {(words[1] if len(ranks) > 1 else words[0])}"
        for (words, _), ranks in list(sentences.items())[:3]
    )


def _complaint(
    state: State, gone: list[int], states: Mapping[int, State], targets: Sequence[int] | None
) -> tuple[str, str]:
    """What a rank waits for in vain, for one rank and for several that wait alike."""
    call, who = state.call, rank_list(gone)
    if targets is not None and not set(gone) & set(targets):
        verb = "does" if len(gone) == 1 else "do"
        finished, without = f"{who}, which {verb} not run this cell", ""
    else:
        finished, without = f"{who}, which {'has' if len(gone) == 1 else 'have'} finished", " without calling it"
    if call["kind"] == "message":
        without = without and (" without receiving it" if call["is_send"] else " without sending it")
        message = f"a message {'to' if call['is_send'] else 'from'} {finished}{without}{_hint(state, gone, states)}."
        return (f"sends {message}", f"send {message}") if call["is_send"] else _waits(f"for {message}")
    if call["op"] == "new_group":
        return _waits(f"in new_group, which every rank must call, for {finished}{without}.")
    if call["op"] == "backward":
        return _waits(f"in backward() for gradients of {finished}: does the loss of every rank use every parameter?")
    again = " once more" if without and any(_called_before(call, states[r]) for r in gone) else ""
    return _waits(f"in {call['op']} for {finished}{without}{again}.")


def _waits(words: str) -> tuple[str, str]:
    return f"waits {words}", f"wait {words}"


def _called_before(call: Mapping[str, Any], state: State) -> bool:
    """Whether a rank has come to the same collective of the group in the same line before, as in a loop."""
    same = [old for old in state.history if (old["group"], old["op"]) == (call.get("group"), call["op"])]
    return any(old.get("place") == call.get("place") for old in same)


def _hint(state: State, gone: list[int], states: Mapping[int, State]) -> str:
    """Where a finished rank has the other end of a message with a tag that the waiting rank never used."""
    call = state.call
    tags = {row[3] for r in gone for row in states[r].traffic if _other_end(row, r, state)}
    if not tags:
        return ""
    if call["is_send"]:
        return f" (it receives with tag {min(tags)}, and this has tag {call['tag']})"
    return f" (it sent with tag {min(tags)}, and tag {call['tag']} is waited for)"


def _other_end(row: tuple[Any, ...], owner: int, state: State) -> bool:
    is_send, group, peer, tag, count, _ = row
    if (is_send, group, peer) != (not state.call["is_send"], state.call["group"], state.rank):
        return False
    met = [r[4] for r in state.traffic if (r[0], r[1], r[3]) == (not is_send, group, tag) and r[2] in (owner, None)]
    return tag != state.call["tag"] and sum(met) < count


def _circle(needs: Mapping[int, Need], states: Mapping[int, State]) -> str:
    unfinished, everyone = len(needs), len(states)
    first = f"{unfinished} of {everyone} ranks wait for each other"
    calls = [states[r].call for r in needs]
    if all(call["kind"] == "message" for call in calls):
        if not any(call["is_send"] for call in calls):
            return f"{first}; nobody will send."
        if all(call["is_send"] for call in calls):
            return f"{first}; nobody will receive, and a send waits for its receiver."
    if all(call["kind"] == "collective" for call in calls) and len({call["group"] for call in calls}) > 1:
        return f"{first}: they call {' and '.join(sorted({call['op'] for call in calls}))} in different groups."
    links = [f"{rank_list([r])} in {states[r].call['op']} for {rank_list(needs[r].ranks)}" for r in sorted(needs)[:4]]
    return f"{first}: {', '.join(links)}{', and so on' if unfinished > 4 else ''}."


def call_words(call: Mapping[str, Any]) -> str:
    """A call as the learner would write it, with what matters only: "recv(src=1, tag=3)", "all_reduce(op=MAX)"."""
    given = []
    if call["kind"] == "message":
        peer = "any" if call["peer"] is None else call["peer"]
        given.append(f"{'dst' if call['is_send'] else 'src'}={peer}")
        if call["tag"]:
            given.append(f"tag={call['tag']}")
    if "root" in call:
        given.append(f"{'dst' if call['collective'] in ('reduce', 'gather') else 'src'}={call['root']}")
    if call.get("reduce_op", "SUM") != "SUM":
        given.append(f"op={call['reduce_op']}")
    if call.get("group", "0") not in ("0", ""):
        given.append(f"group of {rank_list(tuple(call['members']))}")
    return f"{call['op']}({', '.join(given)})"


def rows(states: Mapping[int, State]) -> list[tuple[list[int], str, str, Line | None]]:
    """What the ranks do as rows of ranks that do the same: (ranks, call or activity, tensors, line)."""
    folded: dict[tuple[str, str, Line | None], list[int]] = {}
    for rank, state in sorted(states.items()):
        line = state.lines[-1] if state.lines else None
        if state.doing == IDLE:
            key = ("finished", "", None)
        elif state.call:
            key = (f"{call_words(state.call)}{_posted(state)}", tensor_words(state.call), line)
        elif state.doing == BETWEEN:
            key = ("has not begun, or its answer is on its way", "", None)
        elif state.doing == COMPUTING:
            key = ("computes", "", line)
        else:
            key = ("does not answer: it is stopped, or compiled code holds Python's lock", "", None)
        folded.setdefault(key, []).append(rank)
    return [(ranks, *key) for key, ranks in folded.items()]


def _posted(state: State) -> str:
    """Where a call was begun, when the rank waits for it in another line."""
    lines = [line_from(*line) for line in state.call.get("lines", [])]
    if not lines or not state.lines or lines[-1] == state.lines[-1]:
        return ""
    return f" of line {lines[-1].number}"


def table(states: Mapping[int, State]) -> str:
    """`rows` as text, in columns."""
    cells = []
    for ranks, what, tensors, line in rows(states):
        where = f"line {line.number}{f' in {line.place}' if line.place else ''}" if line else ""
        cells.append((rank_list(ranks), what, tensors, where, line.text if line else ""))
    widths = [max(len(row[i]) for row in cells) for i in range(5)]
    columns = [i for i in range(5) if widths[i]]
    return "\n".join("  " + "  ".join(f"{row[i]:<{widths[i]}}" for i in columns).rstrip() for row in cells)


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def late(ranks: Sequence[int], timeout: float | None) -> str:
    """The first sentence for ranks that were interrupted, by the clock or by a person (timeout None)."""
    who = rank_list(tuple(ranks)) if ranks else "no rank"
    return f"{who} did not come back within {timeout:g} s." if timeout else f"{_capital(who)} had not ended."


def outcome(seconds: float, busy: Sequence[int], replaced: Mapping[int, str], subgroups: int, n: int) -> str:
    """What was done about the ranks, and what to do now.

    Args:
        seconds: from the start of the cell until its ranks were free. busy: ranks that could not be freed.
        replaced: what was lost with ranks that could not be freed. subgroups: how many groups are gone.
        n: number of ranks in the cluster.
    """
    if busy:
        return f"{_capital(rank_list(tuple(busy)))} could not be freed: call cluster.restart()."
    lost = f" {GROUPS_GONE}" if subgroups else ""
    kept = "Variables are kept and the process group is rebuilt: change the cell and run it again."
    if replaced:
        kept = "The other ranks keep their variables, and the " if len(replaced) < n else "The "
        kept += "process group is rebuilt."
    words = [f"Freed after {seconds:.1f} s."]
    words += [
        f"Rank {rank} could not be freed: a new process took its place, {what}." for rank, what in replaced.items()
    ]
    return " ".join([*words, kept]) + lost


def activity(state: State) -> str:
    """What one rank does now: "idle", "computes, line 4", "recv(src=1), line 3"."""
    if state.doing == IDLE:
        return "idle"
    [(_, what, _, line)] = rows({state.rank: state})
    return f"{what}, line {line.number}" if line else what


def brief(states: Mapping[int, State]) -> str:
    """`rows` in one line, for a person who waits: "rank 2 computes (line 4), ranks 0-1: all_reduce() (line 6)"."""
    words = []
    for ranks, what, _, line in rows(states)[:4]:
        where = f" (line {line.number})" if line else ""
        words.append(f"{rank_list(ranks)}: {what}{where}")
    return ", ".join(words)


def marked_source(states: Mapping[int, State], cell: str) -> list[MarkedLine]:
    """The source lines where the ranks are, with some around them; a gap is a line without a number.

    Args:
        cell: the %%px cell's text, its first line the magic's; "" when the code is a function.
    """
    marked: list[MarkedLine] = []
    for file in sorted({s.file for s in states.values() if s.lines}):
        here = {r: s for r, s in states.items() if s.lines and s.file == file}
        source = linecache.getlines(file) if file else cell.splitlines()
        places: dict[int, dict[int, State]] = {}
        for rank, state in here.items():
            if number := _line_in(source, state.lines[-1:] if file else state.lines):
                places.setdefault(number, {})[rank] = state
        notes = {at: [(row[0], f"{row[1]} {row[2]}".rstrip()) for row in rows(there)] for at, there in places.items()}
        near = {n for at in notes for n in range(at - CONTEXT_LINES, at + CONTEXT_LINES + 1)}
        shown = {n for n in near if 1 <= n <= len(source) and (source[n - 1].strip() or {n - 1, n + 1} <= near)}
        last = -1
        for number in sorted(shown):
            if marked and last != number - 1:
                marked.append(MarkedLine(0, "...", []))
            last = number
            marked.append(MarkedLine(number, source[number - 1].rstrip(), notes.get(number, [])))
    return marked


def _line_in(source: Sequence[str], lines: Sequence[Line]) -> int:
    """The number of the innermost line that is one of this source; 0 for none: a function may be of another cell."""
    found = [n for n, text, _ in map(astuple, lines) if 1 <= n <= len(source) and source[n - 1].strip() == text]
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
    """`marked_source` as an HTML table.

    Args:
        chips: the ranks' colours as HTML.
    """
    cell = "padding:0 12px 0 0;text-align:left;vertical-align:top;border:none;background:transparent"
    wrap = f"{cell};white-space:pre-wrap"  # a long line is broken, so that the ranks beside it stay in sight
    body = []
    for line in marked:
        notes = [f"{chips(ranks)}{html.escape(f'{rank_list(ranks)}: {what}')}" for ranks, what in line.notes]
        mark = "border-left:3px solid #d55e00;padding-left:6px" if notes else "padding-left:9px"
        tint = "rgba(213,94,0,0.12)" if notes else "transparent"
        span, beside = ("", f'<td style="{wrap}">{"<br>".join(notes)}</td>') if notes else (' colspan="2"', "")
        body.append(
            f'<tr style="background:{tint}"><td style="{cell};{mark};opacity:0.6">{line.number or ""}</td>'
            f'<td{span} style="{wrap};overflow-wrap:anywhere">{html.escape(line.text)}</td>{beside}</tr>'
        )
    return f'<table style="font-family:monospace;border:none;margin:4px 0">{"".join(body)}</table>'
