"""Starting the recording of a trace on the ranks, ending it, and gathering what they recorded.

Runs on the notebook's kernel, called by cluster.py; rank/recording.py answers on the ranks.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from distlab.client import interrupts
from distlab.client.cluster import Cluster
from distlab.client.ranks import Ranks
from distlab.errors import ClusterError, DistlabError
from distlab.rank import entry
from distlab.simulated.entry_points import settle
from distlab.traces import read, virtual
from distlab.traces.trace import Trace

SECONDS = 30.0  # that a rank has to begin, and to tell what it recorded


@contextlib.contextmanager
def recorded(cluster: Cluster, targets: list[int]) -> Iterator[Trace]:
    """A trace of what some ranks do meanwhile; of a simulated cluster, whose ranks note anyway what they do, of all."""
    if cluster.last_trace is not None and cluster.last_trace.recording:
        raise ClusterError("This cluster is being traced already. End that trace first: leave its with block.")
    ranks = cluster.ranks
    ranks.ready(targets)
    if cluster.simulated:
        cluster.call(settle)  # what has happened before is left out
    else:
        _start(ranks, targets)
    cluster.last_trace = trace = Trace(targets, cluster.simulated)
    try:
        yield trace
    finally:
        if cluster.simulated:
            _finish_virtual(cluster, trace)
        else:
            _finish(ranks, targets, trace)


def _finish_virtual(cluster: Cluster, trace: Trace) -> None:
    try:
        trace.finish(virtual.read(cluster.call(settle)[0], trace.ranks), {})
    except DistlabError as error:
        why = f"the simulated cluster does not answer ({type(error).__name__})"
        trace.finish(read.read({}), dict.fromkeys(trace.ranks, why))


def _start(ranks: Ranks, targets: list[int]) -> None:
    """Begin on every target, or on none: ClusterError when one cannot, for example since it is being profiled."""
    _, missing = _ask(ranks, targets, entry.start_recording)
    for rank, why in missing.items():
        _ask(ranks, {*targets} - {*missing}, entry.stop_recording)
        raise ClusterError(f"rank {rank} cannot be traced: {why}. End what keeps it, or call cluster.restart().")


def _finish(ranks: Ranks, targets: list[int], trace: Trace) -> None:
    """End the recording, and give the trace what was recorded, whatever happens meanwhile."""
    told, missing, offsets = {}, dict.fromkeys(targets, "that was interrupted"), {}
    try:
        told, missing = _ask(ranks, targets, entry.stop_recording)
        offsets = ranks.machines.clock_offsets(told) if told else {}
    finally:
        trace.finish(read.read(told, offsets), missing, offsets)


def _ask(ranks: Ranks, targets: Iterable[int], function: Callable[[], Any]) -> tuple[dict[int, Any], dict[int, str]]:
    """What the function returns on each target that answers in time, and in words why the others do not."""
    if ranks.stopped:
        return {}, dict.fromkeys(targets, "the cluster was stopped before the end of the trace")
    missing = {r: f"it {ranks.note_death(r)}" for r in targets if r not in ranks.client.ids or r in ranks.lost}
    there = [rank for rank in targets if rank not in missing]
    if not there:
        return {}, missing
    sent = ranks.send(there, function)
    with interrupts.allowed():
        told = sent.within(SECONDS)
    for rank in there:
        if rank not in told:
            missing[rank] = f"no answer came within {SECONDS:g} s"
        elif isinstance(error := told[rank], Exception):  # a RuntimeError is recording.py's own word
            missing[rank] = getattr(error, "evalue", f"{type(error).__name__}: {error}")
    return {rank: what for rank, what in told.items() if rank not in missing}, missing
