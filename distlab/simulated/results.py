"""What a simulation finds: what happened on the ranks and between them, and when.

Plain values, made by simulation.py. Runs anywhere; needs no torch. Times are in virtual seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from distlab.simulated.events import Begun, CollectiveCall, PointToPoint

# what one rank began and has not ended, and since when it goes on, or waits for its turn
Unfinished = list[tuple[Begun, float]]


@dataclass(frozen=True)
class Transfer:
    """One message that went over the network.

    Args:
        src, dst: ranks.
        num_bytes: its size.
        begin, end: when its first byte leaves the sender, and when its last one arrives.
        send, recv: the operations at its ends, messages or collectives.
    """

    src: int
    dst: int
    num_bytes: int
    begin: float
    end: float
    send: int
    recv: int


@dataclass(frozen=True)
class Span:
    """What a rank did from `begin` to `end`: it computed, or waited for an operation."""

    rank: int
    begin: float
    end: float
    op: int | None


@dataclass(frozen=True)
class Operation:
    """What a rank began, a message or a collective, and when it ended, or infinity for never."""

    rank: int
    event: PointToPoint | CollectiveCall
    begin: float
    end: float


@dataclass
class Result:
    """What happened.

    Args:
        clocks: of each rank, at its end.
        unfinished: by rank, operations and callbacks that have begun and not ended, callbacks with
            what is left of them.
        operations, transfers, spans: all of them, in the order of their ends.
    """

    clocks: list[float]
    unfinished: list[Unfinished]
    operations: list[Operation] = field(default_factory=list)
    transfers: list[Transfer] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
