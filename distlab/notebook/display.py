"""What a person sees of what ranks wrote, and where they were when a cell could not go on.

Runs on the notebook's kernel, called by cell.py and failed_cell.py; overview.py shows the cluster
itself in the same way.

Every output names its ranks, sorted, and identical outputs are folded ("ranks 0-3: ..."). While a
cell runs and somebody is watching, the newest lines are shown in place; what stays, and is saved,
is the sorted form, the same on every run. A terminal, or a program that executes notebooks, gets
only the sorted form.
"""

from __future__ import annotations

import functools
import html
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from distlab.compat.ipyparallel import written as written_by_engines
from distlab.compat.ipython import notebook_shell, publish, somebody_watches
from distlab.diagnosis.marks import marked_source, source_html, source_text
from distlab.wire.messages import RankStatus
from distlab.words import rank_list

LABELLED = {"text/html", "text/markdown"}  # rich output that has a place for the names of its ranks
# in the order in which they are shown
OUTPUT_KINDS = ["stdout", "stderr", "display", "result"]
# keeps words whole, where JupyterLab's own style breaks them
WRAPPED_CSS = "white-space:pre-wrap;word-break:normal;overflow-wrap:anywhere"
# the same in outputs that programs make: whatever shows them has its own rules
SAVED_CSS = "white-space:pre-wrap"
CELL_CSS = (
    "padding:1px 10px 1px 0;text-align:left;vertical-align:top;background:transparent;border:none"
)
TEXT_CSS = "background:transparent;font-size:inherit;line-height:1.35"
STDERR_CSS = "border-left:3px solid #d55e00;padding-left:6px"
COLOUR_CODE = r"\x1b\[[0-9;]*m"  # of a terminal
NEWEST_LINES = 5  # of a rank's stream, while a cell runs
# characters of one rank's stream that a notebook can show without becoming slow
LONGEST_OUTPUT = 100_000


@dataclass
class Item:
    """One piece of output. Two are equal if their ranks have written the same.

    Attributes:
        kind: one of OUTPUT_KINDS.
        ranks: those that have written it.
        text: as plain text.
        data: its MIME bundle; None if it is not rich.
        turn: how many pieces the rank had displayed before.
    """

    kind: str
    ranks: tuple[int, ...] = field(compare=False)
    text: str
    data: dict[str, Any] | None = None
    turn: int = field(default=0, compare=False)

    @property
    def has_place_for_label(self) -> bool:
        """Whether it can be shown with its ranks in front, in the same output."""
        if self.data is None:
            return True
        return not LABELLED.isdisjoint(self.data)

    @property
    def label(self) -> str:
        """The names of its ranks, and how it came to be."""
        ranks = _rank_names(self.ranks)
        if self.kind == "stderr":
            return f"{ranks} stderr:"
        if self.kind == "result":
            return f"{ranks} ->"
        return f"{ranks}:"


_rank_names = functools.cache(rank_list)

# --- what ranks wrote ---


def collect(
    result: Any, targets: Sequence[int], served: Mapping[int, str] | None = None
) -> list[Item]:
    """The output in an ipyparallel AsyncResult as items, sorted by kind and rank.

    Identical ones are folded.

    Args:
        result: the AsyncResult.
        targets: its ranks.
        served: what functions of remote calls have printed, by the rank that ran them.
    """
    items = []
    if served is not None:
        for rank, text in served.items():
            items.append(Item("stdout", (rank,), _shorten(text)))
    for rank, written in zip(targets, written_by_engines(result), strict=True):
        items += _items_of(rank, written)
    shown = [item for item in items if item.text or item.data]
    shown.sort(key=lambda item: (OUTPUT_KINDS.index(item.kind), item.ranks))
    return _fold(shown)


