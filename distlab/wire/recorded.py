"""What one rank has recorded for a trace. Times are in ns of its machine's clock.

Written by rank/recording.py, read on the notebook's kernel by traces/.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

# A process group, by what is the same on every rank of it: its name, the generation of all groups,
# and its ranks.
GroupKey = tuple[str, str, tuple[int, ...]]


class TorchRow(NamedTuple):
    """One row of torch's profiler.

    Attributes:
        name: what ran.
        annotated: whether the program chose the name.
        thread: the system's number of the thread; 0 for that of the cells.
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
        method: of ProcessGroup; REMOTE or SERVED for a remote call, whose sequence is the caller's
            number for it.
        group: its group.
        num_bytes: what this rank gives, or receives into; of scatter and reduce_scatter the whole,
            on every rank.
        peer: the other rank of a message, the root of a collective, in the world; None when there
            is none.
        tag: of a message.
        sequence: among the messages of this group, direction, peer and tag since the group was
            built; 0 if unknown.
        blocking: whether it is complete when it returns.
        elsewhere: whether a thread other than that of the cells made it.
        failed: whether it raised.
        start: when it began.
        posted: when it returned to its thread; 0 as long as it has not.
        end: when this rank knew that it was complete; 0 if it never did.
        waits: for a call that does not block, the waits for it as (start, end).
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
    """

    calls: list[RecordedCall]
    rows: list[TorchRow]
