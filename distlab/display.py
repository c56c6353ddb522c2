"""How the ranks' output looks, as text and as HTML; called by cluster.py and magics.py in the notebook's kernel.

Every output names its ranks, sorted, and identical outputs are folded ("ranks 0-3: ..."). While a cell runs and
somebody sits at the front end, the newest lines are shown in place; what stays, and is saved, is the sorted form, equal
on every run. A program that executes notebooks sees the sorted form only.
"""

from __future__ import annotations

import contextlib
import html
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from distlab.errors import rank_list

LIVE_AFTER_SECONDS = 1.0
TICK_SECONDS = 0.25
LONGEST_OUTPUT = 100_000  # characters of one rank's stream that a notebook can show without becoming slow


@dataclass(frozen=True)
class Item:
    """One piece of output: `kind` is stdout, stderr, display or result; `data` its MIME bundle where it is rich."""

    kind: str
    ranks: tuple[int, ...]
    text: str
    data: dict[str, Any] | None = None
    metadata: dict[str, Any] | None = None

    @property
    def label(self) -> str:
        tail = {"stderr": " stderr:", "result": " ->"}.get(self.kind, ":")
        return rank_list(self.ranks) + tail


# --- what ranks wrote ---


def collect(result: Any, targets: Sequence[int], groupby: str = "type") -> list[Item]:
    """The output in an ipyparallel AsyncResult as items, sorted, the identical ones folded.

    Args:
        groupby: "type" (all stdout, then stderr, displays and results), "engine" (all of one rank together) or
            "order" (like type, but the ranks' n-th displays side by side), as in ipyparallel's %%px.
    """
    stdout, stderr, results, displays = result.stdout, result.stderr, result.execute_result, result.outputs
    if not isinstance(stdout, list):
        stdout, stderr, results, displays = [stdout], [stderr], [results], [displays]
    rows: list[tuple[tuple, Item]] = []
    for i, rank in enumerate(targets):
        rows.append(((0, 0), Item("stdout", (rank,), _shorten(stdout[i]))))
        rows.append(((1, 0), Item("stderr", (rank,), _shorten(stderr[i]))))
        for position, output in enumerate(displays[i] or []):
            order = (2, position if groupby == "order" else 0)
            rows.append((order, _rich("display", rank, output)))
        if results[i] is not None:
            rows.append(((3, 0), _rich("result", rank, results[i])))
    rows = [row for row in rows if row[1].text or row[1].data]
    if groupby == "engine":
        return [item for _, item in sorted(rows, key=lambda row: (row[1].ranks, row[0]))]
    return _fold([item for _, item in sorted(rows, key=lambda row: row[0])])


def _rich(kind: str, rank: int, output: dict[str, Any]) -> Item:
    data = dict(output.get("data") or {})
    text = data.get("text/plain", "")
    return Item(kind, (rank,), text, None if set(data) <= {"text/plain"} else data, output.get("metadata") or {})


def _fold(items: list[Item]) -> list[Item]:
    folded: list[Item] = []
    for item in items:
        for i, other in enumerate(folded):
            same = (other.kind, other.text, other.data) == (item.kind, item.text, item.data)
            if same and item.ranks[0] not in other.ranks:
                folded[i] = Item(item.kind, other.ranks + item.ranks, item.text, item.data, item.metadata)
                break
        else:
            folded.append(item)
    return folded


def _shorten(text: str) -> str:
    text = text or ""
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
        words = f"{_chips(item.ranks)}{html.escape(item.label)}"
        body = html.escape(re.sub(r"\x1b\[[0-9;]*m", "", item.text.rstrip("\n")))
        shade = ";border-left:3px solid #d55e00;padding-left:6px" if item.kind == "stderr" else ""
        rows.append(
            f'<tr style="background:transparent"><td style="{cell};white-space:nowrap">{words}</td>'
            f'<td style="{cell}"><pre style="{pre}{shade}">{body}</pre></td></tr>'
        )
    return f'<table style="font-family:monospace;border:none;margin:0">{"".join(rows)}</table>'