def _items_of(rank: int, written: Mapping[str, Any]) -> list[Item]:
    """What one rank has written, as ipyparallel keeps it: its streams, its outputs, its result."""
    items = []
    for kind in ("stdout", "stderr"):
        items.append(Item(kind, (rank,), _shorten(written[kind])))
    for turn, output in enumerate(written["outputs"]):
        items.append(_output("display", rank, output["data"], turn))
    result = written["execute_result"]
    if result is not None:
        items.append(_output("result", rank, result["data"]))
    return items


def _output(kind: str, rank: int, bundle: dict[str, Any], turn: int = 0) -> Item:
    """An item with a MIME bundle, or a plain one if the bundle has nothing but text."""
    text = bundle.get("text/plain", "")
    if set(bundle) <= {"text/plain"}:
        return Item(kind, (rank,), text, turn=turn)
    return Item(kind, (rank,), text, bundle, turn)


def _fold(items: list[Item]) -> list[Item]:
    """Items with those of several ranks that are equal as one; a rank's own stay apart."""
    folded: list[Item] = []
    is_display_shared = False
    for item in items:
        same = _same_of_another_rank(item, folded)
        if same is None:
            folded.append(item)
            continue
        same.ranks += item.ranks
        is_display_shared |= item.kind == "display"
    if is_display_shared:  # what several ranks have displayed has its turn among those of others
        folded.sort(key=lambda item: (OUTPUT_KINDS.index(item.kind), item.turn, item.ranks))
    return folded


def _same_of_another_rank(item: Item, items: Sequence[Item]) -> Item | None:
    """The first of some items that is equal to this one, and not of its rank; None without one."""
    (rank,) = item.ranks
    for other in items:
        if other == item and rank not in other.ranks:
            return other
    return None


def _shorten(text: str) -> str:
    """A text without its middle if it is too long to be shown."""
    if len(text) <= LONGEST_OUTPUT:
        return text
    half = LONGEST_OUTPUT // 2
    return f"{text[:half]}\n... {len(text) - LONGEST_OUTPUT} more characters ...\n{text[-half:]}"


def as_text(items: Sequence[Item]) -> str:
    """Items as plain text: the label, then the lines, aligned."""
    width = max((len(item.label) for item in items), default=0)
    lines = []
    for item in items:
        label = item.label  # beside the first line
        for line in item.text.rstrip("\n").split("\n"):
            lines.append(f"{label:<{width}} {line}".rstrip())
            label = ""
    return "\n".join(lines)


def wrapped() -> str:
    """How lines of text break that are shown as HTML, as CSS."""
    return WRAPPED_CSS if somebody_watches() else SAVED_CSS


def as_html(items: Sequence[Item]) -> str:
    """Items as an HTML table with the ranks' colours.

    The front end's theme chooses the colours of text and page.
    """
    lines = ['<table style="font-family:monospace;border:none;margin:0">']
    for item in items:
        lines.append(_row_of_item(item))
    lines.append("</table>")
    return "".join(lines)


def _row_of_item(item: Item) -> str:
    """An item as a row of an HTML table: its ranks, and what they wrote."""
    look = f"margin:0;padding:0;{wrapped()};{TEXT_CSS}"
    if item.kind == "stderr":
        look = f"{look};{STDERR_CSS}"
    text = item.text.rstrip("\n")
    text = html.escape(re.sub(COLOUR_CODE, "", text))
    who = chips(item.ranks) + html.escape(item.label)
    return (
        '<tr style="background:transparent">'
        f'<td style="{CELL_CSS};white-space:nowrap">{who}</td>'
        f'<td style="{CELL_CSS}"><pre style="{look}">{text}</pre></td>'
        "</tr>"
    )


@functools.cache
def chips(ranks: tuple[int, ...]) -> str:
    """The ranks' colours as small squares, for at most 16 ranks."""
    from distlab.plotting.style import rank_color

    box = "display:inline-block;width:8px;height:8px;border-radius:2px;margin-right:2px"
    squares = []
    for rank in ranks[:16]:
        squares.append(f'<span style="{box};background:{rank_color(rank)}"></span>')
    squares.append('<span style="margin-right:4px"></span>')
    return "".join(squares)


