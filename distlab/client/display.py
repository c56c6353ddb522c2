"""What a person sees of the ranks: a sign of life while they start or work, what they wrote, what they are.

Runs on the notebook's kernel, called by cluster.py, ranks.py, cell.py and magics.py.

Every output names its ranks, sorted, and identical outputs are folded ("ranks 0-3: ..."). While a cell runs and
somebody sits at the front end, the newest lines are shown in place; what stays, and is saved, is the sorted form, equal
on every run. A program that executes notebooks sees the sorted form only.
"""

from __future__ import annotations

import contextlib
import functools
import html
import itertools
import re
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from distlab.client.plan import Plan, check_launcher
from distlab.compat.ipyparallel import written as written_by_engines
from distlab.compat.ipython import notebook_shell, publish, somebody_watches
from distlab.text import rank_list

LONGEST_OUTPUT = 100_000  # characters of one rank's stream that a notebook can show without becoming slow


@dataclass(frozen=True)
class Item:
    """One piece of output: `kind` is stdout, stderr, display or result; `data` its MIME bundle where it is rich."""

    kind: str
    ranks: tuple[int, ...]
    text: str
    data: dict[str, Any] | None = None

    @property
    def label(self) -> str:
        return _label(self.kind, self.ranks)


@functools.cache
def _label(kind: str, ranks: tuple[int, ...]) -> str:
    return rank_list(ranks) + {"stderr": " stderr:", "result": " ->"}.get(kind, ":")


# --- what ranks wrote ---


def collect(
    result: Any, targets: Sequence[int], groupby: str = "type", served: Mapping[int, str] | None = None
) -> list[Item]:
    """The output in an ipyparallel AsyncResult as items, sorted, the identical ones folded.

    Args:
        groupby: "type" (all stdout, then stderr, displays and results), "engine" (all of one rank together) or
            "order" (like type, but the ranks' n-th displays side by side), as in ipyparallel's %%px.
        served: what functions of remote calls have printed, by the rank that ran them.
    """
    rows = [((0, 0), Item("stdout", (rank,), _shorten(text))) for rank, text in (served or {}).items()]
    for rank, written in zip(targets, written_by_engines(result), strict=True):
        rows.append(((0, 0), Item("stdout", (rank,), _shorten(written["stdout"]))))
        rows.append(((1, 0), Item("stderr", (rank,), _shorten(written["stderr"]))))
        for position, output in enumerate(written["outputs"]):
            rows.append(((2, position if groupby == "order" else 0), _rich("display", rank, output["data"])))
        if written["execute_result"] is not None:
            rows.append(((3, 0), _rich("result", rank, written["execute_result"]["data"])))
    rows = [row for row in rows if row[1].text or row[1].data]
    if groupby == "engine":
        return [item for _, item in sorted(rows, key=lambda row: (row[1].ranks, row[0]))]
    return _fold([item for _, item in sorted(rows, key=lambda row: (row[0], row[1].ranks))])


def _rich(kind: str, rank: int, data: dict[str, Any]) -> Item:
    return Item(kind, (rank,), data.get("text/plain", ""), data if set(data) - {"text/plain"} else None)


def _fold(items: list[Item]) -> list[Item]:
    folded: list[Item] = []
    for item in items:
        for i, other in enumerate(folded):
            if item == replace(other, ranks=item.ranks) and item.ranks[0] not in other.ranks:
                folded[i] = replace(other, ranks=other.ranks + item.ranks)
                break
        else:
            folded.append(item)
    return folded


def _shorten(text: str) -> str:
    if len(text) <= LONGEST_OUTPUT:
        return text
    half = LONGEST_OUTPUT // 2
    return f"{text[:half]}\n... {len(text) - LONGEST_OUTPUT} characters more ...\n{text[-half:]}"


def as_text(items: Sequence[Item]) -> str:
    """Items as plain text: the label, then the lines, aligned."""
    width = max((len(item.label) for item in items), default=0)
    lines = []
    for item in items:
        label = item.label
        for line in item.text.rstrip("\n").split("\n"):
            lines.append(f"{label:<{width}} {line}".rstrip())
            label = ""
    return "\n".join(lines)


def as_html(items: Sequence[Item]) -> str:
    """Items as an HTML table with the ranks' colours; colours of text and page are left to the front end's theme."""
    cell = "padding:1px 10px 1px 0;text-align:left;vertical-align:top;background:transparent;border:none"
    pre = "margin:0;padding:0;white-space:pre-wrap;background:transparent;font-size:inherit;line-height:1.35"
    rows = []
    for item in items:
        label = f'<td style="{cell};white-space:nowrap">{chips(item.ranks)}{html.escape(item.label)}</td>'
        body = html.escape(re.sub(r"\x1b\[[0-9;]*m", "", item.text.rstrip("\n")))
        shade = ";border-left:3px solid #d55e00;padding-left:6px" if item.kind == "stderr" else ""
        text = f'<td style="{cell}"><pre style="{pre}{shade}">{body}</pre></td>'
        rows.append(f'<tr style="background:transparent">{label}{text}</tr>')
    return f'<table style="font-family:monospace;border:none;margin:0">{"".join(rows)}</table>'


def chips(ranks: Sequence[int]) -> str:
    """The ranks' colours as small squares, of at most 16 ranks."""
    return _chips(tuple(ranks[:16]))


