"""Reports what this rank is doing, as the watchdog sees it: idle, computing, or waiting in a call.

Runs on every rank, on the watchdog's thread, when the notebook asks. Everything is read from
outside: the Python frames of the threads, the log, /proc. A proof of a deadlock relies on it: what
looks idle need not be finished, because a thread that sleeps, a timer or a task of an event loop
may still send.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch.distributed as dist

from distlab.compat import torch as private
from distlab.compat import torch_rpc
from distlab.debugger.console import CONSOLE
from distlab.rank import around_cells
from distlab.rank.connections import Traffic
from distlab.rank.frames import (
    frames,
    is_executing,
    is_importing,
    lines_of_coroutine,
    lines_of_thread,
)
from distlab.rank.left_behind import abandoned, pending
from distlab.rank.log import LOG, Note
from distlab.rank.membership import ends_soon_in, members_of
from distlab.rank.message_counter import MOST_KINDS
from distlab.rank.quiescence import gloo_wakeups, nothing_may_act
from distlab.rank.records import record_of
from distlab.rank.rpc import AGENT
from distlab.rank.this_rank import THIS_RANK
from distlab.rank.threads import (
    DDP_CONSTRUCTOR,
    name_of_wait,
    own_tids,
    thread_that_waits,
    waiting_threads,
)
from distlab.wire import messages
from distlab.wire.messages import CallRecord, MessageCount, RankStatus
from distlab.wire.source import Line


def summary(
    main: int,
    infrastructure_tids: set[int],
    traffic: Callable[[], Traffic],
    loop: asyncio.AbstractEventLoop | None = None,
) -> RankStatus:
    """What this rank is doing.

    Nothing stands still meanwhile, and so the order matters. The frames are read first, and are let
    go at once. They decide whether the rank computes; only of a rank that does not, the bytes in
    its sockets and the wakeups of gloo's threads are read. Then come the calls that it remembers,
    and only after all these the count of what was noted, which is the fingerprint: if two statuses
    have the same one, nothing that was read before it has changed since the first one. Then it is
    asked whether anything may still act by itself; the calls that nobody waits for, and what other
    threads wait in, are read last.

    Args:
        main: identifier of the main thread.
        infrastructure_tids: the system's numbers of threads that were there before the group, and
            so are not the learner's and not gloo's.
        traffic: what moves through gloo's sockets; called only if it matters.
        loop: the event loop on which cells run.
    """
    infrastructure_tids = infrastructure_tids | own_tids()
    look = _look(main)
    doing, call = _doing(look)
    gloo = _look_at_gloo(doing, traffic, infrastructure_tids)
    serving = _serving()
    is_still = gloo.wakeups is not None and torch_rpc.threads_at_work() == len(serving)
    status = _with_calls(_without_calls(look, doing, call, gloo, serving))
    activity = LOG.activity
    fingerprint = (*_position(look, call), activity, gloo.traffic.moved)
    is_quiescent = is_still and nothing_may_act(
        main, infrastructure_tids, loop, loop_stands=_loop_stands(look, call)
    )
    return replace(
        status,
        activity=activity,
        fingerprint=fingerprint,
        is_quiescent=is_quiescent,
        abandoned=tuple(map(record_of, abandoned(LOG.unwaited))),
        pending=tuple(map(record_of, pending(LOG.unwaited, LOG.cells))),
        other_threads=_other_threads(look),
    )


class _Gloo(NamedTuple):
    """What /proc and the sockets show of gloo.

    Attributes:
        traffic: what moves through its sockets.
        wakeups: how often each of its threads has run; None if that is not known, or was not asked.
    """

    traffic: Traffic
    wakeups: tuple[int, ...] | None


def _look_at_gloo(
    doing: str, traffic: Callable[[], Traffic], infrastructure_tids: set[int]
) -> _Gloo:
    """What gloo does, unless the rank computes."""
    if doing == messages.COMPUTING:
        # one that computes moves, whatever these say; and to ask would take long: Python's lock is
        # given back at every system call, and must be waited for again
        return _Gloo(Traffic(), wakeups=None)
    return _Gloo(traffic(), gloo_wakeups(infrastructure_tids))


def _without_calls(
    look: _Look,
    doing: str,
    call: CallRecord | None,
    gloo: _Gloo,
    serving: tuple[RankStatus, ...],
) -> RankStatus:
    """The status so far, without the calls that the log remembers."""
    return RankStatus(
        rank=THIS_RANK.rank,
        doing=doing,
        call=call,
        lines=_lines(look),
        idle=not look.has_begun,
        awaiting=look.task is not None,
        sleeping=doing == messages.COMPUTING and look.is_of_main and _sleeps(look.main),
        paused=CONSOLE.is_asking,
        importing=look.imports,
        unread=gloo.traffic.unread,
        unsent=gloo.traffic.unsent,
        gloo_wakeups=gloo.wakeups or (),
        threads=AGENT.threads if AGENT.workers else 0,
        serving=serving,
    )


def _loop_stands(look: _Look, call: CallRecord | None) -> bool:
    """Whether the main thread is where the event loop of cells continues nothing.

    It is so while the main thread is in a call. A wait by hand, in distlab.waiting, is another
    thing: one task may be in it while another one runs.
    """
    return look.executes and call is not None and call.kind != messages.WAITING


# --- the look at the frames ---


@dataclass(frozen=True)
class _Look:
    """What the frames of the rank's threads showed at one moment.

    It holds no frame, but the task of a cell does while it waits.

    Attributes:
        main: the main thread.
        thread: the one that the rank waits with: the main thread, or another one for it.
        note: the note of the call that this thread waits in.
        op: the name of what it waits in; "" if it does not communicate.
        position: its innermost frame, and the instruction there.
        executes: whether the main thread runs code of a cell or of a call of the notebook.
        imports: whether the main thread is importing a library.
        task: the task of the cell whose coroutine waits until the event loop continues it.
    """

    main: int
    thread: int
    note: Note | None
    op: str
    position: tuple[int, ...]
    executes: bool
    imports: bool
    task: asyncio.Task[Any] | None

    @property
    def has_begun(self) -> bool:
        """Whether a cell or a call of the notebook has begun here and has not ended."""
        return self.executes or self.task is not None

    @property
    def is_of_main(self) -> bool:
        """Whether the main thread is the one that the rank waits with."""
        return self.thread == self.main


def _look(main: int) -> _Look:
    """Look at the frames.

    A frame keeps its variables alive. What comes after this function takes long on a busy machine,
    and by its end both frames are gone: tensors of a learner's that a cell has left would otherwise
    live on for as long.
    """
    thread = thread_that_waits(main)
    note = LOG.waiting_in.get(thread)
    op = name_of_wait(thread)
    innermost = next(frames(thread), None)
    of_main = next(frames(main), None)
    executes = is_executing(of_main)
    return _Look(
        main=main,
        thread=thread,
        note=note,
        op=op,
        position=() if innermost is None else (id(innermost), innermost.f_lasti),
        executes=executes,
        imports=is_importing(of_main),
        task=None if executes else around_cells.awaiting(),
    )


def _doing(look: _Look) -> tuple[str, CallRecord | None]:
    """Whether the rank is idle, computes or communicates; in the last case, the call that it is in.

    A person who looks at an exception, after its cell has ended, also keeps the rank busy.
    """
    is_in_debugger = CONSOLE.is_asking or CONSOLE.is_open
    if look.is_of_main and not look.has_begun and not is_in_debugger:
        return messages.IDLE, None
    if not look.op:
        return messages.COMPUTING, None
    if look.note is None:
        return messages.COMMUNICATING, _what_is_known(look.op)
    return messages.COMMUNICATING, record_of(look.note)


def _what_is_known(op: str) -> CallRecord:
    """Who takes part in a wait that no call of a group explains, and whether it may end by itself.

    All may end by themselves, except what C++ sends for a model in training: DDP's all-reduces wait
    for every rank. That is said only where /proc shows what gloo's threads do.
    """
    everyone = tuple(range(THIS_RANK.world_size))
    in_training = op in ("backward", DDP_CONSTRUCTOR, messages.DDP_FORWARD)
    can_be_judged = in_training and os.path.isdir("/proc/self/task")
    ends_soon = any(map(ends_soon_in, list(private.GROUP_NAMES.values())))
    return CallRecord(op, messages.OTHER, everyone, own_limit=ends_soon or not can_be_judged)


def _position(look: _Look, call: CallRecord | None) -> tuple[int, ...]:
    """Where a rank waits, as far as that is part of its fingerprint.

    Only for a call without a note: one with a note may wait in a loop of Python's, whose frames
    come and go, and its end would be noted.
    """
    if call is None or look.note is not None:
        return ()
    return look.position


def _lines(look: _Look) -> tuple[Line, ...]:
    """The learner's lines that the rank is at: of its coroutine, of its thread, of its main one."""
    if look.is_of_main:
        lines = lines_of_coroutine(look.task)
        if lines:
            return lines
    return lines_of_thread(look.thread) or lines_of_thread(look.main)


