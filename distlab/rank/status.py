"""What this rank is doing, told from another thread than the one that does it: idle, computing, or in which call.

Runs on every rank, on the watchdog's thread, when the notebook asks. Everything is read from outside: the threads'
Python frames, the notes of hooks.py, and what activity.py finds.
"""

from __future__ import annotations

import contextlib
import importlib._bootstrap
import importlib._bootstrap_external
import os
import sys
from collections.abc import Callable
from types import FrameType, ModuleType
from typing import Any

import torch.distributed as dist

from distlab.compat import ipyparallel, ipython, torch_rpc
from distlab.compat import torch as private
from distlab.rank import activity
from distlab.rank.activity import frames
from distlab.rank.log import C10D, LOG, REMEMBERED, members_of
from distlab.rank.rpc import AGENT
from distlab.wire import messages
from distlab.wire.messages import Begun, CallRecord, Line, MessageCount, RankStatus, ServedCall
from distlab.wire.source import is_learners, is_shown, line_of

DDP, DDP_HELPERS = "torch.nn.parallel.distributed", "torch.distributed.utils"
CELLS = {ipython.CELL, ipyparallel.CALL}


def place(frame: FrameType) -> tuple[str, str]:
    """The module and the function that a frame runs; a learner's function may have any name."""
    return frame.f_globals.get("__name__", ""), frame.f_code.co_name


def communication(thread: int) -> str:
    """The name of what the thread waits in when it is inside torch.distributed or a backward pass; "" otherwise."""
    note = LOG.now.get(thread)
    if note is not None:
        return note.op or note.method
    found, innermost = "", ""
    for frame in frames(thread):
        module, function = place(frame)
        innermost = innermost or module
        if module == C10D:
            found = function
        elif module == DDP and innermost in (DDP, DDP_HELPERS):  # not in the model that it calls
            found = "DistributedDataParallel"
        elif module.startswith("torch.autograd") and not found:
            found = "backward"
        elif module.startswith(private.DTENSOR_MODULE):
            found = function
        elif module.startswith("torch.distributed") and not found:
            found = function if module == private.FUNCTIONAL_MODULE else module.rsplit(".", 1)[1]
        elif not module.startswith(("torch.", "distlab.")):
            break
    return found


def executing(frame: FrameType | None) -> bool:
    """Whether this frame, or one that it was called from, is code of a cell or of a call of the notebook's.

    What the engine does around that code, such as unpacking a message or sending a reply, does not count.
    """
    inner = None
    for outer in activity.outwards(frame):
        if place(outer) in CELLS:
            return inner is not None and inner.f_code.co_name.startswith("<")  # the code that exec runs
        inner = outer
    return False


def importing(frame: FrameType | None) -> bool:
    """Whether a cell or a call of the notebook is in an import that must not be torn: every later one would fail.

    A module of the learner's own may be torn: it may compute or communicate for as long as it likes.

    Runs on: a rank, in any thread.
    """
    machinery = vars(importlib._bootstrap), vars(importlib._bootstrap_external)
    inner = None
    for outer in activity.outwards(frame):
        if not any(outer.f_globals is namespace for namespace in machinery):
            inner = outer
        elif inner is None or not is_learners(inner.f_code.co_filename):
            return executing(frame)
    return False


def waiter(main: int, others: list[int]) -> int:
    """The thread that this rank waits with: the main one, or another while that is idle or waits for a thread."""
    if communication(main):
        return main
    running = sys._current_frames().get(main)
    waiting = [thread for thread in others if LOG.now.get(thread) and communication(thread)]
    return waiting[0] if waiting and (not executing(running) or _waits_for_a_thread(running)) else main


def _waits_for_a_thread(frame: FrameType | None) -> bool:
    """Whether the main thread waits without a limit in join, result or get, which only another thread can end."""
    if frame is None or frame.f_globals.get("__name__") != "threading":
        return False
    return frame.f_locals.get("timeout", -1) in (None, -1)


