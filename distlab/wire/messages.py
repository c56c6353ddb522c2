"""What ranks and notebook send each other: a dataclass for each message.

Runs on both sides, and in the diagnosis. Fields hold only plain values, no tensor and nothing from
torch: codec.py writes and reads them by their annotations.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from distlab.wire.source import Line

# what a rank does
IDLE = "idle"
COMPUTING = "computing"
COMMUNICATING = "communicating"
# the notebook's words for a rank that is idle with work to do, and for one that does not answer
BETWEEN = "between"
SILENT = "silent"
# what a job has left says only this of a rank: it is in no call, or there is nothing of it
OUTSIDE = "outside"
UNKNOWN = "unknown"

# kinds of calls
MESSAGE = "message"
COLLECTIVE = "collective"
NEW_GROUP = "new group"
REMOTE = "remote"
WAITING = "waiting"  # a wait of a backend's or a learner's own, by distlab.waiting
OWN_WORLD = "own world"  # init_process_group of a learner's, where it waits for the others
OTHER = "other"  # such as init_rpc and backward, which are made or waited for in C++
SERVED = "served"  # in a trace: a REMOTE call as the rank that answered it has recorded it

# the name of a wait of DDP's in C++; a wait of its constructor has the name of the class
DDP_FORWARD = "DistributedDataParallel.forward"

# what the notebook asks a rank's watchdog
STATUS = "status"
VARIABLES = "variables"
NAMES = "names"
MEMORY = "memory"
CLOCK = "clock"
# what the notebook orders it to do
FREE = "free"
FREE_WAITING = "free waiting"
COME_BACK = "come back"
TYPED = "typed"
PREEMPT = "preempt"

# what happens on a rank that is preempted, or beside one
SIGNAL_CAME = "signal came"
HANDLER_BEGAN = "handler began"
HANDLER_ENDED = "handler ended"
SAVE_BEGAN = "save began"
SAVE_ENDED = "save ended"


@dataclass(frozen=True)
class Failure:
    """What went wrong on one rank.

    Attributes:
        rank: the rank.
        kind: the name of the exception's type.
        message: the exception's text.
        lines: the learner's own lines, outermost first.
        traceback: Python's whole traceback.
        consequence: whether the rank waited for another one, which may be the culprit.
        communicated: whether a torch.distributed call raised it, so that its group may be damaged.
        call: the call that raised it, if that is known.
        handled: the error of its own that the rank was handling when this one was raised in
            communication.
        status: the exit status of a program that ends so.
    """

    rank: int
    kind: str
    message: str
    lines: tuple[Line, ...] = ()
    traceback: str = field(default="", repr=False)
    consequence: bool = False
    communicated: bool = False
    call: CallRecord | None = field(default=None, repr=False, compare=False)
    handled: Failure | None = field(default=None, repr=False)
    status: int = field(default=1, repr=False, compare=False)


# --- what a rank does ---


@dataclass(frozen=True)
class CallRecord:
    """One call that communicates, begun on one rank.

    Attributes:
        op: what the learner called.
        kind: one of the kinds above.
        members: the ranks of its group, none if the group was destroyed; for a remote call, the
            ranks that it waits for.
        own_limit: whether it is left to end by itself, because its own time limit is short.
        collective: the method of the process group that `op` calls; "" if it is no collective.
        group: the name of its group.
        sequence: its number among the collectives of its group, or among the messages of its group,
            direction, peer and tag; for new_group the number of the group, 0 if only its members
            make it.
        tensors: the (dtype, shape) of each of its tensors.
        site: the file and line of the call, for comparison.
        lines: the learner's lines that led to it, outermost first.
        is_send: whether it is a message that this rank sends.
        peer: the rank at the other end of a message, None for any.
        tag: the tag of a message.
        root: the rank that is the root of a collective; None if it has none.
        reduce_op: how a collective reduces; "" if it does not.
        sends: of a collective with splits, how many elements this rank sends to each member.
        receives: of a collective with splits, how many elements it receives from each.
        function: the function that is called remotely; of a wait by distlab.waiting, what it waits
            through, in words.
        number: the number that this rank takes in a world of the learner's own; `group` then says
            where that meets.
        world_size: how many ranks that world has; 0 for other calls.
    """

    op: str
    kind: str
    members: tuple[int, ...] = ()
    own_limit: bool = False
    collective: str = ""
    group: str = ""
    sequence: int = 0
    tensors: tuple[tuple[str, tuple[int, ...]], ...] = ()
    site: tuple[str, int] | None = None
    lines: tuple[Line, ...] = ()
    is_send: bool = False
    peer: int | None = None
    tag: int = 0
    root: int | None = None
    reduce_op: str = ""
    sends: tuple[int, ...] | None = None
    receives: tuple[int, ...] | None = None
    function: str = ""
    number: int = 0
    world_size: int = 0


@dataclass(frozen=True)
class MessageCount:
    """How many messages of one kind a rank has begun: of one group, direction, peer and tag.

    Attributes:
        is_send: whether this rank sends them.
        group: the name of their group.
        peer: the rank at the other end, None for any.
        tag: their tag.
        sequence: the number of the newest message, which is how many there are.
        dropped: how many of them have lost their Work undone, so that no rank can wait for them.
        first_dropped: the number of the first dropped one; 0 if there is none.
    """

    is_send: bool
    group: str
    peer: int | None
    tag: int
    sequence: int
    dropped: int = 0
    first_dropped: int = 0


@dataclass(frozen=True)
class NewGroup:
    """A group that a rank has begun to make, as it must also if it is not a member.

    Attributes:
        rank: the rank that makes it.
        name: torch's name for it: for a group that every rank makes its number, from 1; for
            use_local_synchronization a hash.
        members: the ranks in it.
        within: how many groups the rank was in before, which is in the hash.
        line: the learner's innermost line.
    """

    rank: int
    name: str
    members: tuple[int, ...]
    within: int = 1
    line: Line | None = None


@dataclass(frozen=True)
class RankStatus:
    """What one rank, or one of its threads, is doing.

    Attributes:
        rank: the rank.
        doing: one of the words above.
        call: the call that it waits in; None if it waits in none. Code that needs the call takes
            diagnosis.needs.Waiting.
        lines: the learner's lines where it is, outermost first.
        idle: whether its main thread is idle.
        groups: how many groups were made that every rank makes, the world among them.
        made: the newest groups that new_group has begun to make, those that only members make among
            them.
        passes: how many forward passes DDP has begun in training, in the cell that runs or ended
            last.
        averaging_passes: how many of these passes were outside of DDP's no_sync().
        backward_passes: how many backward passes the rank has begun, in that cell.
        history: the newest collectives that Python called.
        traffic: how many messages of each kind were begun.
        more_traffic: whether `traffic` leaves out older kinds, so that nothing is known of a kind
            that is not there.
        activity: grows with everything that the rank notes; calls that read alike differ in it.
        fingerprint: equal in two statuses if nothing happened in between.
        is_quiescent: whether nothing but its call computes or may act.
        unread: bytes in its sockets that gloo has not read.
        unsent: bytes in its sockets that its peers have not received.
        sleeping: whether the main thread does nothing for a time that it has chosen, as in
            `time.sleep`.
        awaiting: whether the cell's coroutine waits until the event loop continues it.
        paused: whether the main thread is at a breakpoint, and waits for a person.
        importing: whether the main thread is importing a library; it is not interrupted meanwhile.
        gloo_wakeups: how often each of gloo's own threads, which look for data every few
            milliseconds, has run.
        threads: how many remote calls it can run at a time; 0 if it takes none.
        serving: what its threads are doing for other ranks, by remote calls.
        caller: of such a thread, the rank for which it works.
        function: of such a thread, what it runs.
        other_threads: what further threads that wait in a call are doing.
        destroyed: the learner's call that destroyed the process group; None if none did.
        abandoned: calls that returned at once and whose Work is gone, so that nobody can wait for
            it.
        pending: calls of earlier cells that returned at once and whose Work the rank still has.
        more_unwaited: whether older calls that returned at once are left out of `abandoned` and
            `pending`.
        worlds: the newest calls of init_process_group for which every rank has come.
    """

    rank: int
    doing: str
    call: CallRecord | None = None
    lines: tuple[Line, ...] = ()
    idle: bool = False
    groups: int = 0
    made: tuple[NewGroup, ...] = ()
    passes: int = 0
    averaging_passes: int = 0
    backward_passes: int = 0
    history: tuple[CallRecord, ...] = ()
    traffic: tuple[MessageCount, ...] = ()
    more_traffic: bool = False
    activity: int = 0
    fingerprint: tuple[int, ...] = ()
    is_quiescent: bool = False
    unread: int = 0
    unsent: int = 0
    sleeping: bool = False
    awaiting: bool = False
    paused: bool = False
    importing: bool = False
    gloo_wakeups: tuple[int, ...] = ()
    threads: int = 0
    serving: tuple[RankStatus, ...] = ()
    caller: int = -1
    function: str = ""
    other_threads: tuple[RankStatus, ...] = ()
    destroyed: CallRecord | None = None
    abandoned: tuple[CallRecord, ...] = ()
    pending: tuple[CallRecord, ...] = ()
    more_unwaited: bool = False
    worlds: tuple[CallRecord, ...] = ()


States = Mapping[int, RankStatus]  # the statuses of several ranks, by rank


@dataclass(frozen=True)
class Moment:
    """Something that happened on a rank while one was preempted; see rank/preempting.py.

    Attributes:
        what: one of the words above.
        clock: of the rank's machine, in seconds.
        steps: how many optimizer steps the rank had finished.
        words: when the signal came, what handles it: "" for nothing, "ignored", or the name of the
            handler with its place; when a handler ended, what it raised, or "" if it returned; of a
            save, the path.
        status: what the rank did when the signal came.
        lines: the learner's lines in which a handler began.
        children: how many child processes the rank had when the signal came.
        at_step: whether the signal came at the end of an optimizer step, and not at a time.
        whole_group: whether it was sent to the child processes, too.
        watched: whether the handler reports when it runs; one that was set past signal.signal of
            Python's module does not.
    """

    what: str
    clock: float
    steps: int = 0
    words: str = ""
    status: RankStatus | None = None
    lines: tuple[Line, ...] = ()
    children: int = 0
    at_step: bool = False
    whole_group: bool = False
    watched: bool = True


# --- questions and answers ---


@dataclass(frozen=True)
class Query:
    """What the notebook wants from a rank's watchdog.

    Attributes:
        number: the question's, which its answer repeats.
        want: one of the questions and orders above.
        line: with TYPED, what a person has typed to the rank's debugger; None if nobody can, or
            will.
    """

    number: int
    want: str = STATUS
    line: str | None = None


@dataclass(frozen=True)
class Answer:
    """The watchdog's answer to the question with the same number.

    It lacks what was wanted if the watchdog could not look. Number 0 answers no question: the rank
    itself reports what it has printed, that calls are left, that it has no group any more, that
    its debugger waits for a line, or a moment of a preemption.

    Attributes:
        number: the question's.
        status: what the rank is doing.
        variables: names of the learner's variables; for NAMES, all that cells can use.
        megabytes: memory of the rank's process.
        clock: of the rank's machine, in ns.
        error: why the watchdog could not look, in a line; with number 0, what else went wrong on
            its thread.
        printed: what a function that the rank ran for another one has printed.
        unwaited: whether a cell has ended and left calls that no rank can wait for.
        without_group: whether a cell has ended that destroyed the process group.
        asks: what the rank's debugger has written before it waits for a line, its prompt last.
        moment: what has happened on a rank while one was preempted.
    """

    number: int
    status: RankStatus | None = None
    variables: tuple[str, ...] | None = None
    megabytes: float | None = None
    clock: int = 0
    error: str = ""
    printed: str = ""
    unwaited: bool = False
    without_group: bool = False
    asks: str | None = None
    moment: Moment | None = None
