"""What a person sees of the ranks: that they are starting or working, what they wrote, what they
are.

Runs on the notebook's kernel, called by cluster.py, ranks.py and cell.py.

Every output names its ranks, sorted, and identical outputs are folded ("ranks 0-3: ..."). While a
cell runs and somebody is watching, the newest lines are shown in place; what stays, and is saved,
is the sorted form, the same on every run. A terminal, or a program that executes notebooks, gets
only the sorted form.
"""

from __future__ import annotations

import contextlib
import functools
import html
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from distlab.compat.ipyparallel import written as written_by_engines
from distlab.compat.ipython import notebook_shell, publish, somebody_watches
from distlab.diagnosis.marks import marked_source, source_html, source_text
from distlab.notebook.plan import Plan
from distlab.notebook.start_methods import check_start_method
from distlab.words import rank_list

LABELLED = {"text/html", "text/markdown"}  # rich output that has a place for the names of its ranks
KINDS = ["stdout", "stderr", "display", "result"]  # of output, in the order in which they are shown
# unlike JupyterLab, which breaks words
WRAPPED = "white-space:pre-wrap;word-break:normal;overflow-wrap:anywhere"
# the same in outputs that programs make: whatever shows them has its own rules
SAVED = "white-space:pre-wrap"
HANG = 4  # columns by which the rest of a row is indented that does not fit into a line
# characters of one rank's stream that a notebook can show without becoming slow
LONGEST_OUTPUT = 100_000


@dataclass
class Item:
    """One piece of output: `kind` is stdout, stderr, display or result; `data` is its MIME bundle
    if it is rich.

    Two are equal if their ranks have written the same. `turn` counts what one rank has displayed.
    """

    kind: str
    ranks: tuple[int, ...] = field(compare=False)
    text: str
    data: dict[str, Any] | None = None
    turn: int = field(default=0, compare=False)

    @property
    def has_place_for_label(self) -> bool:
        """Whether it can be shown with its ranks in front, in the same output."""
        return self.data is None or not LABELLED.isdisjoint(self.data)

    @property
    def label(self) -> str:
        return _in_words(self.ranks) + {"stderr": " stderr:", "result": " ->"}.get(self.kind, ":")


_in_words = functools.cache(rank_list)

# --- what ranks wrote ---


def collect(
    result: Any, targets: Sequence[int], served: Mapping[int, str] | None = None
) -> list[Item]:
    """The output in an ipyparallel AsyncResult as items, sorted by kind and rank, the identical
    ones folded.

    Args:
        served: what functions of remote calls have printed, by the rank that ran them.
    """
    items = [Item("stdout", (rank,), _shorten(text)) for rank, text in (served or {}).items()]
    for rank, written in zip(targets, written_by_engines(result), strict=True):
        items += [Item(kind, (rank,), _shorten(written[kind])) for kind in ("stdout", "stderr")]
        shown = [_rich("display", rank, output["data"]) for output in written["outputs"]]
        items += [replace(item, turn=turn) for turn, item in enumerate(shown)]
        if written["execute_result"] is not None:
            items.append(_rich("result", rank, written["execute_result"]["data"]))
    items = [item for item in items if item.text or item.data]
    return _fold(sorted(items, key=lambda item: (KINDS.index(item.kind), item.ranks)))


def _rich(kind: str, rank: int, data: dict[str, Any]) -> Item:
    return Item(
        kind, (rank,), data.get("text/plain", ""), data if set(data) - {"text/plain"} else None
    )


def _fold(items: list[Item]) -> list[Item]:
    folded: list[Item] = []
    for item in items:
        alike = (other for other in folded if other == item and item.ranks[0] not in other.ranks)
        if first := next(alike, None):
            first.ranks += item.ranks
        else:
            folded.append(item)
    # which has a turn among those of others
    if any(item.kind == "display" and len(item.ranks) > 1 for item in folded):
        folded.sort(key=lambda item: (KINDS.index(item.kind), item.turn, item.ranks))
    return folded


def _shorten(text: str) -> str:
    if len(text) <= LONGEST_OUTPUT:
        return text
    half = LONGEST_OUTPUT // 2
    return f"{text[:half]}\n... {len(text) - LONGEST_OUTPUT} more characters ...\n{text[-half:]}"


