"""Starting the recording of a trace on the ranks, ending it, and gathering what they recorded.

Runs on the notebook's kernel, called by cluster.py; rank/recording.py answers on the ranks.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from distlab.client import interrupts
from distlab.client.ranks import Ranks
from distlab.errors import ClusterError, DistlabError
from distlab.measure.trace import Trace
from distlab.rank import entry_points
from distlab.simulated.entry_points import settle

if TYPE_CHECKING:
    from distlab.client.cluster import Cluster

SECONDS = 30.0  # that a rank has to begin, and to tell what it recorded


@contextlib.contextmanager
def recorded(cluster: Cluster, targets: list[int]) -> Iterator[Trace]:
    """A trace of what some ranks do meanwhile; of a simulated cluster, whose ranks note anyway what they do, of all."""
    if cluster.last_trace is not None and cluster.last_trace.recording:
        raise ClusterError("This cluster is being traced already. End that trace first: leave its with block.")
    cluster.ranks.ready()
    recorder = Recorder(cluster.ranks, targets)
    if cluster.simulated:
        cluster.call(settle)  # what has happened before is left out
    else:
        recorder.start()
    cluster.last_trace = trace = Trace(targets, cluster.simulated)
    try:
        yield trace
    finally:
        if cluster.simulated:
            _finish_virtual(cluster, trace)
        else:
            recorder.finish(trace)


def _finish_virtual(cluster: Cluster, trace: Trace) -> None:
    try:
        trace.finish_virtual(cluster.call(settle)[0])
    except DistlabError as error:
        trace.finish_virtual(None, f"the simulated cluster does not answer ({type(error).__name__})")


class Recorder:
    """The recording on some ranks of a cluster; `missing` has, in words, why there is nothing of a rank."""

    def __init__(self, ranks: Ranks, targets: list[int]):
        self.ranks, self.targets = ranks, targets
        self.missing: dict[int, str] = {}

    def start(self) -> None:
        """Begin on every target, or on none.

        Raises:
            ClusterError: a rank cannot record, for example since it is being profiled already.
        """
        self._ask(self.targets, entry_points.start_recording)
        for rank, why in self.missing.items():
            self._ask({*self.targets} - {*self.missing}, entry_points.stop_recording)
            raise ClusterError(f"rank {rank} cannot be traced: {why}. End what keeps it, or call cluster.restart().")

    def finish(self, trace: Trace) -> None:
        """End the recording, and give the trace what was recorded, whatever happens meanwhile."""
        told: dict[int, Any] = {}
        try:
            told = self._ask(self.targets, entry_points.stop_recording)
        finally:
            recorded = {rank: what for rank, what in told.items() if what is not None}
            interrupted, replaced = "that was interrupted", "its process ended, and another took its place"
            for rank in {*self.targets} - {*recorded}:
                self.missing.setdefault(rank, replaced if rank in told else interrupted)
            trace.finish(recorded, self.missing)

    def _ask(self, ranks: Iterable[int], function: Callable[[], Any]) -> dict[int, Any]:
        """What the function returns on each rank that answers in time; why the others do not is in `missing`."""
        there = [rank for rank in ranks if self._is_there(rank)]
        if not there:
            return {}
        sent = self.ranks.send(there, function)
        with interrupts.allowed():
            told = sent.within(SECONDS)
        for rank in there:
            if rank not in told:
                self.missing[rank] = f"no answer came within {SECONDS:g} s"
            elif isinstance(error := told[rank], Exception):  # a RuntimeError is recording.py's own word
                self.missing[rank] = getattr(error, "evalue", f"{type(error).__name__}: {error}")
        return {rank: what for rank, what in told.items() if rank not in self.missing}

    def _is_there(self, rank: int) -> bool:
        if self.ranks.stopped:
            self.missing[rank] = "the cluster was stopped before the end of the trace"
        elif rank in self.ranks.lost or rank not in self.ranks.client.ids:
            self.missing[rank] = f"it {self.ranks.note_death(rank)}"
        return rank not in self.missing
