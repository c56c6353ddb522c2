"""What a rank does on a simulated cluster, as it is noted there, and what simulation.py makes of it.

An operation has a number, `op`, of its rank. Ranks are those of the cluster, sizes are in bytes, times in virtual
seconds. Runs anywhere; needs no torch.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Compute:
    """The rank computes for so many virtual seconds."""

    seconds: float


@dataclass(frozen=True)
class Message:
    """The rank begins to send to `peer`, or to receive from it; `channel` is the group and the tag."""

    op: int
    sends: bool
    peer: int
    num_bytes: int
    channel: tuple[str, int]


@dataclass(frozen=True)
class Collective:
    """The rank begins a collective with `members`, the `count`-th of their group.

    Args:
        root: the place among the members of a rooted one's root.
        sent, received: see collectives.messages.
    """

    op: int
    name: str
    group: str
    count: int
    members: tuple[int, ...]
    root: int
    sent: tuple[int, ...]
    received: tuple[int, ...]


@dataclass(frozen=True)
class Callback:
    """What the rank does from the end of `after` on, beside its program: what `then` of a Future was given.

    It has a number, as an operation has, for whom waits for its end.
    """

    op: int
    after: int
    events: list[Event]


@dataclass(frozen=True)
class Wait:
    """The rank waits for the end of an operation, or of a callback, that it began."""

    op: int


@dataclass(frozen=True)
class Align:
    """The rank goes on when everything before this has ended on all ranks, with those that align there too.

    Its clock is then the latest of all. `number` counts the cells, and the alignments in each.
    """

    number: tuple[int, int]


@dataclass(frozen=True)
class Mark:
    """The rank reads its clock here."""


Event = Compute | Message | Collective | Callback | Wait | Align | Mark


# --- what comes out ---


@dataclass(frozen=True)
class Transfer:
    """One message that went over the network.

    Args:
        src, dst: ranks.
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
    """What a rank did from begin to end: it computed, or waited for an operation."""

    rank: int
    begin: float
    end: float
    op: int | None


@dataclass(frozen=True)
class Operation:
    """What a rank began, a message or a collective, and when it ended; never, for infinity."""

    rank: int
    event: Message | Collective
    begin: float
    end: float


@dataclass(frozen=True)
class Result:
    """What happened.

    Args:
        clocks: of each rank, at its end. marks: of each rank, at its marks.
        unfinished: by rank, operations and callbacks that had begun and have not ended (callbacks with what is left of
            them), with the time at which they began, or wait.
        operations, transfers, spans: all of them, in the order of their ends.
    """

    clocks: tuple[float, ...]
    marks: tuple[tuple[float, ...], ...]
    unfinished: tuple[tuple[tuple[Message | Collective | Callback, float], ...], ...]
    operations: tuple[Operation, ...]
    transfers: tuple[Transfer, ...]
    spans: tuple[Span, ...]
