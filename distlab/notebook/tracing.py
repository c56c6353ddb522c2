"""A trace: recording is started and ended on the ranks, and what they recorded is gathered.

Runs on the notebook's kernel, called by `Cluster.trace`; rank/recording.py records on the ranks.
The doctor asks for the clocks of hosts.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from distlab import simulated
from distlab.errors import ClusterError
from distlab.notebook import seconds
from distlab.notebook.gathering import gather
from distlab.notebook.ranks import Ranks
from distlab.rank import entry
from distlab.traces import read, virtual
from distlab.traces.events import Offset
from distlab.traces.trace import Trace
from distlab.wire.messages import CLOCK
from distlab.wire.rendezvous import this_machine

if TYPE_CHECKING:
    from distlab.notebook.cluster import Cluster

CLOCK_QUESTIONS = 20  # to a rank, for the time that its clock shows


@contextlib.contextmanager
def record_trace(cluster: Cluster, targets: list[int]) -> Iterator[Trace]:
    """Give a trace of what some ranks do meanwhile.

    Simulated ranks note what they do anyway, all of them; the others start to record, and end.
    """
    ranks = cluster.ranks
    trace = Trace(targets, cluster.simulated)
    ranks.ready(targets)
    if trace.simulated:
        cluster.call(simulated.settle_notes)  # what has happened before is left out
    else:
        _begin_recording(ranks, targets)
    try:
        yield trace
    finally:
        # where what follows raises, the trace is finished all the same
        nothing = read.from_recordings({})
        trace.finish(nothing, dict.fromkeys(targets, "its recording could not be read"))
        if trace.simulated:
            events = cluster.call(simulated.settle_notes)[0]
            trace.finish(virtual.from_simulation(events, targets), {})
        else:
            received, missing = gather(ranks, targets, entry.stop_recording)
            offsets = clock_offsets(ranks, received)
            trace.finish(read.from_recordings(received, offsets), missing, offsets)


def _begin_recording(ranks: Ranks, targets: list[int]) -> None:
    """Begin on every target, or on none.

    Raises:
        ClusterError: a rank cannot, for example because it is being profiled.
    """
    _, missing = gather(ranks, targets, entry.start_recording)
    if not missing:
        return
    gather(ranks, set(targets) - set(missing), entry.stop_recording)
    rank, why = next(iter(missing.items()))
    raise ClusterError(
        f"rank {rank} cannot be traced: {why}. End that first, or call cluster.restart()."
    )


def clock_offsets(ranks: Ranks, targets: Iterable[int]) -> dict[int, Offset]:
    """How far the clocks of ranks are ahead of this machine's, for ranks with another clock.

    Of several questions, the one that was answered soonest counts: the rank looked at its clock at
    some time between question and answer.

    Source: F. Cristian, Probabilistic clock synchronization, 1989.
    """
    here = this_machine()[0]
    far = [rank for rank in targets if ranks.joined[rank].machine[0] != here]
    found: dict[int, Offset] = {}
    for _ in range(CLOCK_QUESTIONS):
        for rank in far:  # they take turns, so that what slows one for a while does not spoil all
            offset = _clock_offset(ranks, rank)
            if offset is None:
                continue
            if rank not in found or offset.error < found[rank].error:
                found[rank] = offset
    return found


def _clock_offset(ranks: Ranks, rank: int) -> Offset | None:
    """How far the clock of a rank is ahead, by one question; None if it does not answer."""
    asked = time.time_ns()
    answer = ranks.channel.ask([rank], seconds.ANSWER, CLOCK).get(rank)
    half = (time.time_ns() - asked) / 2
    if answer is None:
        return None
    return Offset((answer.clock - asked - half) / 1e9, half / 1e9)
