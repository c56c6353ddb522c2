"""Where the time of a rank went: computing, communicating, waiting for others.

Pure functions over events, called by Trace.shares on the notebook's kernel.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from distlab.traces.events import COMMUNICATING_KINDS, COMPUTING_KINDS, Event, Part, moments


class Shares(NamedTuple):
    """Where the time of one rank went between the first and the last event of a trace, in seconds.

    Together they are all of that time.

    Attributes:
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


def shares_of(events: Sequence[Event], rank: int) -> Shares:
    """Where the time of a rank went.

    Runs on: anywhere.
    """
    parts: list[Part] = []
    for event in events:
        if event.rank == rank and event.kind in (*COMPUTING_KINDS, *COMMUNICATING_KINDS):
            parts += event.parts
    seconds: defaultdict[str, float] = defaultdict(int)  # prints 0 for what never happened
    for since, until, going in moments(parts):
        share = _share_while(going)
        seconds[share] += until - since
    first = min((event.start for event in events), default=0.0)
    last = max((event.end for event in events), default=0.0)
    known = sum(seconds.values())
    return Shares(
        compute=seconds["compute"],
        hidden=seconds["hidden"],
        communicate=seconds["communicate"],
        wait=seconds["wait"],
        other=max(0.0, last - first - known),  # and not -0 %, from rounding
    )


def _share_while(going: set[str]) -> str:
    """Which share of its time it is while all this goes on at a rank; see Shares."""
    moves = "move" in going
    computes = not going.isdisjoint(COMPUTING_KINDS)
    if moves and computes:
        return "hidden"
    if moves:
        return "communicate"
    if computes:
        return "compute"
    return "wait"
