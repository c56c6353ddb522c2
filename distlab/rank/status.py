"""Reports what this rank's threads are doing, as the watchdog's thread sees it: idle, computing, or
waiting in a call.

Runs on every rank, when the notebook asks. Everything is read from outside: the Python frames of
the threads, the log, /proc. A proof of a deadlock relies on it: what looks idle need not be
finished, because a thread that sleeps, a timer or a task of an event loop may still send.
"""

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch.distributed as dist

from distlab.compat import torch as private
from distlab.compat import torch_rpc
from distlab.debugger.console import PERSON
from distlab.rank import around_cells
from distlab.rank.frames import executing, frames, importing, lines_of, lines_of_coroutine
from distlab.rank.log import LOG, MOST_KINDS, Note
from distlab.rank.membership import members_of
from distlab.rank.quiescence import loop_rounds, others_may_act, plans, timer_is_set
from distlab.rank.records import record_of
from distlab.rank.rpc import AGENT
from distlab.rank.this_rank import THIS_RANK
from distlab.rank.threads import DDP_CONSTRUCTOR, communication, waiter, waiting_threads
from distlab.wire import messages
from distlab.wire.messages import CallRecord, MessageCount, RankStatus
from distlab.wire.source import Line


class Traffic(NamedTuple):
    """Bytes in the connections of this rank.

    Attributes:
        moved: that were sent and have arrived, since each was opened.
        unread: that have arrived and wait to be read.
        unsent: that the other end has not received yet.
    """

    moved: int = 0
    unread: int = 0
    unsent: int = 0


def summary(
    main: int, ours: set[int], traffic: Callable[[], Traffic], loop: Any = None
) -> RankStatus:
    """What this rank is doing.

    Args:
        main: identifier of the main thread.
        ours: system numbers of threads that were there before the group, and so are not the
            learner's and not gloo's.
        traffic: what moves through gloo's sockets; called only if it matters.
        loop: the event loop on which cells run.
    """
    ours = ours | {
        thread.native_id for thread in threading.enumerate() if thread.name.startswith("distlab-")
    }
    thread = waiter(main)
    note, op = LOG.waiting_in.get(thread), communication(thread)
    first, of_main = next(frames(thread), None), next(frames(main), None)
    at = (id(first), first.f_lasti) if first else ()
    executes, imports = executing(of_main), importing(of_main)
    # a frame keeps its variables alive, and what follows takes long on a busy machine
    del first, of_main
    # whose coroutine waits until the event loop continues it
    cell = None if executes else around_cells.awaiting()
    begun = executes or cell is not None
    # which also looks at exceptions
    running = thread != main or begun or PERSON.asked or PERSON.is_open
    call = None
    if running and op:
        call = _what_is_known(thread, op) if note is None else record_of(note)
    doing = messages.COMMUNICATING if call else messages.COMPUTING if running else messages.IDLE
    # while the main thread is in a call, the event loop continues nothing; one task may wait by
    # hand, and another run
    loop_stands = executes and call is not None and call.kind != messages.WAITING
    # one that computes moves; to ask more would take long: Python's lock is given back at every
    # system call
    bytes_now = Traffic() if doing == messages.COMPUTING else traffic()
    rounds = None if doing == messages.COMPUTING else loop_rounds(ours)
    serving = _serving()
    passes = LOG.passes.of_cell(LOG.cells if begun else LOG.cells - 1)
    still = rounds is not None and torch_rpc.threads_at_work() == len(serving)
    return RankStatus(
        rank=THIS_RANK.rank,
        doing=doing,
        call=call,
        lines=(thread == main and lines_of_coroutine(cell)) or lines_of(thread) or lines_of(main),
        idle=not begun,
        awaiting=cell is not None,
        sleeping=doing == messages.COMPUTING and thread == main and _sleeps(lines_of(main)),
        paused=PERSON.asked,
        importing=imports,
        groups=dist.get_pg_count(),
        made=tuple(LOG.new_groups),
        passes=passes.forward,
        averaging_passes=passes.averaging,
        backward_passes=passes.backward,
        history=() if doing == messages.COMPUTING else _history(),
        traffic=tuple(_traffic()),
        more_traffic=len(LOG.traffic) > MOST_KINDS,
        # a call that is noted may wait in a loop of Python's, whose frames come and go; its end
        # would be noted
        fingerprint=(*(at if call and note is None else ()), LOG.activity, bytes_now.moved),
        is_quiescent=still
        and not others_may_act(main, ours)
        and not timer_is_set()
        and (loop_stands or not plans(loop)),
        unread=bytes_now.unread,
        unsent=bytes_now.unsent,
        gloo_wakeups=rounds or (),
        threads=AGENT.threads if AGENT.workers else 0,
        serving=serving,
        abandoned=tuple(record_of(note) for note in LOG.abandoned()),
        pending=tuple(record_of(note) for note in LOG.pending()),
        more_unwaited=LOG.more_unwaited,
        destroyed=record_of(LOG.destroyed) if LOG.destroyed else None,
        other_threads=tuple(
            _thread(other, LOG.waiting_in[other])
            for other in waiting_threads()
            if other not in (main, thread)
        ),
    )