def _chips(ranks: Sequence[int]) -> str:
    from distlab.plotting.style import rank_color

    box = "display:inline-block;width:8px;height:8px;border-radius:2px;margin-right:2px;background:"
    shown = "".join(f'<span style="{box}{rank_color(rank)}"></span>' for rank in ranks[:16])
    return shown + '<span style="margin-right:4px"></span>'


def show(result: Any, targets: Sequence[int], groupby: str = "type", place: Any = None) -> None:
    """Show what the ranks wrote: in a notebook as a table, elsewhere as text on this process's stdout.

    Args:
        place: the `DisplayHandle` of the live view that this takes the place of.
    """
    result.wait_for_output(1)
    blocks: list[list[Item]] = []
    for item in collect(result, targets, groupby):
        if item.data or not blocks or blocks[-1][0].data:
            blocks.append([])
        blocks[-1].append(item)
    for block in blocks or ([[]] if place else []):
        bundle = _bundle(block)
        if place is not None:
            place, handle = None, place
            _publish(bundle, update=handle)
        elif _shell() is None:
            print(bundle["text/plain"])
        else:
            _publish(bundle)


def _bundle(block: list[Item]) -> dict[str, Any]:
    if block and block[0].data:
        item = block[0]
        head = f"{item.label} {item.text}"
        if "text/html" in item.data:
            rich = f"{_chips(item.ranks)}{item.label}{item.data['text/html']}"
            return {**item.data, "text/plain": head, "text/html": rich}
        return {**item.data, "text/plain": head}
    return {"text/plain": as_text(block), "text/html": as_html(block)} if block else {"text/plain": ""}


# --- while it runs ---


class Watch:
    """Waits for the ranks of a cell, and shows what they write meanwhile when somebody is there to see it.

    Args:
        result: ipyparallel's AsyncResult. targets: its ranks.
        live_after: seconds before the newest lines are shown; None never.
    """

    def __init__(self, result: Any, targets: Sequence[int], live_after: float | None = LIVE_AFTER_SECONDS):
        self._result, self._targets, self._live_after = result, list(targets), live_after
        self.place: Any = None

    def wait(self, limit: float | None, on_tick: Callable[[], None]) -> bool:
        """True when every rank has ended, False after `limit` seconds (None: no limit); calls `on_tick` meanwhile."""
        began = time.monotonic()
        while True:
            seconds = time.monotonic() - began
            left = None if limit is None else limit - seconds
            if self._result.wait(TICK_SECONDS if left is None else max(0.0, min(TICK_SECONDS, left))):
                return True
            if left is not None and left <= TICK_SECONDS:
                return False
            on_tick()
            if self._live_after is not None and seconds + TICK_SECONDS >= self._live_after:
                self._update(seconds + TICK_SECONDS)

    def unfinished(self) -> list[int]:
        """The ranks that have not answered yet."""
        return [rank for rank, child in self._children() if not child.done()]

    def replies(self) -> dict[int, Any]:
        """What the ranks that have answered answered; an exception object where ipyparallel reports one."""
        return {rank: child.exception() or child.result() for rank, child in self._children() if child.done()}

    def _children(self) -> list[tuple[int, Any]]:
        return list(zip(self._targets, self._result._children, strict=True))

    def _update(self, seconds: float) -> None:
        if not somebody_watches():
            return
        busy = self.unfinished()
        head = f"{rank_list(busy)} busy for {seconds:.0f} s" if busy else "collecting output"
        items = [
            Item(i.kind, i.ranks, "\n".join(i.text.splitlines()[-5:])) for i in collect(self._result, self._targets)
        ]
        bundle = {"text/plain": f"{head}\n{as_text(items)}", "text/html": f"<i>{head}</i>{as_html(items)}"}
        if self.place is None:
            self.place = _publish(bundle, handle=True)
        else:
            _publish(bundle, update=self.place)


