"""Everything that ranks and notebook send each other: a dataclass for each message, and one way to JSON.

Runs on both sides, and in the diagnosis. Fields hold plain values only: no tensor, nothing of torch's.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from distlab.wire import orders

# what a rank does; BETWEEN and SILENT are the notebook's words for one that is idle with work to do, or does not answer
IDLE, COMPUTING, COMMUNICATING, BETWEEN, SILENT = "idle", "computing", "communicating", "between", "silent"
# kinds of calls: functional collectives, and others such as new_group and backward, are made or waited for in C++
MESSAGE, COLLECTIVE, FUNCTIONAL, REMOTE, OTHER = "message", "collective", "functional", "remote", "other"
SERVED = "served"  # in a trace: a REMOTE call as the rank that answered it has recorded it
WAITING = "waiting"  # a wait of a backend's or a learner's own, by distlab.waiting
# what the notebook may want of a rank's watchdog: four questions and three orders
STATUS, VARIABLES, MEMORY, CLOCK = "status", "variables", "memory", "clock"
FREE, FREE_WAITING, COME_BACK = "free", "free waiting", "come back"


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
        op: what the learner called.
        kind: one of those above.
        members: ranks of its group, none when that was destroyed; of a remote call, the ranks that it waits for.
        own_limit: whether it ends before the group's timeout.
        collective: its name below `op`.
        group: name of its group.
        sequence: its number among the collectives of its group, or the messages of its group, direction, peer and tag.
        tensors: (dtype, shape) of each.
        place: file and line of the call, for comparison.
        lines: the learner's, outermost first.
        is_send: whether it is a message that this rank sends.
        peer: rank at the other end of a message, None for any.
        tag: of a message.
        root: rank of a collective that has one.
        reduce_op: "" without one.
        sends, receives: elements by rank, of a collective with splits.
        function: that is called remotely.
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
    """How many messages of one kind a rank has begun.

    Attributes:
        is_send, group, peer, tag: what the messages have in common.
        count: how many there are.
        dropped: how many of them are sends that nobody can wait for any more.
    """

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
    """A function that a rank runs for another one.

    Attributes:
        caller: the other rank.
        function: its name.
        call: what it waits in; None while it computes.
        lines: the learner's, outermost first.
    """

    caller: int
    function: str
    call: CallRecord | None = None
    lines: tuple[Line, ...] = ()


@dataclass(frozen=True)
class RankStatus:
    """What one rank does.

    Attributes:
        rank: the rank.
        doing: one of the words above.
        call: the call that it waits in.
        lines: the learner's, outermost first.
        idle: whether its main thread is.
        begun: collectives by group.
        groups: how many groups were made.
        history: the newest collectives that Python called.
        traffic: numbers of messages.
        mark: equal in two statuses when nothing happened between them.
        quiet: nothing is under way, and nothing else computes or may act.
        importing: an import must not be interrupted.
        rounds: how often gloo's own threads, which look every few milliseconds whether something came, have run.
        serves: whether it takes remote calls.
        threads: how many remote calls it runs at a time.
        serving: the remote calls that it has taken.
        beside: the calls that other threads than the one of `call` wait in.
        destroyed: the learner's call that destroyed a group.
        left: calls that returned at once and that nobody can wait for any more.
        kept: such calls of earlier cells that somebody may still wait for.
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
    destroyed: CallRecord | None = None
    left: tuple[CallRecord, ...] = ()
    kept: tuple[CallRecord, ...] = ()


# --- questions, answers and replies ---


@dataclass(frozen=True)
class Question:
    """What the notebook wants of a rank's watchdog: `want` is one of the questions and orders above."""

    number: int
    want: str = STATUS


@dataclass(frozen=True)
class Answer:
    """The watchdog's answer to the question of the same number; without what was wanted when it could not look.

    Attributes:
        number: the question's.
        status: what the rank does.
        variables: names of the learner's variables.
        megabytes: memory of the rank's process.
        clock: of the rank's machine, in ns.
        error: the traceback where the watchdog could not look.
    """

    number: int
    status: RankStatus | None = None
    variables: tuple[str, ...] | None = None
    megabytes: float | None = None
    clock: int = 0
    error: str = ""


@dataclass(frozen=True)
class Unwaited:
    """A cell has ended on a rank and has left calls that nobody can wait for; sent without being asked."""


@dataclass(frozen=True)
class Printed:
    """What a function has printed that a rank has run for another one; sent without a question."""

    text: str


@dataclass(frozen=True)
class Reply:
    """What a rank returns for a call of the notebook's; the buffers of its value travel beside it, in one list.

    Attributes:
        header: of the value, for payload.loads.
        failure: what the call raised; None when it returned.
        unsendable: why the value cannot travel, a sentence; "" where it does.
    """

    header: bytes = b""
    failure: Failure | None = None
    unsendable: str = ""


@dataclass(frozen=True)
class Meeting:
    """What a rank needs to join one generation of the group.

    Attributes:
        init_method: how the ranks find each other: "tcp", "env" or "file".
        backend: torch.distributed's backend name.
        world_size: number of ranks.
        timeout: seconds that a communication call may wait for its peers.
        host, port: the store.
        prefix: the generation's name, which starts all its keys in the store.
        path: the generation's file, for init_method "file".
        channel: host, port and token of the notebook's `ControlChannel`, which asks the ranks what they do.
        hosts: number of each rank's host, by rank; none where all are on one machine.
    """

    init_method: str
    backend: str
    world_size: int
    timeout: float
    host: str
    port: int
    prefix: str
    path: str
    channel: tuple[str, int, str]
    hosts: tuple[int, ...] = ()


@dataclass(frozen=True)
class Joined:
    """A process has become a rank.

    Attributes:
        pid: its process number.
        machine: where that number counts, see rendezvous.this_machine.
    """

    pid: int
    machine: tuple[str, str]


@dataclass(frozen=True)
class Rebuilt:
    """A rank has left its group and joined a new one.

    Attributes:
        subgroups: whether groups of dist.new_group ended with the old one.
        rpc: whether RPC ended with it.
    """

    subgroups: bool
    rpc: bool


# --- JSON ---

# what the control channel carries
KINDS = (Line, Failure, CallRecord, MessageCount, Begun, ServedCall, RankStatus, Question, Answer, Printed, Unwaited)
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
