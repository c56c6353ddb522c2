"""Recording a trace: started on the ranks, ended, and what they recorded gathered.

Runs on the notebook's kernel, called by `Cluster.trace`; rank/recording.py records on the ranks.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from distlab.client import waiting
from distlab.client.ranks import Ranks
from distlab.errors import ClusterError, DistlabError
from distlab.rank import entry
from distlab.traces import read, virtual
from distlab.traces.trace import Trace
from distlab.wire import seconds


@contextlib.contextmanager
def recorded(ranks: Ranks, targets: list[int], simulated: str, settle: Callable[[], Any]) -> Iterator[Trace]:
    """A trace of what some ranks do meanwhile; of a simulated cluster, whose ranks note anyway what they do, of all.

    Args:
        ranks: of the cluster.
        targets: the ranks to record.
        simulated: what figures say of times that are virtual; "" where they are real.
        settle: gives what has happened on simulated machines since its last call.
    """
    ranks.ready(targets)
    if simulated:
        settle()  # what has happened before is left out
    else:
        _start(ranks, targets)
    trace = Trace(targets, simulated)
    try:
        yield trace
    finally:
        if simulated:
            _finish_virtual(settle, trace)
        else:
            _finish(ranks, targets, trace)


def _finish_virtual(settle: Callable[[], Any], trace: Trace) -> None:
    try:
        trace.finish(virtual.read(settle(), trace.ranks), {})
    except DistlabError as error:
        why = f"the simulated cluster does not answer ({type(error).__name__})"
        trace.finish(read.read({}), dict.fromkeys(trace.ranks, why))


def _start(ranks: Ranks, targets: list[int]) -> None:
    """Begin on every target, or on none: ClusterError when one cannot, for example since it is being profiled."""
    _, missing = _gather(ranks, targets, entry.start_recording)
    for rank, why in missing.items():
        _gather(ranks, {*targets} - {*missing}, entry.stop_recording)
        raise ClusterError(f"rank {rank} cannot be traced: {why}. End what keeps it, or call cluster.restart().")


def _finish(ranks: Ranks, targets: list[int], trace: Trace) -> None:
    """End the recording, and give the trace what was recorded, whatever happens meanwhile."""
    received, missing, offsets = {}, dict.fromkeys(targets, "that was interrupted"), {}
    try:
        received, missing = _gather(ranks, targets, entry.stop_recording)
        offsets = ranks.clock_offsets(received) if received else {}
    finally:
        trace.finish(read.read(received, offsets), missing, offsets)


def _gather(ranks: Ranks, targets: Iterable[int], function: Callable[[], Any]) -> tuple[dict[int, Any], dict[int, str]]:
    """What a function returns on each target that replies in time, and in words why the others do not."""
    if ranks.stopped:
        return {}, dict.fromkeys(targets, "the cluster was stopped before the end of the trace")
    missing = {r: f"it {ranks.note_death(r)}" for r in targets if r not in ranks.client.ids or r in ranks.lost}
    there = [rank for rank in targets if rank not in missing]
    if not there:
        return {}, missing
    sent = ranks.send(there, function)
    with waiting.allowed():
        received = sent.within(seconds.RECORDING)
    for rank in there:
        if rank not in received:
            missing[rank] = f"no answer came within {seconds.RECORDING:g} s"
        elif isinstance(error := received[rank], Exception):  # a RuntimeError has the words of rank/recording.py
            missing[rank] = getattr(error, "evalue", f"{type(error).__name__}: {error}")
    return {rank: reply for rank, reply in received.items() if rank not in missing}, missing
