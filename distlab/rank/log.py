"""The log of one rank: a `Note` of each call, and the one that each thread waits in.

Runs on every rank. hooks.py, functional.py, groups.py, stores.py, rpc.py, rpc_calls.py, cpp.py,
waits.py and world.py write it; status.py reports from it on the watchdog's thread, checks.py
compares calls by it, recording.py times them. A note holds plain values, never a tensor nor a
number of numpy's: they are made plain when the note is made, on the thread of the call, because the
watchdog's thread could only fail.
"""

import sys
import threading
import weakref
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from operator import index
from types import FrameType
from typing import Any

import torch.distributed as dist

from distlab.compat import torch as private
from distlab.rank import freed
from distlab.rank.chains import raise_instead
from distlab.rank.left_behind import abandoned
from distlab.rank.message_counter import Kind, MessageCounter
from distlab.rank.methods import ANY_SOURCE, IMMEDIATE
from distlab.rank.passes import PassCounter
from distlab.rank.plugins import PLUGINS
from distlab.rank.this_rank import THIS_RANK
from distlab.wire.messages import MESSAGE, Answer, NewGroup
from distlab.wire.source import is_learners

_C10D_FILE = dist.distributed_c10d.__file__

# Two limits on what is remembered; message_counter.py has a third one. Where something fell out,
# nothing is claimed: no limit makes a statement false.

# Calls that are remembered until they are waited for. An older one is never reported as abandoned,
# and a group in which one may still be waited for stays (RankStatus.more_unwaited). As many results
# of functional collectives are remembered: the wait for an older one is not noted, and may then end
# by itself.
MOST_UNWAITED = 1000
# Collectives of each group that are remembered, the newest: whether a rank has called an older one
# follows from their numbers, and its arguments are not compared.
REMEMBERED = 32


# the elements of each rank, or their total where they are split evenly
Split = list[int] | int


class Note:
    """One call that communicates, or one wait for other ranks.

    It is made by the thread that calls, on whose stack it finds the learner's lines.

    Args:
        op: the function that the learner called.
        kind: one of the kinds of calls in wire/messages.py.
        ranks: those that it waits for, if it is not a call of a process group.
        words: what else a report says about it: the function of a remote call, the key of a store.
        has_limit: whether it has a time limit of its own, and will end by itself.
        freed_with: the message of the RuntimeError that ends the wait, which is Python code, when
            this rank is freed; "" for a wait in C++, which ends with its connections.

    Attributes:
        readable: makes an error of this call one that a learner can read.
        method: of ProcessGroup; "" if it is not a call of a process group.
        group: the name of its process group.
        peer: the other rank of a message, by its number in the group, or ANY_SOURCE.
        tag: the tag of a message.
        sequence: its number among the collectives of its group, or among the messages of its
            `Kind`; from 1.
        tensors: type and shape of each tensor that all ranks must agree on.
        options: torch's own options of a collective, read only when needed. For the operator of
            broadcast, the root.
        splits: the elements that all_to_all sends to, and gets from, each rank.
        number: the number that this rank takes in a world of the learner's own.
        world_size: how many ranks that world has.
        lines: the learner's, as (file, number, function), innermost first.
        done: whether it was waited for until its end.
        is_followed: whether somebody has seen that it has ended, or has asked for its Future, and
            may wait for that in C++.
    """

    readable: Callable[[RuntimeError], Exception] | None = None
    method: str = ""
    group: str = ""
    peer: int = ANY_SOURCE
    tag: int = 0
    sequence: int = 0
    tensors: Sequence[tuple[Any, tuple[int, ...]]] = ()
    options: Any = None
    splits: tuple[Split, Split] | None = None
    number: int = 0
    world_size: int = 0
    done: bool = False
    is_followed: bool = False

    def __init__(
        self,
        op: str,
        kind: str,
        ranks: Iterable[int] = (),
        words: object = "",
        has_limit: bool = False,
        freed_with: str = "",
    ):
        called, self.lines = caller_of(sys._getframe(1))
        self.op = op or called
        self.kind = kind
        self.words = str(words)
        self.ranks = tuple(map(private.whole, ranks))
        self.has_limit = bool(has_limit)
        self.freed_with = freed_with

    @property
    def message_kind(self) -> Kind:
        """What messages like this one are counted by."""
        return Kind(self.method == "send", self.group, self.peer, self.tag)

    @property
    def is_async(self) -> bool:
        """Whether a collective returns at once."""
        return getattr(self.options, "asyncOp", False)

    @property
    def root(self) -> int:
        """The number in the group of the rank that a collective starts from, or ends at."""
        if isinstance(self.options, int):
            return self.options
        return getattr(self.options, "rootRank", 0)