def _sleeps(main: int) -> bool:
    """Whether the main thread waits for a timer alone, as Linux sees it.

    Where Linux does not say what a thread waits for, the text of its line decides.
    """
    lines = lines_of_thread(main)
    text = lines[-1].text if lines else ""
    # a coroutine's sleep is awaited, or just being continued
    says_sleep = "sleep(" in text and "await " not in text
    with contextlib.suppress(OSError), open(f"/proc/self/task/{os.getpid()}/wchan") as file:
        kernel_function = file.read()
        polls = "poll" in kernel_function or "select" in kernel_function
        if polls and sys.version_info < (3, 11):
            return says_sleep  # time.sleep of Python 3.10 is a select of no file
        if kernel_function not in ("", "0"):
            return "nanosleep" in kernel_function
    return says_sleep


# --- what the log remembers ---


def _with_calls(status: RankStatus) -> RankStatus:
    """The status with what this rank has begun, as its log has it."""
    # on a rank that is idle, the cell that counts is the one that ended last
    cell = LOG.cells - 1 if status.idle else LOG.cells
    passes = LOG.passes.of_cell(cell)
    return replace(
        status,
        groups=dist.get_pg_count(),
        made=tuple(LOG.new_groups),
        passes=passes.forward,
        averaging_passes=passes.averaging,
        backward_passes=passes.backward,
        # left out of a rank that computes, to answer at once
        history=() if status.doing == messages.COMPUTING else _history(),
        traffic=tuple(_traffic()),
        more_traffic=len(LOG.messages.begun) > MOST_KINDS,
        more_unwaited=LOG.more_unwaited,
        destroyed=record_of(LOG.destroyed) if LOG.destroyed else None,
        worlds=tuple(map(record_of, list(LOG.worlds))),
    )