def as_text(items: Sequence[Item]) -> str:
    """Items as plain text: the label, then the lines, aligned."""
    width = max((len(item.label) for item in items), default=0)
    lines = []
    for item in items:
        for number, line in enumerate(item.text.rstrip("\n").split("\n")):
            lines.append(f"{'' if number else item.label:<{width}} {line}".rstrip())
    return "\n".join(lines)


def wrapped() -> str:
    """How lines of text break that are shown as HTML, as CSS."""
    return WRAPPED if somebody_watches() else SAVED


def hanging(lines: Sequence[str], columns: int) -> str:
    """Lines of HTML below another one; for a person, the rest of one that does not fit is indented
    by some columns.
    """
    if not somebody_watches():
        return "".join(f"\n{line}" for line in lines)
    look = f"padding-left:{columns}ch;text-indent:-{columns}ch"
    return "".join(f'<div style="{look}">{line or "&nbsp;"}</div>' for line in lines)


def as_html(items: Sequence[Item]) -> str:
    """Items as an HTML table with the ranks' colours; the front end's theme chooses the colours of
    text and page.
    """
    cell = "padding:1px 10px 1px 0;text-align:left;vertical-align:top;background:transparent;border:none"
    pre = (
        f"margin:0;padding:0;{wrapped()};background:transparent;font-size:inherit;line-height:1.35"
    )
    rows = []
    for item in items:
        label = f'<td style="{cell};white-space:nowrap">{chips(item.ranks)}{html.escape(item.label)}</td>'
        body = html.escape(re.sub(r"\x1b\[[0-9;]*m", "", item.text.rstrip("\n")))
        shade = ";border-left:3px solid #d55e00;padding-left:6px" if item.kind == "stderr" else ""
        text = f'<td style="{cell}"><pre style="{pre}{shade}">{body}</pre></td>'
        rows.append(f'<tr style="background:transparent">{label}{text}</tr>')
    return f'<table style="font-family:monospace;border:none;margin:0">{"".join(rows)}</table>'


@functools.cache
def chips(ranks: tuple[int, ...]) -> str:
    """The ranks' colours as small squares, for at most 16 ranks."""
    from distlab.plotting.style import rank_color

    box = "display:inline-block;width:8px;height:8px;border-radius:2px;margin-right:2px;background:"
    shown = "".join(f'<span style="{box}{rank_color(rank)}"></span>' for rank in ranks[:16])
    return shown + '<span style="margin-right:4px"></span>'


def show(
    result: Any, targets: Sequence[int], place: Place, patience: float, served: Mapping[int, str]
) -> None:
    """Show what the ranks wrote: in a notebook as a table, elsewhere as text on this process's
    stdout.

    Args:
        place: where the live view is, which this replaces.
        patience: seconds to wait for pending output; a rank that has died never sends the end of
            it.
        served: see `collect`.
    """
    result.wait_for_output(patience)
    items = collect(result, targets, served)
    # rich output stands alone
    for _, block in itertools.groupby(items, lambda item: id(item) if item.data else 0):
        block = list(block)
        if not block[0].has_place_for_label:
            place.leave(_bundle([replace(block[0], text="", data=None)]))
        place.leave(_rich_bundle(block[0]) if block[0].data else _bundle(block))


def as_paragraphs(text: str, name: str = "") -> str:
    """A text as HTML that breaks between words where the pane ends; a row of a table is indented
    there.

    Args:
        text: rows of a table begin with spaces; the last column, code, has a line of its own before
            it breaks.
        name: of the error whose message it is.
    """
    head = f"<b>{name}</b>: " if name else ""
    shade = (
        "background:var(--jp-rendermime-error-background,transparent);padding:2px 4px;"
        if name
        else ""
    )
    lines = []
    for line in text.splitlines():
        row = line.lstrip()
        indent = len(line) - len(row)
        if not indent:
            lines.append(f"<div>{head}{html.escape(row) or '&nbsp;'}</div>")
            head = ""
            continue
        columns, gap, code = line.rpartition("  ") if "  " in row else (line, "", "")
        last = (
            f'<span style="display:inline-block;text-indent:0">{html.escape(code)}</span>'
            if code
            else ""
        )
        hang = f"padding-left:{indent + HANG}ch;text-indent:-{indent + HANG}ch"
        lines.append(f'<div style="{hang}">{html.escape(columns + gap)}{last}</div>')
    font = "font-family:monospace;font-size:var(--jp-code-font-size,13px);line-height:1.35"
    return f'<div style="{shade}{font};{WRAPPED}">{"".join(lines)}</div>'