class Log:
    """The calls of this rank that communicate, and its waits for them; one object a process, `LOG`.

    Attributes:
        activity: grows with everything that is noted; equal at two times if nothing happened in
            between.
        freed: how often the watchdog has freed this rank.
        cells: how many cells and calls of the notebook have ended.
        of_parent: in a process that was forked from this rank, the groups and Works of the rank,
            whose connections it does not have.

    The others are forgotten when the group is built again, see `forget`:

        waiting_in: the call that each thread waits in; None after its end. An interrupt that hits
            `InCall` itself may leave its call there.
        entered: the notes that each thread has entered and not left, the innermost last. Tasks of
            an event loop leave in any order.
        closed: whether the watchdog has freed this rank, which begins no more calls.
        collectives: the newest collectives of each group.
        messages: counts the messages that were begun, and those whose Work was dropped.
        kept_works: Works of sends that checked mode lets arrive, by group.
        members: ranks of the groups that were destroyed, by name.
        new_groups: the newest groups that this rank has begun to make with new_group.
        meetings: how often this rank has met the other members of a group of the world that it is
            in, by its name, before it was built.
        ties: the note of each Work or Future that is alive.
        unwaited: calls that return at once and were not waited for, with their Work and the number
            of the cell.
        more_unwaited: whether older ones of these were forgotten.
        destroyed: the learner's last call that destroyed a group.
        worlds: the newest calls of init_process_group for which every rank has come.
        results: functional collectives that were not waited for yet, by the storage of the result.
        shared_with_cpp: names of groups in which C++ begins collectives as well.
        nccl_groups: names of groups for which the program named NCCL, whatever they got.
        passes: counts the passes of models in training.
    """

    def __init__(self) -> None:
        self.activity = 0
        self.freed = 0
        self.cells = 0
        self.of_parent: tuple[Any, ...] = ()
        self.forget()

    def forget(self) -> None:
        """Forget every call; the group that they were made in is gone."""
        self.waiting_in: dict[int, Note | None] = {}
        self.entered: defaultdict[int, list[Note]] = defaultdict(list)
        self.closed = False
        self.collectives: defaultdict[str, deque[Note]] = defaultdict(_no_notes)
        self.messages = MessageCounter()
        self.kept_works: dict[str, list[Any]] = {}
        self.members: dict[str, tuple[int, ...]] = {}
        self.new_groups: deque[NewGroup] = deque(maxlen=REMEMBERED)
        self.meetings: Counter[str] = Counter()
        self.ties: weakref.WeakKeyDictionary[Any, Note] = weakref.WeakKeyDictionary()
        self.unwaited: dict[Note, tuple[weakref.ref[Any], int]] = {}
        self.more_unwaited = False
        self.destroyed: Note | None = None
        self.worlds: deque[Note] = _no_notes()
        self.results: dict[int, Note] = {}
        self.shared_with_cpp: set[str] = set()
        self.nccl_groups: set[str] = set()
        self.passes = PassCounter()

    def add(self, note: Note) -> None:
        """Note a call of a process group that begins."""
        self.check_open()
        self.activity += 1
        if note.kind == MESSAGE:
            note.peer = index(note.peer)  # a TypeError here, as torch would raise one
            note.tag = index(note.tag)
            note.sequence = self.messages.count(note.message_kind)
        else:
            before = self.collectives[note.group]
            newest = before[-1].sequence if before else 0
            note.sequence = newest + 1
            before.append(note)

    def take_back(self, note: Note) -> None:
        """Forget a call that was refused before it began."""
        if note.kind == MESSAGE:
            self.messages.take_back(note.message_kind)
            return
        of_group = self.collectives[note.group]
        if note in of_group:
            of_group.remove(note)

    def tie(self, work: Any, note: Note, is_lost_when_dropped: bool = False) -> None:
        """Remember the note of a Work or Future for as long as that is alive."""
        self.ties[work] = note
        if note.is_async or note.op in IMMEDIATE:
            self.unwaited[note] = (weakref.ref(work), self.cells)
            if len(self.unwaited) > MOST_UNWAITED:
                _forget_oldest(self.unwaited)
                self.more_unwaited = True
        if is_lost_when_dropped:
            weakref.finalize(work, _count_dropped, note, self.messages).atexit = False

    def remember_result(self, key: int, note: Note) -> None:
        """Remember the functional collective that made a storage, until it is waited for."""
        self.results[key] = note
        if len(self.results) > MOST_UNWAITED:
            _forget_oldest(self.results)

    def mark_ended(self, note: Note) -> None:
        """Note that a call was waited for until its end."""
        note.done = True
        self.unwaited.pop(note, None)

    def keep_dropped(self, note: Note, work: Any) -> None:
        """Keep the Work of a send that a program has dropped, until its group goes."""
        self.kept_works.setdefault(note.group, []).append(work)

    def forget_groups(self) -> None:
        """Forget the calls in groups that are gone, because a new world has the same names."""
        self.collectives = defaultdict(_no_notes)
        self.messages = MessageCounter()
        self.kept_works = {}
        self.unwaited = {}
        self.more_unwaited = False
        self.shared_with_cpp = set()
        self.nccl_groups = set()

    def forget_group(self, name: str) -> None:
        """Forget the calls in a group that is gone, whose name another one gets."""
        self.collectives.pop(name, None)
        self.members.pop(name, None)
        self.meetings.pop(name, None)
        for group in list(self.new_groups):
            if group.name == name:
                self.new_groups.remove(group)
        self.kept_works.pop(name, None)
        self.shared_with_cpp.discard(name)
        self.nccl_groups.discard(name)
        self.messages.forget_group(name)

    def free(self) -> None:
        """Begin no more calls of the group, and end the waits that are Python code.

        Runs on: any thread.
        """
        self.freed += 1
        self.closed = True

    def check_open(self) -> None:
        """Refuse a call of a rank that was freed, until its group is built again."""
        if self.closed:
            raise RuntimeError(freed.GROUP_IS_CLOSED)

    def begin_child(self) -> None:
        """Note that this process was forked from a rank, whose groups and Works it cannot use."""
        # kept, because destroying one would wait for gloo's threads, which are not here
        self.of_parent = (*private.GROUP_NAMES, *self.ties)
        PLUGINS.checker = None  # whose thread is not here, either
        THIS_RANK.gives_way = False
        PLUGINS.watcher = None

    def check_not_of_parent(self, used: Any) -> None:
        """Refuse a group or a Work of the rank that this was forked from: nothing ends its wait."""
        if not self.of_parent:
            return
        if any(used is one for one in self.of_parent):
            raise RuntimeError(
                f"This process was forked from rank {THIS_RANK.rank}, by a DataLoader worker or "
                "multiprocessing, and has none of its connections: communicate on the rank itself."
            )

    def end_cell(self) -> None:
        """Note the end of a cell or of a call of the notebook; report what is left behind."""
        self.cells += 1
        if self.unwaited and abandoned(self.unwaited):
            PLUGINS.send(Answer(0, unwaited=True))
        if self.destroyed is not None and not dist.is_initialized():
            PLUGINS.send(Answer(0, without_group=True))


