"""`Trace`: what the ranks of a cluster did while it was recorded, on one clock.

Made by `cluster.trace()` and `%%px --trace`, on the notebook's kernel.
"""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distlab.arguments import check_traced, check_window
from distlab.errors import ClusterError, rank_list
from distlab.timing import format_seconds
from distlab.trace.assemble import Contents, assemble
from distlab.trace.chrome import chrome
from distlab.trace.clocks import Offset
from distlab.trace.events import Collective, Event, Message
from distlab.trace.shares import Shares, shares_of
from distlab.trace.table import Table, tabulate

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHARPNESS = 1.5  # pixels of the picture for each pixel of a page


class Trace:
    """What some ranks did, from torch's profiler on each of them.

    Inside of `with cluster.trace() as trace:` it is being recorded; afterwards it can be looked at. In a notebook its
    repr is its picture.

    Attributes:
        ranks: those that were recorded.
        missing: why there is nothing of a rank, in words, by rank.
    """

    def __init__(self, ranks: Sequence[int]):
        self.ranks = list(ranks)
        self.missing: dict[int, str] = {}
        self._offsets: dict[int, Offset] = {}
        self._contents: Contents | None = None

    def finish(
        self,
        recorded: Mapping[int, Mapping[str, Any]],
        missing: Mapping[int, str] | None = None,
        offsets: Mapping[int, Offset] | None = None,
    ) -> None:
        """Take what the ranks recorded, as tracing.stop tells it, by rank."""
        self.missing, self._offsets = dict(missing or {}), dict(offsets or {})
        self._contents = assemble(recorded, self._offsets)

    # --- what it holds ---

    @property
    def recording(self) -> bool:
        """Whether it is still being recorded."""
        return self._contents is None

    @property
    def contents(self) -> Contents:
        """All that it holds; ClusterError while it is being recorded."""
        if self._contents is None:
            raise ClusterError("This trace is still being recorded. Look at it after the with block.")
        return self._contents

    @property
    def events(self) -> list[Event]:
        """What the ranks did, in the order of the starts."""
        return self.contents.events

    @property
    def messages(self) -> list[Message]:
        """Point-to-point messages in the order in which they left, those without a partner included."""
        return self.contents.messages

    @property
    def collectives(self) -> list[Collective]:
        """Collectives, in the order in which they began."""
        return self.contents.collectives

    @property
    def seconds(self) -> float:
        """From the first start to the last end."""
        return max((event.end for event in self.events), default=0.0)

    @property
    def offsets(self) -> dict[int, Offset]:
        """How much each rank's clock was ahead of the trace's, by which its times are corrected.

        Ranks on one machine share its clock: nothing is estimated there, and their offset is 0.
        """
        return {rank: self._offsets.get(rank, Offset()) for rank in self.ranks}

    # --- how it is shown ---

    def plot(self, window: tuple[float, float] | None = None, ranks: Sequence[int] | None = None) -> Figure:
        """Draw what each rank did when, and its messages: a space-time diagram.

        A bar of communication is hatched while a partner that the call needs has not come. Where nothing is drawn, the
        rank ran plain Python, or nothing. gloo tells that an irecv is complete when wait() is called, not before.

        Runs on: client.

        Args:
            window: first and last millisecond to draw; all of it without one.
            ranks: the lanes, from the top; all that were recorded without them.

        Returns:
            The figure; a notebook shows it where it is the last value of a cell.

        Raises:
            ArgumentError: the window is not two times, or a rank was not recorded.
            ClusterError: the trace is still being recorded.
        """
        from distlab.plotting import space_time

        events, view = self.events, None
        if window is not None:
            start, end = check_window(window, 1e3 * self.seconds)
            view = (start / 1e3, end / 1e3)
        chosen = check_traced(ranks, self.ranks)
        return space_time(chosen, events, self.messages, self.collectives, view, self._headline(), self.notes())

    def table(self) -> Table:
        """Add up calls that are alike: op, group, peers, bytes, calls, total, waiting and median time.

        Runs on: client.
        """
        return tabulate(self.events, self.ranks)

    def shares(self) -> dict[int, Shares]:
        """Where the time of each rank went, by rank: computing, communicating, waiting for others.

        Runs on: client. `plotting.time_shares` draws it.
        """
        return {rank: shares_of(self.events, rank) for rank in self.ranks}

    def to_chrome(self, path: str | Path) -> Path:
        """Write a file that Perfetto (ui.perfetto.dev) opens, with a process for each rank, and arrows for messages.

        Runs on: client.

        Args:
            path: of the file; one that ends in ".gz" is compressed.
        """
        path = Path(path)
        text = json.dumps(chrome(self.contents, self.ranks))
        path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
        return path

    def notes(self) -> list[str]:
        """What has to be known of it: ranks of which nothing is there, and clocks that had to be estimated."""
        by_reason: dict[str, list[int]] = {}
        for rank, why in sorted(self.missing.items()):
            by_reason.setdefault(why, []).append(rank)
        said = [f"Nothing is known of {rank_list(ranks)}: {why}." for why, ranks in by_reason.items()]
        outside = sum(not message.traced for message in self.messages)
        if outside:
            said.append(f"{_count(outside, 'message')} to or from ranks of which nothing is known.")
        estimated = [rank for rank, offset in self._offsets.items() if offset != Offset()]
        if estimated:
            worst = format_seconds(max(self._offsets[rank].error for rank in estimated)).strip()
            said.append(f"The clocks of {rank_list(estimated)} are estimated, right to within {worst}.")
        return said

    def _headline(self) -> str:
        ranks = f"{len(self.ranks)} rank{'s' if len(self.ranks) > 1 else ''}"
        if not self.events:
            return f"{ranks}, nothing recorded" + ("" if self.missing else ": nothing of torch's was called")
        lost = sum(message.traced and not message.matched for message in self.messages)
        counts = {"message": len(self.messages), "without a partner": lost, "collective": len(self.collectives)}
        words = [_count(number, name) for name, number in counts.items() if number]
        return ", ".join([ranks, *words, format_seconds(self.seconds).strip()])

    def __repr__(self) -> str:
        if self.recording:
            return f"Trace: {rank_list(self.ranks)}, still being recorded"
        return "\n".join([f"Trace: {self._headline()}", *self.notes()])

    def _repr_png_(self) -> tuple[bytes, dict[str, int]] | None:
        if self.recording or not self.events:
            return None
        from PIL import Image  # matplotlib comes with it

        figure, drawn, packed = self.plot(), io.BytesIO(), io.BytesIO()
        figure.savefig(drawn, dpi=figure.dpi * SHARPNESS)
        Image.open(drawn).quantize(method=Image.Quantize.FASTOCTREE).save(packed, "png")  # a third of the bytes
        width, height = (round(inches * figure.dpi) for inches in figure.get_size_inches())
        return packed.getvalue(), {"width": width, "height": height}


def _count(number: int, name: str) -> str:
    return f"{number:,} {name}{'s' if number > 1 and ' ' not in name else ''}"
