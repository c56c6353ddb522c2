"""The live picture that a person sees while a cell runs: what ranks do, and whom they wait for.

Runs on the notebook's kernel, called by cell.py.
"""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from distlab.diagnosis import report
from distlab.diagnosis.proof import need_of
from distlab.notebook import seconds
from distlab.notebook.display import WRAPPED_CSS
from distlab.wire.messages import COMMUNICATING, COMPUTING, IDLE, SILENT, RankStatus

LANES = 16  # ranks that are drawn, at most
LANE_SECONDS = 12.0  # the time that a lane shows
LANE_HEIGHT = 18
LANE_WIDTH = 240
LANE_LEFT = 64  # where lanes begin, after the names of the ranks
ARROWS = LANE_LEFT + LANE_WIDTH + 4  # where arrows begin
BAR_OUTLINE = 'stroke="currentColor" stroke-opacity="0.65"'  # of a lane's bars
# how opaque a lane is; other times leave a gap
OPACITIES = {COMPUTING: 1, COMMUNICATING: 0.3, SILENT: 0.6}
HOW_TO_READ = (
    "full: computing, pale: waiting for a rank, none: sleeping or done; "
    "an arrow leads to the rank awaited"
)


@dataclass(frozen=True)
class Run:
    """What a rank did for some time.

    Attributes:
        since: seconds after the cell's beginning.
        doing: a word of wire/messages.py, IDLE for one that rests, too.
        words: the same for a person.
        activity: as of `RankStatus`: other calls that read alike have another.
    """

    since: float
    doing: str
    words: str
    activity: int

    def goes_on_as(self, other: Run) -> bool:
        """Whether the other one is the same, seen later."""
        return replace(other, since=self.since) == self


class MemoryWatch:
    """The memory of a cell's ranks, which is looked at rarely.

    A process takes long to add up the pages that it shares.

    Args:
        ask: returns megabytes by rank, of the ranks that answer.
    """

    def __init__(self, ask: Callable[[], dict[int, float]]):
        self._ask = ask
        self._asked = -math.inf
        self._megabytes: dict[int, float] = {}

    def look(self, now: float) -> dict[int, float]:
        """Megabytes by rank at the last look; of a rank that did not answer, at an earlier one."""
        if now - self._asked >= seconds.MEMORY_AGAIN:
            self._asked = now
            self._megabytes |= self._ask()
        return self._megabytes


class Live:
    """The picture of ranks at work: a lane for each, with its last seconds, and words beside it.

    Args:
        ask_memory: returns megabytes by rank, of the ranks that answer.
    """

    def __init__(self, ask_memory: Callable[[], dict[int, float]]):
        self._memory = MemoryWatch(ask_memory)
        self._runs: dict[int, list[Run]] = {}  # by rank, in the order of time

    def look(self, now: float, states: Mapping[int, RankStatus]) -> None:
        """Remember what ranks do `now`, in seconds after the cell's beginning."""
        for rank, state in states.items():
            rests = state.sleeping or state.awaiting or state.paused
            doing = IDLE if rests else state.doing
            words = report.activity(state)
            if rank not in self._runs:
                self._runs[rank] = [Run(0.0, doing, words, state.activity)]
                continue
            run = Run(now, doing, words, state.activity)
            if not self._runs[rank][-1].goes_on_as(run):
                self._runs[rank].append(run)

    def picture(self, now: float, states: Mapping[int, RankStatus]) -> str:
        """Draw an SVG of lanes and arrows, and words for each rank, which a narrow pane has below.

        Args:
            now: seconds after the cell's beginning.
            states: of the ranks at the last look.

        Returns:
            HTML.
        """
        middles = {}
        for place, rank in enumerate(sorted(self._runs)[:LANES]):
            middles[rank] = LANE_HEIGHT * place + LANE_HEIGHT // 2
        megabytes = self._memory.look(now)
        shapes = []
        rows = []
        for rank, y in middles.items():
            shapes.append(f'<text x="0" y="{y + 4}">rank {rank}</text>')
            shapes += self._bars(rank, y, now)
            shapes += _arrows(rank, states, middles)
            words = html.escape(self._words(rank, now, megabytes))
            rows.append(f"<div><b>rank {rank}</b> <span>{words}</span></div>")
        texts = f'<div style="font:12px/18px monospace;{WRAPPED_CSS}">{"".join(rows)}</div>'
        both = _svg(shapes, height=LANE_HEIGHT * len(middles)) + texts
        more = ""
        if len(self._runs) > LANES:
            more = f"<div>and {len(self._runs) - LANES} more ranks</div>"
        return (
            f"<b>{now:.0f} s</b> <small>({HOW_TO_READ})</small>"
            f'<div style="display:flex;flex-wrap:wrap;gap:2px 12px">{both}</div>{more}'
        )

    def _words(self, rank: int, now: float, megabytes: Mapping[int, float]) -> str:
        """What a rank does now, for how long, and its memory, as plain text."""
        run = self._runs[rank][-1]
        words = f"{run.words} · {now - run.since:.0f} s"
        if rank in megabytes:
            words += f" · {megabytes[rank]:.0f} MB"
        return words

    def _bars(self, rank: int, y: int, now: float) -> Iterator[str]:
        """Draw what a rank did in the last seconds.

        The outline has a contrast that pale colours do not have.
        """
        from distlab.plotting.style import rank_color

        begin = max(0.0, now - LANE_SECONDS)
        scale = LANE_WIDTH / LANE_SECONDS
        runs = self._runs[rank]
        ends = [run.since for run in runs[1:]]
        ends.append(now)
        for run, end in zip(runs, ends, strict=True):
            opacity = OPACITIES.get(run.doing, 0)
            if end <= begin or not opacity:
                continue
            shown_since = max(run.since, begin)
            left = LANE_LEFT + scale * (shown_since - begin)
            width = scale * (end - shown_since)
            place = f'x="{left:.1f}" y="{y - 6}" width="{width:.1f}" height="12"'
            look = f'fill="{rank_color(rank)}" fill-opacity="{opacity}" {BAR_OUTLINE}'
            yield f"<rect {place} {look}/>"


def _svg(shapes: Sequence[str], height: int) -> str:
    """A drawing of these shapes, with a title for those who do not see it."""
    # a short title is enough: the words beside the drawing say the rest
    title = f"<title>what each rank did in the last {LANE_SECONDS:.0f} seconds</title>"
    size = f'width="{ARROWS + 30}" height="{height}"'
    style = 'style="flex:none;font:12px monospace;fill:currentColor;color:inherit"'
    return f'<svg role="img" {size} {style}>{title}{"".join(shapes)}</svg>'


def _arrows(
    rank: int, states: Mapping[int, RankStatus], middles: Mapping[int, int]
) -> Iterator[str]:
    """Draw arrows from a rank to those that it waits for.

    Args:
        rank: the one that waits.
        states: of the ranks.
        middles: the height of each rank's lane.
    """
    from distlab.plotting.style import rank_color

    awaited = need_of(states[rank], states) if rank in states else None
    if awaited is None:
        return
    color = rank_color(rank)
    y = middles[rank]
    for other in awaited.ranks:
        if other not in middles:
            continue
        end = middles[other]
        bend = ARROWS + 26
        curve = f"M{ARROWS} {y}C{bend} {y} {bend} {end} {ARROWS + 6} {end}"
        head = f"{ARROWS},{end} {ARROWS + 8},{end - 4} {ARROWS + 8},{end + 4}"
        yield f'<path d="{curve}" fill="none" stroke="{color}" stroke-width="2"/>'
        yield f'<polygon points="{head}" fill="{color}" {BAR_OUTLINE}/>'