def _no_notes() -> deque[Note]:
    """A row for the newest collectives of a group."""
    return deque(maxlen=REMEMBERED)


def _forget_oldest(remembered: dict[Any, Any]) -> None:
    oldest = next(iter(remembered))
    del remembered[oldest]


def _count_dropped(note: Note, messages: MessageCounter) -> None:
    """The Work of a message is gone.

    gloo forgets a message that nobody waited for, unless it was on its way before.
    """
    if not note.done:
        messages.mark_dropped(note.message_kind, note.sequence)


LOG = Log()
_NOTE = "distlab_note"  # the attribute of an error that has the note of the call that raised it


class InCall:
    """Inside this, the thread waits in the call of a note; afterwards, in what it waited in before.

    An error of the call leaves it in the form that a learner can read, if the note has one.
    """

    def __init__(self, note: Note):
        self._note = note

    def __enter__(self) -> Any:
        self._thread = threading.get_ident()
        LOG.entered[self._thread].append(self._note)
        LOG.waiting_in[self._thread] = self._note
        LOG.activity += 1
        return self

    def __exit__(self, _: Any, error: BaseException | None, *__: Any) -> None:
        LOG.activity += 1
        entered = LOG.entered[self._thread]
        if self._note in entered:
            entered.remove(self._note)
        LOG.waiting_in[self._thread] = entered[-1] if entered else None
        if isinstance(error, RuntimeError):  # what a wait for another rank ends in
            if self._note.readable is not None:
                readable = self._note.readable(error)
                vars(readable)[_NOTE] = self._note
                raise_instead(readable, error)
            vars(error).setdefault(_NOTE, self._note)


def note_of_error(error: BaseException) -> Note | None:
    """The note of the call that raised an error; None if it was raised in no call of the log."""
    return vars(error).get(_NOTE)


def caller_of(frame: FrameType | None) -> tuple[str, list[tuple[str, int, str]]]:
    """The function of torch.distributed that was called, and the learner's lines that led to it.

    The function is the outermost one on the stack; "" if there is none.
    """
    op = ""
    lines = []
    while frame is not None:
        code = frame.f_code
        if is_learners(code.co_filename):
            line = (code.co_filename, frame.f_lineno or 0, code.co_name)
            lines.append(line)
        elif lines:
            break
        elif code.co_filename == _C10D_FILE:
            op = code.co_name
        frame = frame.f_back
    return op, lines
