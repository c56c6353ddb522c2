"""Everything that ranks and notebook send each other: a dataclass for each message, and one way to JSON.

Runs on both sides, and in the diagnosis. Fields hold plain values only: no tensor, nothing of torch's.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from distlab.wire import orders

# what a rank does; BETWEEN and SILENT are the notebook's words for one that is idle with work to do, or does not answer
IDLE, COMPUTING, COMMUNICATING, BETWEEN, SILENT = "idle", "computing", "communicating", "between", "silent"
# kinds of calls: functional collectives, and others such as new_group and backward, are made or waited for in C++
MESSAGE, COLLECTIVE, FUNCTIONAL, REMOTE, OTHER = "message", "collective", "functional", "remote", "other"
# what the notebook may want of a rank's watchdog: four questions and three orders
STATUS, VARIABLES, MEMORY, CLOCK = "status", "variables", "memory", "clock"
FREE, FREE_WAITING, COME_BACK = "free", "free waiting", "come back"

SERVED = "served"  # in a trace: a remote call that this rank has answered; REMOTE is one that it has made


@dataclass(frozen=True)
class Line:
    """One line of the learner's own code in a traceback.

    Attributes:
        number: counted from 1 as the notebook shows it, `%%px` line included.
        text: the source, stripped; empty where the source is not available.
        place: the function's name, or "" at the top of a cell.
        file: the source file; "" for a `%%px` cell.
    """

    number: int
    text: str
    place: str = ""
    file: str = field(default="", compare=False, repr=False)


@dataclass(frozen=True)
class Failure:
    """What went wrong on one rank.

    Attributes:
        rank: the rank.
        kind: the exception's type name.
        message: its text.
        lines: the learner's own lines, outermost first.
        traceback: Python's whole traceback.
        consequence: whether it waited for another rank, which may be the culprit.
        communicated: whether a call of torch.distributed raised it, so that its group may be damaged.
    """

    rank: int
    kind: str
    message: str
    lines: tuple[Line, ...] = ()
    traceback: str = field(default="", repr=False)
    consequence: bool = False
    communicated: bool = False


# --- what a rank does ---


@dataclass(frozen=True)
class CallRecord:
    """One call that communicates, begun on one rank.

    Attributes:
        op: what the learner called. kind: one of those above. collective: its name below `op`.
        members: ranks of its group, none when the group is gone; of a remote call, the ranks that it waits for.
        own_limit: whether it ends before the group's timeout. function: that is called remotely.
        sequence: its number among the collectives of its group, or the messages of its group, direction, peer and tag.
        tensors: (dtype, shape) of each. place: file and line of the call, for comparison. lines: outermost first.
        peer: rank, None for any. root: rank. reduce_op: "" without one. sends, receives: elements by rank.
    """

    op: str
    kind: str
    members: tuple[int, ...] = ()
    own_limit: bool = False
    collective: str = ""
    group: str = ""
    sequence: int = 0
    tensors: tuple[tuple[str, tuple[int, ...]], ...] = ()
    place: tuple[str, int] | None = None
    lines: tuple[Line, ...] = ()
    is_send: bool = False
    peer: int | None = None
    tag: int = 0
    root: int | None = None
    reduce_op: str = ""
    sends: tuple[int, ...] | None = None
    receives: tuple[int, ...] | None = None
    function: str = ""


@dataclass(frozen=True)
class MessageCount:
    """How many messages of one kind a rank has begun; `dropped`: sends of which nobody can wait for any more."""

    is_send: bool
    group: str
    peer: int | None
    tag: int
    count: int
    dropped: int = 0


@dataclass(frozen=True)
class Begun:
    """How many collectives of a group a rank has begun, also those that C++ makes, and the group's members."""

    count: int
    members: tuple[int, ...]


@dataclass(frozen=True)
class ServedCall:
    """A function that a rank runs for another one, `caller`; `call`: what it waits in, None while it computes."""

    caller: int
    function: str
    call: CallRecord | None = None
    lines: tuple[Line, ...] = ()


@dataclass(frozen=True)
class RankStatus:
    """What one rank does.

    Attributes:
        doing: one of the words above. idle: whether its main thread is. lines: the learner's, outermost first.
        call: the call that it waits in.
        begun: collectives by group. history: the newest that Python called. groups: how many groups were made.
        traffic: numbers of messages. mark: equal in two statuses when nothing happened between them.
        quiet: nothing is on its way, and nothing else computes or may act. importing: an import must not be torn.
        rounds: how often gloo's own threads, which look every few milliseconds whether something came, have run.
        serves: whether it takes remote calls. threads: how many at a time. serving: those that it has taken.
        beside: the calls that other threads than the one of `call` wait in.
    """

    rank: int
    doing: str
    call: CallRecord | None = None
    lines: tuple[Line, ...] = ()
    idle: bool = False
    begun: dict[str, Begun] = field(default_factory=dict)
    groups: int = 0
    history: tuple[CallRecord, ...] = ()
    traffic: tuple[MessageCount, ...] = ()
    mark: tuple[int, ...] = ()
    quiet: bool = False
    importing: bool = False
    rounds: tuple[int, ...] = ()
    serves: bool = False
    threads: int = 0
    serving: tuple[ServedCall, ...] = ()
    beside: tuple[CallRecord, ...] = ()


@dataclass(frozen=True)
class Question:
    """What the notebook wants of a rank's watchdog, one of those above."""

    number: int
    want: str = STATUS


@dataclass(frozen=True)
class Answer:
    """The watchdog's answer to the question of the same number; without what was wanted when it could not look.

    Attributes:
        megabytes: of the rank's process. clock: in ns.
    """

    number: int
    status: RankStatus | None = None
    variables: tuple[str, ...] | None = None
    megabytes: float | None = None
    clock: int = 0


@dataclass(frozen=True)
class Printed:
    """What a function has printed that a rank has run for another one; sent without being asked."""

    text: str


# --- what a rank recorded for a trace; times are in ns of its machine's clock ---

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


# --- JSON ---

# what the control channel carries
KINDS = (Line, Failure, CallRecord, MessageCount, Begun, ServedCall, RankStatus, Question, Answer, Printed)
SENT = {kind.__name__: kind for kind in (*KINDS, *orders.KINDS)}


def to_json(message: Any) -> str:
    """A message as one line of JSON."""
    return json.dumps(message, default=lambda inner: {"class": type(inner).__name__, **vars(inner)})


def from_json(text: str | bytes) -> Any:
    """The message in a line of JSON."""
    return json.loads(text, object_hook=_message)


def _message(fields: dict[str, Any]) -> Any:
    """A message of its class and fields, whose sequences are tuples; a plain dict stays one."""
    kind = SENT.get(fields.pop("class", ""))
    return kind(**{name: _tuples(value) for name, value in fields.items()}) if kind else fields


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value