def show_error(error: BaseException, lines: list[str]) -> list[str]:
    """Show a person an error of distlab's as wide as the pane is; the lines that are then shown as
    its traceback.

    JupyterLab breaks the text of an error in the middle of words. Programs that execute notebooks
    get the text alone.
    """
    name = type(error).__name__
    publish({"text/plain": "\n".join(lines), "text/html": as_paragraphs(str(error), name)})
    return [f"{name} (see above)"]


def say(words: str, stream: Any) -> None:
    """Say something beside the outputs, on stdout or stderr; in a person's notebook it breaks where
    the pane ends.
    """
    if notebook_shell() is not None and somebody_watches():
        publish({"text/plain": words, "text/html": as_paragraphs(words)})
    else:
        print(words, file=stream)


def show_live(place: Place, doing: str, picture: str, result: Any, targets: Sequence[int]) -> None:
    """Show a waiting person what the ranks are doing, in words and as HTML, and the newest lines
    that they wrote.
    """
    items = [
        replace(item, text="\n".join(item.text.splitlines()[-5:]))
        for item in collect(result, targets)
    ]
    bundle = _bundle(items, doing)
    place.show(
        {**bundle, "text/html": picture + as_html(items) if picture else bundle["text/html"]}
    )


def show_source(states: Mapping[int, Any], cell: str) -> None:
    """In a notebook, show the source lines where the ranks of a cell were, with the ranks beside
    them.

    Args:
        states: RankStatus by rank.
        cell: the text of a %%px cell; "" for a function.
    """
    if notebook_shell() is not None and (marked := marked_source(states, cell)):
        as_html = source_html(marked, lambda ranks: chips(tuple(ranks)))
        publish({"text/plain": source_text(marked), "text/html": as_html})


def _bundle(items: Sequence[Item], headline: str = "") -> dict[str, Any]:
    above = f"<b>{html.escape(headline)}</b>" if headline else ""
    text = "\n".join(filter(None, [headline, as_text(items)]))
    return {"text/plain": text, "text/html": above + as_html(items)}


def _rich_bundle(item: Item) -> dict[str, Any]:
    bundle = {**item.data, "text/plain": f"{item.label} {item.text}"}
    if "text/html" in bundle:
        bundle["text/html"] = f"{chips(item.ranks)}{item.label}{bundle['text/html']}"
    if "text/markdown" in bundle:
        bundle["text/markdown"] = f"{item.label}\n\n{bundle['text/markdown']}"
    return bundle


# --- the cluster itself ---


@contextlib.contextmanager
def starting(n: int, backend: str) -> Iterator[None]:
    """Show that ranks are starting; afterwards, one line that is the same on every run."""
    place, several = Place(), "s" if n > 1 else ""
    place.show({"text/plain": f"starting {n} rank{several} ..."})
    try:
        yield
        if notebook_shell() is not None:
            place.leave(
                {"text/plain": f"{n} rank{several} {'are' if several else 'is'} ready ({backend})."}
            )
    finally:
        place.erase()


def headline(plan: Plan, hosts: Sequence[str], simulated: str) -> str:
    """What a cluster is, in a line."""
    engines = "" if plan.engines == check_start_method(None) else f", engines {plan.engines}"
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
        items.append(
            Item(
                "state",
                (row["rank"],),
                f"{row['state']:<{width}}  {memory:>7}{host}  pid {row['pid']}",
            )
        )
    return _bundle(items, headline)


class Place:
    """An output of the notebook's cell that changes while a person watches; elsewhere only the
    final one is shown.
    """

    def __init__(self) -> None:
        self._handle: Any = None  # of the output, while it may change

    def show(self, bundle: dict[str, Any]) -> None:
        """Show a MIME bundle in place of the one before."""
        if notebook_shell() is not None and somebody_watches():
            self._handle = publish(bundle, handle=True, update=self._handle)

    def leave(self, bundle: dict[str, Any]) -> None:
        """Show the final output in place of what was shown until now; outside a notebook, as text
        on stdout.
        """
        if notebook_shell() is None:
            print(bundle["text/plain"])
            return
        publish(bundle, update=self._handle)
        self._handle = None

    def erase(self) -> None:
        """Remove what is shown, unless it is final."""
        if self._handle is not None:
            self.leave({"text/plain": ""})
