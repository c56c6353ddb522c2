"""`Trace`: what the ranks of a cluster did while it was recorded, on one clock, and where the time
of each went.

Made by `cluster.trace()` and `%%px --trace`, on the notebook's kernel. Times are in seconds.
"""

from __future__ import annotations

import io
import json
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from distlab.arguments import refuse
from distlab.errors import ClusterError
from distlab.tables import Table, count, format_seconds
from distlab.traces.events import COMMUNICATING, COMPUTING, Contents, Event, Offset, moments, pack
from distlab.wire.recorded import TorchRow
from distlab.words import grouped, rank_list

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HEADS = ("op", "ranks", "bytes", "calls", "total", "waiting", "median")
CONTENTS = ("events", "messages", "collectives", "rows", "missing", "offsets")
# in a file for Perfetto, number of the first thread's track; those of calls count up from 0
THREADS = 100
DETAILS = ("group", "peer", "tag", "num_bytes", "waiting", "failed")  # of an event in such a file
SHARPNESS = 1.5  # pixels of the picture for each pixel of a page


class Shares(NamedTuple):
    """Seconds of one rank between the first and the last event of a trace; together they are all of
    that time.

    Args:
        compute: it computed, and none of its data travelled.
        hidden: it computed while its data travelled: overlap, which costs no time.
        communicate: data travelled and it did not compute: exposed communication.
        wait: it did not compute, and a partner had not arrived yet.
        other: none of these: plain Python, or nothing.
    """

    compute: float
    hidden: float
    communicate: float
    wait: float
    other: float


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
        self.ranks, self.simulated = list(ranks), simulated
        self.recording = True

    def finish(
        self, contents: Contents, missing: dict[int, str], offsets: dict[int, Offset] | None = None
    ) -> None:
        """Take what happened, as read.py or virtual.py found it, and why nothing was recorded on
        some ranks.
        """
        self.missing, self.offsets = missing, offsets or {}
        self.events, self.messages, self.collectives, self.rows = contents
        self.recording = False

    # --- what it holds ---

    def __getattr__(self, name: str) -> Any:
        """What exists only after the trace has ended: ClusterError until then."""
        if name in CONTENTS:
            raise ClusterError(
                "This trace is still being recorded. Look at it after the with block."
            )
        raise AttributeError(f"a Trace has no attribute {name!r}")

    @property
    def seconds(self) -> float:
        """From the first start to the last end."""
        return max((event.end for event in self.events), default=0.0)

    # --- how it is shown ---

    def plot(self, window: tuple[float, float] | None = None) -> Figure:
        """Draw what each rank did when, and its messages: a space-time diagram.

        A bar of communication is hatched while a partner that the call needs has not arrived. Where
        nothing is drawn, the rank ran plain Python or was idle. gloo reports that an irecv is
        complete only when wait() is called.

        Runs on: the notebook's kernel.

        Args:
            window: first and last millisecond to draw; None for all.

        Returns:
            The figure; a notebook shows it if it is the last value of a cell.

        Raises:
            ArgumentError: the window is not two times.
            ClusterError: the trace is still being recorded.
        """
        from distlab.plotting import space_time  # matplotlib takes its time

        contents, last = (self.events, self.messages, self.collectives), 1e3 * self.seconds
        if window is not None and not (
            window[0] < window[1] and window[1] > 0 and window[0] < last
        ):
            rule = f"two times (start, end) in milliseconds, start before end, that overlap 0 to {last:.4g}"
            refuse(
                "window", rule, window, f"Call plot(window=({0.25 * last:.3g}, {0.5 * last:.3g}))."
            )
        view = window and (window[0] / 1e3, window[1] / 1e3)
        return space_time(self.ranks, *contents, view, self._headline(), self.notes())

    def table(self) -> Table:
        """Add up calls with the same op, ranks and bytes; those that took longest first.

        Runs on: the notebook's kernel.
        """

        def what(event: Event) -> tuple[str, str, str]:
            members = ("any" if rank is None else str(rank) for rank in event.ends)
            ranks = (
                " → ".join(members) if len(event.ends) == 2 else ", ".join(map(str, event.group))
            )
            op = event.kind if event.kind in COMPUTING else event.op
            return op, ranks, "" if event.num_bytes is None else f"{event.num_bytes:,}"

        alike = grouped((what(event), event) for event in self.events if event.kind != "wait")
        rows = []
        for calls, found in sorted(
            alike.items(), key=lambda item: -sum(event.seconds for event in item[1])
        ):
            seconds = [event.seconds for event in found]
            times = (
                sum(seconds),
                sum(event.waiting for event in found),
                statistics.median(seconds),
            )
            rows.append(
                (*calls, f"{len(found):,}", *(format_seconds(time).strip() for time in times))
            )
        return Table(self._headline(), HEADS, tuple(rows), "llrrrrr")

    def shares(self) -> dict[int, Shares]:
        """Where the time of each rank went, by rank: computing, communicating, waiting for others.

        Runs on: the notebook's kernel. `plotting.time_shares` draws it.
        """
        return {rank: shares_of(self.events, rank) for rank in self.ranks}

    def to_chrome(self, path: str | Path) -> Path:
        """Write a file that Perfetto (ui.perfetto.dev) opens, with a process for each rank, and
        arrows for messages.

        Runs on: the notebook's kernel.

        Args:
            path: of the file.
        """
        Path(path).write_text(json.dumps({"traceEvents": [*chrome(self)], "displayTimeUnit": "ms"}))
        return Path(path)

    def notes(self) -> list[str]:
        """What a reader must know: on which ranks nothing was recorded, and why."""
        by_reason = grouped((why, rank) for rank, why in sorted(self.missing.items()))
        notes = [
            f"Nothing was recorded on {rank_list(ranks)}: {why}."
            for why, ranks in by_reason.items()
        ]
        outside = sum(not message.traced for message in self.messages)
        if outside:
            notes.append(f"{count(outside, 'message')} to or from ranks that were not traced.")
        if self.offsets:
            worst = format_seconds(max(offset.error for offset in self.offsets.values())).strip()
            notes.append(
                f"The clocks of {rank_list([*self.offsets])} are estimated, to within {worst}."
            )
        return notes

    def _headline(self) -> str:
        ranks = count(len(self.ranks), "rank")
        if not self.events:
            return f"{ranks}, nothing recorded" + ("" if self.missing else ": torch was not called")
        lost = sum(message.traced and not message.matched for message in self.messages)
        # which names the ranks of the whole cluster
        some, where = f": {len(self.ranks)}", self.simulated
        where = where if f"{some} rank" in where else where.replace(":", f"{some} of", 1)
        words = [
            where or ranks,
            count(len(self.messages), "message"),
            f"{lost:,} without a partner",
        ]
        words += [count(len(self.collectives), "collective"), format_seconds(self.seconds).strip()]
        return ", ".join(word for word in words if not word.startswith("0 "))

    def __repr__(self) -> str:
        if self.recording:
            return f"Trace: {rank_list(self.ranks)}, still being recorded"
        return "\n".join([f"Trace: {self._headline()}", *self.notes()])

    def _repr_mimebundle_(
        self, include: Any = None, exclude: Any = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """For a person, the picture as HTML with an alternative text; see plotting/drawing.py."""
        from distlab.plotting.drawing import is_for_a_person, with_alt

        if not is_for_a_person() or (drawn := self._repr_png_()) is None:
            return {}, {}
        png, about = drawn
        return {"text/plain": repr(self), "image/png": png, **with_alt(drawn, repr(self))}, {
            "image/png": about
        }

    def _repr_png_(self) -> tuple[bytes, dict[str, Any]] | None:
        if self.recording or not self.events:
            return None
        from PIL import Image  # matplotlib comes with it

        figure, drawn, packed = self.plot(), io.BytesIO(), io.BytesIO()
        # the layout is known by now, and savefig would find it again
        figure.set_layout_engine("none")
        figure.savefig(drawn, dpi=figure.dpi * SHARPNESS)
        # a third of the bytes
        Image.open(drawn).quantize(method=Image.Quantize.FASTOCTREE).save(packed, "png")
        width, height = (round(inches * figure.dpi) for inches in figure.get_size_inches())
        return packed.getvalue(), {"width": width, "height": height, "alt": repr(self)}


def shares_of(events: Sequence[Event], rank: int) -> Shares:
    """Where the time of a rank went.

    Runs on: anywhere.
    """
    own = [
        event
        for event in events
        if event.rank == rank and event.kind in (*COMPUTING, *COMMUNICATING)
    ]
    seconds: Counter[str] = Counter()
    for since, until, going in moments(part for event in own for part in event.parts):
        alone = "communicate" if "move" in going else "wait"
        computes = "hidden" if "move" in going else "compute"
        seconds[alone if going.isdisjoint(COMPUTING) else computes] += until - since
    first = min((event.start for event in events), default=0.0)
    last = max((event.end for event in events), default=0.0)
    seconds["other"] = max(0.0, last - first - seconds.total())  # and not -0 %, from rounding
    return Shares(*(seconds[name] for name in Shares._fields))


# --- a file for Perfetto ---


def chrome(trace: Trace) -> Iterator[dict[str, Any]]:
    """What a file for Perfetto contains, with times in microseconds: a process for each rank.

    Each rank has a track for its calls, further ones for calls that overlap others or are in
    flight, and one for each thread with the profiler's own rows. Messages are arrows. Source:
    "Trace Event Format", the Chromium project.
    """
    tracks: dict[Event, int] = {}
    for rank in trace.ranks:
        yield {"ph": "M", "pid": rank, "name": "process_name", "args": {"name": f"rank {rank}"}}
        yield from (
            _slice(rank, THREADS + row.thread, row.name, row) for row in trace.rows.get(rank, ())
        )
        own = [event for event in trace.events if event.rank == rank]
        calls = pack([event for event in own if event.blocking]) + pack(
            [event for event in own if not event.blocking]
        )
        tracks |= {event: track for track, row in enumerate(calls) for event in row}
    for event, track in tracks.items():
        name = f"wait for {event.op}" if event.kind == "wait" else event.op
        args = {detail: getattr(event, detail) for detail in DETAILS}
        yield _slice(event.rank, track, name, event) | {"args": args}
    for number, message in enumerate(message for message in trace.messages if message.matched):
        for phase, event, time in (
            ("s", message.send, message.left),
            ("f", message.recv, message.arrived),
        ):
            inside = min(max(time, event.start), event.end - 1e-9)
            arrow = {"ph": phase, "bp": "e", "cat": "message", "name": "message", "id": number}
            yield {**arrow, "pid": event.rank, "tid": tracks[event], "ts": inside * 1e6}


def _slice(rank: int, track: int, name: str, what: Event | TorchRow) -> dict[str, Any]:
    times = {"ts": what.start * 1e6, "dur": (what.end - what.start) * 1e6}
    return {"ph": "X", "pid": rank, "tid": track, "name": name, **times}
