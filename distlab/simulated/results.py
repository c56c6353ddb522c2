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

    Attributes:
        src: the rank that sends.
        dst: the rank that receives.
        num_bytes: its size.
        begin: when its first byte leaves the sender.
        end: when its last byte arrives at the receiver.
        send: the sender's operation, a message or a collective.
        recv: the receiver's operation, a message or a collective.
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
    """What a rank did from `begin` to `end`: it computed, or waited for an operation.

    Attributes:
        rank: which one.
        begin: a time.
        end: a later time, or the same.
        op: the operation that it waited for; None if it computed.
        at_once: whether it did nothing else between the beginning of the operation and the wait, as
            in a blocking call.
    """

    rank: int
    begin: float
    end: float
    op: int | None
    at_once: bool = False


@dataclass(frozen=True)
class Operation:
    """What a rank began, a message or a collective.

    Attributes:
        rank: which one.
        event: what it noted.
        begin: when it began, or for a collective, when its turn came.
        end: when it ended; infinity if it never did.
    """

    rank: int
    event: PointToPoint | CollectiveCall
    begin: float
    end: float


@dataclass
class Result:
    """What happened.

    Attributes:
        clocks: of each rank, at its end.
        unfinished: by rank, operations and callbacks that have begun and not ended, callbacks with
            what is left of them.
        operations: all that have ended, in the order of their ends.
        transfers: all messages, in the order in which they came to the receivers' ports.
        spans: what ranks did, in the order in which it ended.
    """

    clocks: list[float]
    unfinished: list[Unfinished]
    operations: list[Operation] = field(default_factory=list)
    transfers: list[Transfer] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
