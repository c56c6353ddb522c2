"""`Trace`: what the ranks of a cluster did while it was recorded, and where their time went.

Made by `cluster.trace()` and `%%px --trace`, on the notebook's kernel. Times are in seconds, on one
clock.
"""

from __future__ import annotations

import io
import json
import statistics
from collections.abc import Iterable, Sequence
from math import isfinite
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distlab.arguments import refuse, wrong
from distlab.errors import ClusterError
from distlab.tables import Table, count, format_seconds
from distlab.traces.events import COMPUTING_KINDS, Contents, Event, Offset
from distlab.traces.perfetto import perfetto_items
from distlab.traces.shares import Shares, shares_of
from distlab.traces.steps import step_of
from distlab.words import grouped, rank_list

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TABLE_HEADS = ("op", "ranks", "bytes", "calls", "total", "waiting", "median")
# attributes that exist only once the trace has ended
CONTENTS = ("events", "messages", "collectives", "rows", "missing", "offsets")


class Trace:
    """What some ranks did, from torch's profiler on each of them.

    Inside `with cluster.trace() as trace:` it is being recorded; afterwards it can be looked at. A
    notebook shows it as its picture.

    Attributes:
        ranks: those that were recorded.
        recording: whether they still are.
        simulated: on which machines, in words, if times are virtual; "" for what really happened.
        missing: why nothing was recorded on a rank, in words, by rank.
        offsets: how far a rank's clock was ahead of the notebook's, for ranks on other machines;
            their times are corrected by it.
        events: what the ranks did, in the order in which it began.
        messages: point-to-point messages in the order in which they left, those without a partner
            included.
        collectives: in the order in which they began.
        rows: the profiler's own, by rank.
    """

    def __init__(self, ranks: Sequence[int], simulated: str = ""):
        self.ranks = list(ranks)
        self.simulated = simulated
        self.recording = True

    def finish(
        self, contents: Contents, missing: dict[int, str], offsets: dict[int, Offset] | None = None
    ) -> None:
        """Take what happened, as read.py or virtual.py found it.

        Args:
            contents: what happened.
            missing: why nothing was recorded on a rank, by rank.
            offsets: of clocks, by rank.
        """
        self.missing = missing
        self.offsets = offsets or {}
        self.events, self.messages, self.collectives, self.rows = contents
        self.recording = False

    # --- what it holds ---

    def __getattr__(self, name: str) -> Any:
        """What exists only after the trace has ended: ClusterError until then."""
        if name in CONTENTS:
            message = "This trace is still being recorded. Look at it after the with block."
            raise ClusterError(message)
        raise AttributeError(f"a Trace has no attribute {name!r}")

    @property
    def seconds(self) -> float:
        """From the first start to the last end."""
        return max((event.end for event in self.events), default=0.0)

    # --- how it is shown ---

    def plot(self, window: tuple[float, float] | None = None, *, step: int | None = None) -> Figure:
        """Draw what each rank did when, and its messages: a space-time diagram.

        A bar of communication is hatched while a partner that the call needs has not arrived. Where
        nothing is drawn, the rank ran plain Python or was idle. gloo reports that an irecv is
        complete only when wait() is called.

        Runs on: the notebook's kernel.

        Args:
            window: first and last millisecond to draw; None for all.
            step: of a training, which step to draw: 0 is the first one, and -1 the last one that
                all ranks have finished. A step begins where the optimizer's step before it ends,
                and ends with its own.

        Returns:
            The figure; a notebook shows it if it is the last value of a cell.

        Raises:
            ArgumentError: the window is not two times, there is no such step, or both are given.
            ClusterError: the trace is still being recorded.
        """
        from distlab.plotting.timelines import space_time  # matplotlib takes its time

        view = None
        title = self._headline()
        if step is not None:
            if window is not None:
                wrong("Give plot either a window or a step, as both say what to draw.")
            chosen = step_of(step, self.events, self.rows)
            view = chosen.window
            title += f", {chosen.name}"
        elif window is not None:
            first, last = self._checked(window)
            view = first / 1e3, last / 1e3
        return space_time(
            self.ranks,
            self.events,
            messages=self.messages,
            collectives=self.collectives,
            window=view,
            title=title,
            notes=self.notes(),
        )

    def _checked(self, window: object) -> tuple[float, float]:
        """The two times of a window; refused if they show nothing of the trace."""
        end = 1e3 * self.seconds
        rule = (
            f"two times (start, end) in milliseconds, start before end, that overlap 0 to {end:.4g}"
        )
        advice = f"Call plot(window=({0.25 * end:.3g}, {0.5 * end:.3g}))."
        times = list(window) if isinstance(window, Iterable) else []
        are_numbers = all(isinstance(time, Real) for time in times)
        if len(times) != 2 or not are_numbers:
            refuse("window", rule, window, advice, wrong_type=True)
        first, last = times
        overlaps = first < last and last > 0 and first < end
        if not overlaps or not isfinite(first) or not isfinite(last):
            refuse("window", rule, window, advice)
        return first, last

    def table(self, *, step: int | None = None) -> Table:
        """Add up calls with the same op, ranks and bytes; those that took longest first.

        Runs on: the notebook's kernel.

        Args:
            step: only calls that began in this step, as for `plot`; None for all.

        Raises:
            ArgumentError: there is no such step.
        """
        title = self._headline()
        events = self.events
        if step is not None:
            chosen = step_of(step, self.events, self.rows)
            events = [event for event in events if chosen.has(event)]
            title += f", {chosen.name}"
        by_what: dict[tuple[str, str, str], list[Event]] = {}
        for event in events:
            if event.kind != "wait":
                by_what.setdefault(_what(event), []).append(event)
        longest_first = sorted(by_what.values(), key=_seconds_of_all, reverse=True)
        rows = [_row_of(alike) for alike in longest_first]
        return Table(title, TABLE_HEADS, tuple(rows), "llrrrrr")

    def shares(self) -> dict[int, Shares]:
        """Where the time of each rank went, by rank: computing, communicating, waiting for others.

        Runs on: the notebook's kernel. `plotting.time_shares` draws it.
        """
        return {rank: shares_of(self.events, rank) for rank in self.ranks}

    def to_chrome(self, path: str | Path) -> Path:
        """Write a file that Perfetto (ui.perfetto.dev) opens.

        It has a process for each rank, and arrows for messages.

        Runs on: the notebook's kernel.

        Args:
            path: of the file.
        """
        items = list(perfetto_items(self.ranks, self.events, self.messages, self.rows))
        file = Path(path)
        file.write_text(json.dumps({"traceEvents": items, "displayTimeUnit": "ms"}))
        return file

    def notes(self) -> list[str]:
        """What a reader must know: on which ranks nothing was recorded, and why."""
        by_reason = grouped((why, rank) for rank, why in sorted(self.missing.items()))
        notes = []
        for why, ranks in by_reason.items():
            notes.append(f"Nothing was recorded on {rank_list(ranks)}: {why}.")
        outside = len([message for message in self.messages if not message.traced])
        if outside > 0:
            notes.append(f"{count(outside, 'message')} to or from ranks that were not traced.")
        if self.offsets:
            clocks = f"The clocks of {rank_list([*self.offsets])}"
            largest = max(offset.error for offset in self.offsets.values())
            error = format_seconds(largest).strip()
            notes.append(f"{clocks} are estimated, to within {error}.")
        return notes

    def _headline(self) -> str:
        """The trace in one line: ranks or machines, what was recorded of them, how long it took."""
        ranks = count(len(self.ranks), "rank")
        if not self.events and self.missing:
            return f"{ranks}, nothing recorded"
        if not self.events:
            return f"{ranks}, nothing recorded: torch was not called"
        lost = [message for message in self.messages if message.traced and not message.matched]
        words = [self._machines() or ranks]
        if self.messages:
            words.append(count(len(self.messages), "message"))
        if lost:
            words.append(f"{len(lost):,} without a partner")
        if self.collectives:
            words.append(count(len(self.collectives), "collective"))
        words.append(format_seconds(self.seconds).strip())
        return ", ".join(words)

    def _machines(self) -> str:
        """The simulated machines in words, with how many of their ranks the trace has.

        All machines are "simulated: 8 ranks, 5 µs, 25 GB/s", as Cluster.simulated has it, and those
        of a trace of two ranks "simulated: 2 of 8 ranks, 5 µs, 25 GB/s".
        """
        traced = len(self.ranks)
        has_all_ranks = f": {traced} rank" in self.simulated
        if has_all_ranks:
            return self.simulated
        return self.simulated.replace(":", f": {traced} of", 1)

    def __repr__(self) -> str:
        if self.recording:
            return f"Trace: {rank_list(self.ranks)}, still being recorded"
        return "\n".join([f"Trace: {self._headline()}", *self.notes()])

    def _repr_mimebundle_(
        self, include: Any = None, exclude: Any = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """For a person, the picture as HTML with an alternative text; see plotting/drawing.py."""
        from distlab.plotting.drawing import is_for_a_person, with_alt

        if not is_for_a_person():
            return {}, {}
        drawn = self._repr_png_()
        if drawn is None:
            return {}, {}
        png, about = drawn
        words = repr(self)
        shown = {"text/plain": words, "image/png": png, **with_alt(drawn, words)}
        return shown, {"image/png": about}

    def _repr_png_(self) -> tuple[bytes, dict[str, Any]] | None:
        if self.recording or not self.events:
            return None
        from distlab.plotting.drawing import SHARPNESS

        figure = self.plot()
        # the layout is known by now, and savefig would find it again
        figure.set_layout_engine("none")
        drawn = io.BytesIO()
        figure.savefig(drawn, dpi=figure.dpi * SHARPNESS)
        width, height = figure.get_size_inches() * figure.dpi
        about = {"width": round(width), "height": round(height), "alt": repr(self)}
        return drawn.getvalue(), about


def _what(event: Event) -> tuple[str, str, str]:
    """What a row of the table adds up: calls with the same op, ranks and bytes, in words."""
    op = event.op
    if event.kind in COMPUTING_KINDS:
        op = event.kind
    if len(event.ends) == 2:
        src, dst = event.ends
        ranks = f"{_rank_in_words(src)} → {_rank_in_words(dst)}"
    else:
        ranks = ", ".join(map(str, event.group))
    num_bytes = ""
    if event.num_bytes is not None:
        num_bytes = f"{event.num_bytes:,}"
    return op, ranks, num_bytes


def _rank_in_words(rank: int | None) -> str:
    return "any" if rank is None else str(rank)


def _row_of(alike: Sequence[Event]) -> tuple[str, ...]:
    """A row of the table, see TABLE_HEADS; how long calls waited may be known of none of them."""
    waiting = ""
    if any(event.ready is not None for event in alike):
        waiting = format_seconds(sum(event.waiting for event in alike)).strip()
    median = statistics.median(event.seconds for event in alike)
    return (
        *_what(alike[0]),
        f"{len(alike):,}",
        format_seconds(_seconds_of_all(alike)).strip(),
        waiting,
        format_seconds(median).strip(),
    )


def _seconds_of_all(events: Sequence[Event]) -> float:
    return sum(event.seconds for event in events)