def _history() -> tuple[CallRecord, ...]:
    """The newest collectives of every group: a rank may be many asynchronous ones ahead of others.

    Only the last one of each group has its lines, which a report may need of a rank that has
    finished.
    """
    found = []
    for notes in list(LOG.collectives.values()):
        remembered = list(notes)  # a thread of the learner's may add to it meanwhile
        for note in remembered:
            found.append(record_of(note, with_lines=note is remembered[-1]))
    return tuple(found)


def _traffic() -> Iterator[MessageCount]:
    """How many messages of each kind were begun; of the newest kinds."""
    newest = list(LOG.messages.begun.items())[-MOST_KINDS:]
    for kind, count in newest:
        members = members_of(kind.group) or LOG.members.get(kind.group, ())
        dropped = LOG.messages.dropped.get(kind, [])
        yield MessageCount(
            is_send=kind.is_send,
            group=kind.group,
            peer=dict(enumerate(members)).get(kind.peer),
            tag=kind.tag,
            sequence=count,
            dropped=len(dropped),
            first_dropped=min(dropped, default=0),
        )


# --- other threads ---


def _serving() -> tuple[RankStatus, ...]:
    """What this rank is running for others, by remote calls."""
    found = []
    for thread, served in list(AGENT.serving.items()):
        status = _status_of_thread(thread, LOG.waiting_in.get(thread))
        found.append(replace(status, caller=served.caller, function=served.function))
    return tuple(found)


def _other_threads(look: _Look) -> tuple[RankStatus, ...]:
    """What further threads that wait in a call are doing."""
    threads = [thread for thread in waiting_threads() if thread not in (look.main, look.thread)]
    return tuple(_status_of_thread(thread, LOG.waiting_in[thread]) for thread in threads)


def _status_of_thread(thread: int, note: Note | None) -> RankStatus:
    """What a thread other than the main one is doing."""
    if note is None:
        return RankStatus(THIS_RANK.rank, messages.COMPUTING, None, lines_of_thread(thread))
    call = record_of(note)
    return RankStatus(THIS_RANK.rank, messages.COMMUNICATING, call, lines_of_thread(thread))
