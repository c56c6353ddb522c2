"""Recording a trace: started and ended on the ranks, and what they recorded gathered.

Runs on the notebook's kernel, called by `Cluster.trace`; rank/recording.py records on the ranks.
"""

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from distlab import simulated
from distlab.errors import ClusterError
from distlab.notebook import interrupts
from distlab.notebook.ranks import Ranks
from distlab.rank import entry
from distlab.traces import read, virtual
from distlab.traces.events import Offset
from distlab.traces.trace import Trace
from distlab.wire import seconds
from distlab.wire.messages import CLOCK
from distlab.wire.rendezvous import this_machine

CLOCK_QUESTIONS = 20  # to a rank, for the time that its clock shows


@contextlib.contextmanager
def traced(cluster: Any, targets: list[int]) -> Iterator[Trace]:
    """A trace of what some ranks of a `Cluster` do meanwhile; a simulated one notes what all ranks
    do anyway.
    """
    ranks, trace = cluster.ranks, Trace(targets, cluster.simulated)
    ranks.ready(targets)
    if trace.simulated:
        cluster.call(simulated.settle)  # what has happened before is left out
    else:
        _start(ranks, targets)
    try:
        yield trace
    finally:
        # unless it can be, now
        trace.finish(read.read({}), dict.fromkeys(targets, "its recording could not be read"))
        if trace.simulated:
            trace.finish(virtual.read(cluster.call(simulated.settle)[0], targets), {})
        else:
            received, missing = _gather(ranks, targets, entry.stop_recording)
            offsets = clock_offsets(ranks, received)
            trace.finish(read.read(received, offsets), missing, offsets)


def _start(ranks: Ranks, targets: list[int]) -> None:
    """Begin on every target, or on none: ClusterError when one cannot, for example because it is
    being profiled.
    """
    _, missing = _gather(ranks, targets, entry.start_recording)
    for rank, why in missing.items():
        _gather(ranks, {*targets} - {*missing}, entry.stop_recording)
        raise ClusterError(
            f"rank {rank} cannot be traced: {why}. End that first, or call cluster.restart()."
        )


def _gather(
    ranks: Ranks, targets: Iterable[int], function: Callable[[], Any]
) -> tuple[dict[int, Any], dict[int, str]]:
    """What a function returns on each target that replies in time, and in words why the others did
    not.
    """
    if ranks.stopped:
        return {}, dict.fromkeys(targets, "the cluster was stopped before the end of the trace")
    missing = {
        r: f"it {ranks.dead.mark_dead(r)}"
        for r in targets
        if r not in ranks.client.ids or r in ranks.lost
    }
    there = [rank for rank in targets if rank not in missing]
    if not there:
        return {}, missing
    sent = ranks.send(there, function)
    with interrupts.allowed():
        received = sent.within(seconds.BUILD)
    for rank in there:
        if rank not in received:
            missing[rank] = f"no answer came within {seconds.BUILD:g} s"
        elif isinstance(
            error := received[rank], Exception
        ):  # a RuntimeError has the words of rank/recording.py
            missing[rank] = getattr(error, "evalue", f"{type(error).__name__}: {error}")
    return {rank: reply for rank, reply in received.items() if rank not in missing}, missing


def clock_offsets(ranks: Ranks, targets: Iterable[int]) -> dict[int, Offset]:
    """How far the clocks of ranks are ahead of this machine's, for ranks with another clock.

    Of several questions, the one that was answered soonest counts: the rank looked at its clock at
    some time between question and answer.

    Source: F. Cristian, Probabilistic clock synchronization, 1989.
    """
    far = [rank for rank in targets if ranks.joined[rank].machine[0] != this_machine()[0]]
    found: dict[int, Offset] = {}
    for rank in far * CLOCK_QUESTIONS:
        asked = time.time_ns()
        answer = ranks.channel.ask([rank], want=CLOCK).get(rank)
        half = (time.time_ns() - asked) / 2
        if answer is not None and (rank not in found or half / 1e9 < found[rank].error):
            found[rank] = Offset((answer.clock - asked - half) / 1e9, half / 1e9)
    return found
