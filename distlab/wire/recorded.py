"""What a rank recorded for a trace, on its way to the notebook: plain values, made by rank/recording.py.

Read by measure/trace on the notebook's kernel, which does not import torch. Times are in ns of the machine's clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

REMOTE, SERVED = "remote", "served"
Group = tuple[str, int, tuple[int, ...]]  # the same on every rank: name, how often all were rebuilt, ranks in the world


class Row(NamedTuple):
    """One row of torch's profiler. `annotated`: the program chose the name. `number`: autograd's."""

    name: str
    annotated: bool
    thread: int
    start: float
    end: float
    number: int


@dataclass
class Call:
    """One call that communicates.

    Attributes:
        op: the function that the program called: "send", "all_gather_object". method: of ProcessGroup; of remote calls
            REMOTE, of those that this rank answered SERVED, with the caller's number of the call as the sequence.
        num_bytes: what this rank gives, or receives into; of scatter and reduce_scatter the whole, on every rank.
        peer: the other rank of a message, the root of a collective, in the world; None when there is none.
        sequence: among the messages of this group, direction, peer and tag since the group was built; 0 for unknown.
        blocking: whether it is complete when it returns. elsewhere: whether another thread than that of the cells made
            it. failed: whether it raised.
        start: when it began. posted: when it gave its thread back; 0 as long as it has not. end: when this rank knew
            that it was complete; 0 if it never did. waits: for one that does not block, as start and end.
    """

    op: str
    method: str
    group: Group
    num_bytes: int
    peer: int | None = None
    tag: int | None = None
    sequence: int = 0
    blocking: bool = False
    elsewhere: bool = False
    failed: bool = False
    start: float = 0
    posted: float = 0
    end: float = 0
    waits: list[tuple[float, float]] = field(default_factory=list)


@dataclass
class Recorded:
    """All that one rank recorded; `main` is the thread of the cells in `rows`."""

    calls: list[Call]
    rows: list[Row]
    main: int


@dataclass(frozen=True)
class Offset:
    """How much a rank's clock is ahead of that of the trace: `seconds`, right to within `error` seconds."""

    seconds: float = 0.0
    error: float = 0.0
