"""What a rank does on a simulated cluster, as noted there.

An operation has a number, `op`, on its rank. Ranks are those of the cluster, sizes are in bytes,
times in virtual seconds. Runs anywhere; needs no torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Compute:
    """The rank computes for this many virtual seconds."""

    seconds: float


@dataclass(frozen=True)
class PointToPoint:
    """The rank begins to send to `peer`, or to receive from it.

    Attributes:
        op: its number.
        sends: whether it sends; otherwise it receives.
        peer: the other rank.
        num_bytes: its size.
        channel: the group and the tag.
    """

    op: int
    sends: bool
    peer: int
    num_bytes: int
    channel: tuple[str, int]


@dataclass(frozen=True)
class CollectiveCall:
    """The rank begins a collective with `members`, the `count`-th of their group.

    Attributes:
        op: its number.
        name: what it does, for example "all_reduce".
        group: the name of its group.
        count: its number among the collectives of this group.
        members: the ranks of the group.
        root: the root's place among the members; None for a collective without one.
        sent: what the rank sends, in bytes. For all_to_all, its share for each member; for
            all_reduce, the whole buffer and one element; for broadcast and reduce, the whole
            buffer; for any other, the share of one member.
    """

    op: int
    name: str
    group: str
    count: int
    members: tuple[int, ...]
    root: int | None
    sent: tuple[int, ...]


@dataclass(frozen=True)
class Callback:
    """What the rank does after the end of an operation or callback, beside its program.

    It is what a Future's `then` was given.

    Attributes:
        op: its number, like that of an operation, so that its end can be waited for.
        after: the number of what it follows.
        events: what it does.
    """

    op: int
    after: int
    events: list[NotedEvent]


@dataclass(frozen=True)
class Wait:
    """The rank waits for the end of an operation, or of a callback, that it began."""

    op: int


@dataclass(frozen=True)
class Align:
    """The rank goes on once all ranks have ended what they did before, at the latest clock of all.

    Attributes:
        number: the number of the cell, and that of the alignment in the cell; both rise. Ranks that
            align at the same number go on together.
    """

    number: tuple[int, int]


Begun = PointToPoint | CollectiveCall | Callback  # what can be waited for
NotedEvent = Begun | Compute | Wait | Align


def all_operations(events: Sequence[NotedEvent]) -> Iterator[Begun]:
    """All operations, including those that callbacks begin."""
    for event in events:
        if isinstance(event, Begun):
            yield event
        if isinstance(event, Callback):
            yield from all_operations(event.events)