def show(
    result: Any, targets: Sequence[int], place: Place, patience: float, served: Mapping[int, str]
) -> None:
    """Show what the ranks wrote.

    In a notebook it is a table, elsewhere text on this process's stdout.

    Args:
        result: the AsyncResult.
        targets: its ranks.
        place: where the live view is, which this replaces.
        patience: seconds to wait for pending output; a rank that has died never sends the end of
            it.
        served: see `collect`.
    """
    result.wait_for_output(patience)
    items = collect(result, targets, served)
    for block in _blocks(items):
        first = block[0]
        if first.data is None:
            place.leave(bundle_of(block))
            continue
        if not first.has_place_for_label:
            place.leave(bundle_of([replace(first, text="", data=None)]))
        place.leave(_rich_bundle(first))


def _blocks(items: Sequence[Item]) -> list[list[Item]]:
    """Items that are shown together: those without rich output side by side, a rich one alone."""
    blocks: list[list[Item]] = []
    for item in items:
        goes_on = bool(blocks) and item.data is None and blocks[-1][-1].data is None
        if goes_on:
            blocks[-1].append(item)
        else:
            blocks.append([item])
    return blocks


def show_live(place: Place, doing: str, picture: str, result: Any, targets: Sequence[int]) -> None:
    """Show a waiting person what the ranks are doing, and the newest lines that they wrote.

    Args:
        place: where to show it.
        doing: what the ranks are doing, in words.
        picture: the same as HTML; "" for the words alone.
        result: the cell's AsyncResult.
        targets: its ranks.
    """
    items = []
    for item in collect(result, targets):
        lines = item.text.splitlines()
        newest = "\n".join(lines[-NEWEST_LINES:])
        items.append(replace(item, text=newest))
    bundle = bundle_of(items, doing)
    if picture:
        bundle["text/html"] = picture + as_html(items)
    place.show(bundle)


def show_source(states: Mapping[int, RankStatus], cell: str) -> None:
    """In a notebook, show the source lines at which the ranks of a cell were.

    The ranks stand beside them.

    Args:
        states: what the ranks did, by rank.
        cell: the text of a %%px cell; "" for a function.
    """
    if notebook_shell() is None:
        return
    marked = marked_source(states, cell)
    if not marked:
        return
    markup = source_html(marked, lambda ranks: chips(tuple(ranks)))
    publish({"text/plain": source_text(marked), "text/html": markup})


def bundle_of(items: Sequence[Item], headline: str = "") -> dict[str, Any]:
    """A MIME bundle of plain items, below a headline if there is one."""
    text = as_text(items)
    markup = as_html(items)
    if headline:
        text = f"{headline}\n{text}" if items else headline
        markup = f"<b>{html.escape(headline)}</b>{markup}"
    return {"text/plain": text, "text/html": markup}


def _rich_bundle(item: Item) -> dict[str, Any]:
    """The MIME bundle of a rich item, with the names of its ranks where there is a place."""
    bundle = dict(item.data or {})
    label = item.label
    bundle["text/plain"] = f"{label} {item.text}"
    if "text/html" in bundle:
        bundle["text/html"] = chips(item.ranks) + label + bundle["text/html"]
    if "text/markdown" in bundle:
        bundle["text/markdown"] = f"{label}\n\n{bundle['text/markdown']}"
    return bundle


class Place:
    """An output of the notebook's cell that changes while a person watches.

    Elsewhere only the final one is shown.
    """

    def __init__(self) -> None:
        self._handle: Any = None  # of the output, while it may change

    def show(self, bundle: dict[str, Any]) -> None:
        """Show a MIME bundle in place of the one before."""
        if notebook_shell() is not None and somebody_watches():
            self._handle = publish(bundle, handle=True, update=self._handle)

    def leave(self, bundle: dict[str, Any]) -> None:
        """Show the final output in place of what was shown until now.

        Outside a notebook it is text on stdout.
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