@contextlib.contextmanager
def starting(n: int, backend: str) -> Iterator[None]:
    """A sign of life while ranks start; afterwards one line that is the same on every run."""
    ready = threading.Event()
    handle = None

    def tick() -> None:
        began = time.monotonic()
        while not ready.wait(0.5):
            line = f"starting {n} rank{'s' if n > 1 else ''} ... {time.monotonic() - began:.0f} s"
            if handle is not None:
                _publish({"text/plain": line}, update=handle)
            else:
                print(f"\r{line}", end="", file=sys.stderr, flush=True)

    shell, live = _shell(), somebody_watches()
    if live and shell is not None:
        handle = _publish({"text/plain": f"starting {n} rank{'s' if n > 1 else ''} ..."}, handle=True)
    thread = threading.Thread(target=tick, daemon=True)
    if live:
        thread.start()
    line = f"The cluster did not start: {n} ranks were asked for."
    try:
        yield
        line = f"{n} rank{'s are' if n > 1 else ' is'} ready ({backend})."
    finally:
        ready.set()
        if live:
            thread.join()
        if shell is not None:
            _publish({"text/plain": line}, update=handle)
        elif live:
            print("\r" + " " * 60 + "\r", end="", file=sys.stderr, flush=True)


# --- the cluster itself ---


def cluster_text(headline: str, rows: Sequence[dict[str, Any]]) -> str:
    """The cluster as text, one line a rank."""
    lines = [f"  rank {r['rank']:<3} {r['state']}  {_memory(r):>7}  pid {r['pid']}" for r in rows]
    return "\n".join([headline, *lines])


def cluster_html(headline: str, rows: Sequence[dict[str, Any]]) -> str:
    """The cluster as an HTML table, one row a rank."""
    cell = '<td style="text-align:left;padding:2px 14px 2px 0">'
    head = "".join(
        f'<th style="text-align:left;padding:2px 14px 2px 0">{h}</th>' for h in ("rank", "state", "memory", "process")
    )
    body = "".join(
        f"<tr>{cell}{_chips([r['rank']])}rank {r['rank']}</td>{cell}{html.escape(r['state'])}</td>"
        f"{cell}{_memory(r)}</td>{cell}pid {r['pid']}</td></tr>"
        for r in rows
    )
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>" if rows else ""
    return f"<div><b>{html.escape(headline)}</b>{table}</div>"


def _memory(row: dict[str, Any]) -> str:
    return "-" if row["megabytes"] is None else f"{row['megabytes']:.0f} MB"


# --- where it is shown ---


def somebody_watches() -> bool:
    """Whether a person looks on: a front end that could ask its user for input, or a terminal.

    Programs that execute notebooks (nbclient, nbval) never allow input, and IPP_NONINTERACTIVE says it outright.
    """
    if os.environ.get("IPP_NONINTERACTIVE", "") not in ("", "0"):
        return False
    shell = _shell()
    kernel = getattr(shell, "kernel", None)
    if kernel is not None:
        return bool(getattr(kernel, "_allow_stdin", False))
    return sys.stderr.isatty()


def _shell() -> Any:
    """The IPython shell of a notebook's kernel; None in a terminal or a plain script, where output is plain text."""
    get_ipython = getattr(sys.modules.get("IPython"), "get_ipython", None)
    shell = get_ipython() if get_ipython else None
    return shell if hasattr(shell, "kernel") else None


def _publish(bundle: dict[str, Any], handle: bool = False, update: Any = None) -> Any:
    from IPython.display import DisplayHandle
    from IPython.display import display as ipython_display

    if update is not None:
        update.update(bundle, raw=True)
        return update
    if handle:
        fresh = DisplayHandle()
        fresh.display(bundle, raw=True)
        return fresh
    ipython_display(bundle, raw=True)
    return None