def summary(main: int, ours: set[int], traffic: Callable[[], tuple[int, bool]], loop: Any = None) -> RankStatus:
    """What this rank does.

    Runs on: a rank, on the watchdog's thread.

    Args:
        main: identifier of the main thread. ours: system numbers of threads that are not the learner's and not gloo's.
        traffic: how many bytes gloo's sockets have moved, and whether one is under way; asked for where it matters.
        loop: the event loop on which cells run.
    """
    others = activity.actors(main, ours)
    thread = waiter(main, others)
    note, op = LOG.now.get(thread), communication(thread)
    first = next(frames(thread), None)
    running = thread != main or executing(first)
    call = None
    if running and op:
        call = _what_is_known(thread, op) if note is None else note.record()
    doing = messages.COMMUNICATING if call else messages.COMPUTING if running else messages.IDLE
    # one that computes moves; to ask more would take long: Python's lock is given back at every system call
    moved, under_way = (0, True) if doing == messages.COMPUTING else traffic()
    rounds = None if doing == messages.COMPUTING else activity.rounds(ours)
    still = rounds is not None and set(others) <= {thread} and not under_way and not activity.plans(main, loop)
    serving = _serving()
    still = still and torch_rpc.threads_at_work() == len(serving)
    return RankStatus(
        rank=LOG.rank,
        doing=doing,
        call=call,
        lines=_lines(thread) or _lines(main),
        idle=not executing(next(frames(main), None)),
        importing=importing(next(frames(main), None)),
        begun=_begun(),
        groups=dist.get_pg_count(),
        history=() if doing == messages.COMPUTING else _history(),
        traffic=_traffic(),
        # a call that is noted may wait in a loop of Python's, whose frames come and go; its end would be noted
        mark=(*((id(first), first.f_lasti) if call and note is None else ()), LOG.total, moved),
        quiet=still,
        rounds=rounds or (),
        serves=AGENT.worker is not None,
        threads=AGENT.worker.threads if AGENT.worker else 0,
        serving=serving,
    )


def _serving() -> tuple[ServedCall, ...]:
    """What this rank runs for others, by remote calls."""
    found = []
    for thread, served in list(AGENT.serving.items()):
        note = LOG.now.get(thread)
        call = None if note is None else note.record()
        found.append(ServedCall(served.caller, served.function, call, _lines(thread)))
    return tuple(found)


def _what_is_known(thread: int, op: str) -> CallRecord:
    """Who takes part in a wait that no call of a group explains, and whether it may end by itself.

    All may but new_group, of which it is known how many have been begun, what C++ sends for a model in training, and
    functional collectives, which C++ counts.
    """
    everyone = tuple(range(LOG.world_size))
    may_end = any(members_of(name)[1] for _, name in private.group_names())
    for frame in frames(thread):
        if place(frame) == (private.FUNCTIONAL_MODULE, "wait_tensor"):
            return CallRecord(op, messages.FUNCTIONAL, everyone, may_end)
        if op == "new_group" and place(frame) == (C10D, op):
            ranks, limit = frame.f_locals.get("ranks"), frame.f_locals.get("timeout")
            members = everyone if ranks is None else tuple(sorted(ranks))
            # a group that only its members make is not counted
            count = 0 if frame.f_locals.get("use_local_synchronization") else dist.get_pg_count()
            return CallRecord(op, messages.OTHER, members, limit is not None, sequence=count)
    in_training = op in ("backward", "DistributedDataParallel") and os.path.isdir("/proc/self/task")
    return CallRecord(op, messages.OTHER, everyone, may_end or not in_training)


def _begun() -> dict[str, Begun]:
    """By group, how many collectives this rank has begun, also those that C++ makes, and the members."""
    found = {}
    for group, name in private.group_names():
        with contextlib.suppress(Exception):  # not every backend counts
            found[name] = Begun(private.collectives_begun(group), tuple(dist.get_process_group_ranks(group)))
    return found


def _history() -> tuple[CallRecord, ...]:
    """The newest collectives of every group; asynchronous ones let a rank be many ahead of the others."""
    return tuple(note.record(with_lines=False) for notes in list(LOG.collectives.values()) for note in list(notes))


def _traffic() -> tuple[MessageCount, ...]:
    """Numbers of messages, of the newest kinds."""
    dropped, rows = dict(LOG.dropped), []
    for key, count in list(LOG.traffic.items())[-2 * REMEMBERED :]:
        is_send, group, peer, tag = key
        members, _ = members_of(group)
        rank = dict(enumerate(members)).get(peer)
        rows.append(MessageCount(is_send, group, rank, tag, count, dropped.get(key, 0)))
    return tuple(rows)


def variables() -> tuple[str, ...]:
    """Names that the learner has defined on this rank, modules left out."""
    given = {"rank", "world_size", "mpi_rank", "mpi_size", "In", "Out", "exit", "quit", "open", "get_ipython"}
    defined = dict(sys.modules["__main__"].__dict__)
    names = (name for name, value in defined.items() if not isinstance(value, ModuleType))
    return tuple(sorted(name for name in names if not name.startswith("_") and name not in given))


def _lines(thread: int) -> tuple[Line, ...]:
    """The learner's lines that a thread is in, outermost first."""
    learners = [frame for frame in frames(thread) if is_shown(frame.f_code.co_filename)]
    return tuple(line_of(f.f_code.co_filename, f.f_lineno, f.f_code.co_name) for f in reversed(learners))
