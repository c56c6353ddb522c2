"""The live picture that a person sees while a cell runs: what each rank does, and for whom it waits.

Runs on the notebook's kernel, called by cell.py.
"""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping
from typing import Any

from distlab.diagnosis import report
from distlab.diagnosis.proof import need
from distlab.notebook.display import WRAPPED
from distlab.wire.messages import COMMUNICATING, COMPUTING, IDLE, SILENT, RankStatus

# of the live picture: ranks, the time that it shows, and how wide
LANES, LANE_SECONDS, LANE_WIDTH = 16, 12.0, 240
ARROWS = 64 + LANE_WIDTH + 4  # where they begin
OUTLINE = 'stroke="currentColor" stroke-opacity="0.65"'  # of a lane's bars
# how opaque a lane is; other times leave a gap
LOOKS = {COMPUTING: 1, COMMUNICATING: 0.3, SILENT: 0.6}


class Live:
    """The picture of ranks at work: a lane for each, its last seconds, what it does now, and for
    whom it waits.
    """

    def __init__(self) -> None:
        # by rank: since when, what it does, in words, in which call
        self._runs: dict[int, list[tuple[Any, ...]]] = {}

    def look(self, now: float, states: Mapping[int, RankStatus]) -> None:
        """Remember what ranks do `now`, in seconds after the cell's beginning."""
        for rank, state in states.items():
            rests = state.sleeping or state.awaiting or state.paused
            run = (IDLE if rests else state.doing, report.activity(state), state.fingerprint[-2:-1])
            before = self._runs.setdefault(rank, [(0.0, *run)])
            if before[-1][1:] != run:
                before.append((now, *run))

    def picture(
        self, now: float, states: Mapping[int, RankStatus], megabytes: Mapping[int, float]
    ) -> str:
        """The picture as HTML: an SVG of lanes and arrows, and words for each rank, below it in a
        narrow pane.
        """
        ranks = sorted(self._runs)[:LANES]
        middle = {rank: 18 * place + 9 for place, rank in enumerate(ranks)}
        shapes, words = [], []
        for rank, y in middle.items():
            shapes.append(f'<text x="0" y="{y + 4}">rank {rank}</text>')
            shapes += self._bars(rank, y, now)
            shapes += self._arrows(rank, states, middle)
            _, _, doing, _ = self._runs[rank][-1]
            memory = f" · {megabytes[rank]:.0f} MB" if rank in megabytes else ""
            words.append(
                (rank, html.escape(f"{doing} · {now - self._runs[rank][-1][0]:.0f} s{memory}"))
            )
        more = (
            f"<div>and {len(self._runs) - LANES} more ranks</div>"
            if len(self._runs) > LANES
            else ""
        )
        keys = "full: computing, pale: waiting for a rank, none: sleeping or done; an arrow leads to the rank awaited"
        size = f'width="{ARROWS + 30}" height="{18 * len(ranks)}"'
        style = 'style="flex:none;font:12px monospace;fill:currentColor;color:inherit"'
        # its words stand beside it
        name = f"<title>what each rank did in the last {LANE_SECONDS:.0f} seconds</title>"
        lanes = f'<svg role="img" {size} {style}>{name}{"".join(shapes)}</svg>'
        rows = "".join(
            f"<div><b>rank {rank}</b> <span>{doing}</span></div>" for rank, doing in words
        )
        texts = f'<div style="font:12px/18px monospace;{WRAPPED}">{rows}</div>'
        both = f'<div style="display:flex;flex-wrap:wrap;gap:2px 12px">{lanes}{texts}</div>'
        return f"<b>{now:.0f} s</b> <small>({keys})</small>{both}{more}"

    def _bars(self, rank: int, y: int, now: float) -> Iterator[str]:
        """What a rank did in the last seconds; the outline has a contrast that pale colours do not
        have.
        """
        from distlab.plotting.style import rank_color

        begin, scale, runs = (
            max(0.0, now - LANE_SECONDS),
            LANE_WIDTH / LANE_SECONDS,
            self._runs[rank],
        )
        ends = [since for since, *_ in runs[1:]] + [now]
        for (since, doing, *_), end in zip(runs, ends, strict=True):
            opacity = LOOKS.get(doing, 0)
            if end <= begin or not opacity:
                continue
            left, width = 64 + scale * max(0.0, since - begin), scale * (end - max(since, begin))
            look = f'fill="{rank_color(rank)}" fill-opacity="{opacity}" {OUTLINE}'
            yield f'<rect x="{left:.1f}" y="{y - 6}" width="{width:.1f}" height="12" {look}/>'

    def _arrows(
        self, rank: int, states: Mapping[int, RankStatus], middle: Mapping[int, int]
    ) -> Iterator[str]:
        """From a rank to those that it waits for, by the height of each one's lane."""
        from distlab.plotting.style import rank_color

        awaited = need(states[rank], states) if rank in states else None
        color, y = rank_color(rank), middle[rank]
        for other in (middle[one] for one in (awaited.ranks if awaited else ()) if one in middle):
            curve = f"M{ARROWS} {y}C{ARROWS + 26} {y} {ARROWS + 26} {other} {ARROWS + 6} {other}"
            head = f"{ARROWS},{other} {ARROWS + 8},{other - 4} {ARROWS + 8},{other + 4}"
            yield f'<path d="{curve}" fill="none" stroke="{color}" stroke-width="2"/>'
            yield f'<polygon points="{head}" fill="{color}" {OUTLINE}/>'