@functools.cache
def _chips(ranks: tuple[int, ...]) -> str:
    from distlab.plotting.style import rank_color

    box = "display:inline-block;width:8px;height:8px;border-radius:2px;margin-right:2px;background:"
    shown = "".join(f'<span style="{box}{rank_color(rank)}"></span>' for rank in ranks)
    return shown + '<span style="margin-right:4px"></span>'


def show(
    result: Any,
    targets: Sequence[int],
    groupby: str = "type",
    place: Place | None = None,
    patience: float = 1.0,
    served: Mapping[int, str] | None = None,
) -> None:
    """Show what the ranks wrote: in a notebook as a table, elsewhere as text on this process's stdout.

    Args:
        place: where the live view is that this takes the place of.
        patience: seconds to wait for output that is pending; a rank that has died sends no end of it.
        served: see `collect`.
    """
    result.wait_for_output(patience)
    place = place or Place()
    items = collect(result, targets, groupby, served)
    for _, block in itertools.groupby(items, lambda item: id(item) if item.data else 0):  # what is rich stands alone
        block = list(block)
        place.leave(_rich_bundle(block[0]) if block[0].data else _bundle(block))
    place.erase()


def show_live(place: Place, doing: str, result: Any, targets: Sequence[int]) -> None:
    """Show what the ranks do and the newest lines that they wrote, for a person who waits."""
    items = [replace(item, text="\n".join(item.text.splitlines()[-5:])) for item in collect(result, targets)]
    place.show(_bundle(items, doing))


def show_source(states: Mapping[int, Any], cell: str) -> None:
    """In a notebook, the source lines where the ranks of a cell were, with the ranks beside them.

    Args:
        states: RankStatus by rank.
        cell: the text of a %%px cell; "" for a function.
    """
    from distlab.diagnosis import report

    if notebook_shell() is not None and (marked := report.marked_source(states, cell)):
        publish({"text/plain": report.source_text(marked), "text/html": report.source_html(marked, chips)})


def _bundle(items: Sequence[Item], headline: str = "") -> dict[str, Any]:
    above = f"<b>{html.escape(headline)}</b>" if headline else ""
    text = "\n".join(filter(None, [headline, as_text(items)]))
    return {"text/plain": text, "text/html": above + as_html(items)}


def _rich_bundle(item: Item) -> dict[str, Any]:
    bundle = {**item.data, "text/plain": f"{item.label} {item.text}"}
    if "text/html" in bundle:
        bundle["text/html"] = f"{chips(item.ranks)}{item.label}{bundle['text/html']}"
    return bundle


# --- the cluster itself ---


@contextlib.contextmanager
def starting(n: int, backend: str) -> Iterator[None]:
    """A sign of life while ranks start; afterwards one line that is the same on every run."""
    place, several = Place(), "s" if n > 1 else ""
    place.show({"text/plain": f"starting {n} rank{several} ..."})
    line = f"The cluster did not start: {n} ranks were asked for."
    try:
        yield
        line = f"{n} rank{several} {'are' if several else 'is'} ready ({backend})."
    finally:
        if notebook_shell() is not None:
            place.leave({"text/plain": line})
        place.erase()


def headline(plan: Plan, hosts: Sequence[str], simulated: str) -> str:
    """What a cluster is, in a line."""
    engines = "" if plan.engines == check_launcher(None) else f", engines {plan.engines}"
    where = f" on {' and '.join(dict.fromkeys(hosts))}" if hosts else ""
    more = f", {simulated}" if simulated else ""
    return f"Cluster({plan.n}){where}: backend {plan.backend}{engines}{more}"


def cluster(headline: str, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The cluster as text and as HTML, one line a rank, from `Cluster.describe`."""
    width = max((len(row["state"]) for row in rows), default=0)
    names = max((len(row.get("host", "")) for row in rows), default=0)
    items = []
    for row in rows:
        memory = "-" if row["megabytes"] is None else f"{row['megabytes']:.0f} MB"
        host = f"  {row['host']:<{names}}" if "host" in row else ""
        items.append(Item("state", (row["rank"],), f"{row['state']:<{width}}  {memory:>7}{host}  pid {row['pid']}"))
    return _bundle(items, headline)


class Place:
    """Where a person sees something change: an output of the notebook's cell, or one line of a terminal.

    Where nobody watches, as in a file or a pipe, nothing is shown before `leave`.
    """

    def __init__(self) -> None:
        self._watched, self._in_notebook = somebody_watches(), notebook_shell() is not None
        self._handle: Any = None
        self._width = 0  # of what stands on the terminal's line

    def show(self, bundle: dict[str, Any]) -> None:
        """Show a MIME bundle in place of the one before; on a terminal, the first line of its text."""
        if self._watched and self._in_notebook:
            self._handle = publish(bundle, handle=True, update=self._handle)
        elif self._watched:
            line = bundle["text/plain"].partition("\n")[0][: shutil.get_terminal_size().columns - 1]
            print(f"\r{line:<{self._width}}", end="", file=sys.stderr, flush=True)
            self._width = max(self._width, len(line))

    def leave(self, bundle: dict[str, Any]) -> None:
        """Show what stays, in place of what was shown until now; outside of a notebook as text on stdout."""
        if self._in_notebook:
            publish(bundle, update=self._handle)
            self._handle = None
        else:
            self.erase()
            print(bundle["text/plain"])

    def erase(self) -> None:
        """Remove what is shown and was not left."""
        if self._handle is not None:
            self.leave({"text/plain": ""})
        elif self._width:
            print("\r" + " " * self._width + "\r", end="", file=sys.stderr, flush=True)
            self._width = 0
