"""What a rank recorded for a trace, on its way to the notebook: plain values; times are in ns of the machine's clock.

Made by rank/recording.py on every rank, read by traces/ on the notebook's kernel, which does not import torch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

GroupKey = tuple[str, int, tuple[int, ...]]  # the same on every rank: name, how often all were rebuilt, its ranks


class Row(NamedTuple):
    """One row of torch's profiler.

    Attributes:
        name: what ran.
        annotated: whether the program chose the name.
        thread: the profiler's number of the thread.
        start, end: times.
        number: autograd's sequence number.
    """

    name: str
    annotated: bool
    thread: int
    start: float
    end: float
    number: int


@dataclass
class RecordedCall:
    """One call that communicates.

    Attributes:
        op: the function that the program called: "send", "all_gather_object".
        method: of ProcessGroup; REMOTE or SERVED of a remote call, with the caller's number of it as the sequence.
        group: its group.
        num_bytes: what this rank gives, or receives into; of scatter and reduce_scatter the whole, on every rank.
        peer: the other rank of a message, the root of a collective, in the world; None when there is none.
        tag: of a message.
        sequence: among the messages of this group, direction, peer and tag since the group was built; 0 for unknown.
        blocking: whether it is complete when it returns.
        elsewhere: whether another thread than that of the cells made it.
        failed: whether it raised.
        start: when it began.
        posted: when it returned to its thread; 0 as long as it has not.
        end: when this rank knew that it was complete; 0 if it never did.
        waits: of a call that does not block, the waits for it as (start, end).
    """

    op: str
    method: str
    group: GroupKey
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
    """All that one rank recorded.

    Attributes:
        calls: its calls that communicate.
        rows: what torch's profiler recorded.
        main: the thread of the cells in `rows`.
    """

    calls: list[RecordedCall]
    rows: list[Row]
    main: int


@dataclass(frozen=True)
class Offset:
    """How much a rank's clock is ahead of that of the trace: `seconds`, right to within `error` seconds."""

    seconds: float = 0.0
    error: float = 0.0