def _serving() -> tuple[RankStatus, ...]:
    """What this rank is running for others, by remote calls."""
    serving = list(AGENT.serving.items())
    return tuple(
        _thread(t, LOG.waiting_in.get(t), caller=one.caller, function=one.function)
        for t, one in serving
    )


def _thread(thread: int, note: Note | None, **served: Any) -> RankStatus:
    """What a thread other than the main one is doing; for whom, if it has a caller."""
    doing = messages.COMPUTING if note is None else messages.COMMUNICATING
    return RankStatus(
        THIS_RANK.rank, doing, record_of(note) if note else None, lines_of(thread), **served
    )


def _what_is_known(thread: int, op: str) -> CallRecord:
    """Who takes part in a wait that no call of a group explains, and whether it may end by itself.

    All may, except what C++ sends for a model in training.
    """
    everyone = tuple(range(THIS_RANK.world_size))
    may_end = any(members_of(name)[1] for name in list(private.GROUP_NAMES.values()))
    in_training = op in ("backward", DDP_CONSTRUCTOR, messages.DDP_FORWARD) and os.path.isdir(
        "/proc/self/task"
    )
    return CallRecord(op, messages.OTHER, everyone, may_end or not in_training)


def _history() -> tuple[CallRecord, ...]:
    """The newest collectives of every group; asynchronous ones let a rank be many ahead of the
    others.

    Only the last one of each group has its lines, which a report may need of a rank that has
    finished.
    """
    return tuple(
        record_of(note, with_lines=is_last)
        for notes in list(LOG.collectives.values())
        for is_last, note in _with_last(list(notes))
    )


def _with_last(notes: list[Note]) -> Iterator[tuple[bool, Note]]:
    """Each note, and whether it is the last."""
    for place, note in enumerate(notes, 1):
        yield place == len(notes), note


def _traffic() -> Iterator[MessageCount]:
    """How many messages of each kind were begun; of the newest kinds."""
    for key, count in list(LOG.traffic.items())[-MOST_KINDS:]:
        is_send, group, place, tag = key
        members = members_of(group)[0] or LOG.members.get(group, ())
        peer = dict(enumerate(members)).get(place)
        dropped = LOG.dropped.get(key, [])
        yield MessageCount(is_send, group, peer, tag, count, len(dropped), min(dropped, default=0))


def _sleeps(lines: tuple[Line, ...]) -> bool:
    """Whether the main thread waits for a timer alone, as Linux sees it; where it does not say, by
    the line's text.
    """
    text = lines[-1].text if lines else ""
    # a coroutine's sleep is awaited, or just being continued
    says_sleep = "sleep(" in text and "await " not in text
    with contextlib.suppress(OSError), open(f"/proc/self/task/{os.getpid()}/wchan") as place:
        seen = place.read()
        if sys.version_info < (3, 11) and ("poll" in seen or "select" in seen):
            return says_sleep  # time.sleep of Python 3.10 is a select of no file
        if seen not in ("", "0"):
            return "nanosleep" in seen
    return says_sleep
