"""What this rank is doing, told from another thread than the one that does it: idle, computing, or in which call.

Runs on every rank, on the sentinel's thread, when the notebook asks. Everything is read from outside: the threads'
Python frames, the notes of calls.py, and what quiet.py finds.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from types import FrameType, ModuleType
from typing import Any

import torch.distributed as dist

from distlab import quiet
from distlab.notes import C10D, COLLECTIVES, NOTES, POINT_TO_POINT, REDUCING, REMEMBERED, ROOTED, Note
from distlab.source import is_learners, line_of

TORCH = "torch."
BACKWARD = "torch.autograd"
DDP, DDP_HELPERS = "torch.nn.parallel.distributed", "torch.distributed.utils"
POLLING = ("distlab.mpi_work",)  # modules that wait by looking again and again
LAYER = "distlab.calls"
FUNCTIONAL = "torch.distributed._functional_collectives"  # collectives that C++ makes, as for DTensor
CELLS = {("IPython.core.interactiveshell", "run_code"), ("ipyparallel.engine.kernel", "do_apply")}


def frames(thread: int) -> Iterator[FrameType]:
    """The Python frames of a thread, innermost first."""
    yield from quiet.outwards(sys._current_frames().get(thread))


def place(frame: FrameType) -> tuple[str, str]:
    """The module and the function that a frame runs; a learner's function may have any name."""
    return frame.f_globals.get("__name__", ""), frame.f_code.co_name


def communication(thread: int) -> str:
    """The name of what the thread waits in when it is inside torch.distributed or a backward pass; "" otherwise."""
    note = NOTES.now.get(thread)
    if note is not None:
        return "" if _interrupts(thread) else note.op or note.method
    found, innermost = "", ""
    for frame in frames(thread):
        module, function = place(frame)
        innermost = innermost or module
        if module == C10D:
            found = function
        elif module == DDP and innermost in (DDP, DDP_HELPERS):  # not in the model that it calls
            found = "DistributedDataParallel"
        elif module.startswith(BACKWARD) and not found:
            found = "backward"
        elif module.startswith("torch.distributed.tensor._api"):
            found = function
        elif module.startswith("torch.distributed") and not found:
            found = function if module == FUNCTIONAL else module.rsplit(".", 1)[1]
        elif not module.startswith((TORCH, "distlab.")):
            break
    return found


def _interrupts(thread: int) -> bool:
    """Whether the learner's handler of a signal runs on top of a wait; other code there, as of a group's, may wait."""
    handlers = None
    for frame in frames(thread):
        if frame.f_globals.get("__name__") == LAYER:
            return False
        if is_learners(frame.f_code.co_filename):
            handlers = quiet.handlers() if handlers is None else handlers
            if frame.f_code in handlers:
                return True
    return False


def executing(frame: FrameType | None) -> bool:
    """Whether this frame, or one that it was called from, is code of a cell or of a call of the notebook's.

    What the engine does around that code, such as unpacking a message or sending a reply, does not count.
    """
    inner = None
    for outer in quiet.outwards(frame):
        if place(outer) in CELLS:
            return inner is not None and inner.f_code.co_name.startswith("<")  # the code that exec runs
        inner = outer
    return False


def waiter(main: int, others: list[int]) -> int:
    """The thread that this rank waits with: the main one, or another while that is idle or waits for a thread."""
    if communication(main):
        return main
    running = sys._current_frames().get(main)
    waiting = [thread for thread in others if thread in NOTES.now and communication(thread)]
    return waiting[0] if waiting and (not executing(running) or _waits_for_a_thread(running)) else main


def _waits_for_a_thread(frame: FrameType | None) -> bool:
    """Whether the main thread waits without a limit in join, result or get, which only another thread can end."""
    return (
        frame is not None
        and frame.f_globals.get("__name__") == "threading"
        and frame.f_locals.get("timeout", -1) in (None, -1)
    )


def summary(
    main: int,
    ours: set[int],
    find_sockets: Callable[[], list[tuple[int, int]]],
    loop: Any = None,
) -> dict[str, Any]:
    """What this rank does, as plain values.

    Runs on: a rank, on the sentinel's thread.

    Args:
        main: identifier of the main thread. ours: system numbers of threads that are not the learner's and not gloo's.
        find_sockets: finds gloo's sockets as (descriptor, inode). loop: the event loop on which cells run.

    Returns:
        doing ("idle", "computing", "communicating"), idle (whether the main thread is), lines (the learner's,
        outermost first, as describe_failure has them), call (a described call, or one with only an op; None), seconds
        (in the call; None), counts and history (collectives by group), begun (the same with those that C++ makes, and
        the members), groups (how many were made), traffic (numbers of messages), mark (equal in two summaries when
        nothing happened between them), quiet (nothing is on its way and nothing else computes or may act) and rounds
        (how often gloo's own threads, which look every few milliseconds whether something came, have run).
    """
    others = quiet.actors(main, ours)
    thread = waiter(main, others)
    note, op = NOTES.now.get(thread), communication(thread)
    first = next(frames(thread), None)
    running = thread != main or executing(first)
    here = next((frame for frame in frames(thread) if frame.f_globals.get("__name__") not in POLLING), first)
    polls = here is not first
    call = None
    if running and op and note is not None:
        call = {**describe(note), "op": op}
    elif running and op:
        call = {"op": op, **_what_is_known(thread, op)}
    doing = "communicating" if call else "computing" if running else "idle"
    # one that computes moves; to ask more would take long: Python's lock is given back at every system call
    mine = [] if doing == "computing" else find_sockets()
    still = (
        doing != "computing"
        and set(others) <= {thread}
        and quiet.still(ours | ({quiet.native_id(thread)} if polls else set()))
        and not quiet.under_way(mine)
        and not quiet.plans(loop)
    )
    return {
        "doing": doing,
        "idle": not executing(next(frames(main), None)),
        "lines": _lines(thread) or _lines(main),
        "call": call,
        "seconds": time.monotonic() - note.began if note is not None and running else None,
        "counts": dict(NOTES.counts),
        "begun": _begun(),
        "groups": dist.get_pg_count(),
        "history": [] if doing == "computing" else [describe(old, lines=False) for old in _collectives()],
        "traffic": _traffic(),
        "mark": [*((id(here), here.f_lasti) if call else ()), NOTES.total, quiet.bytes_moved(mine)],
        "quiet": still,
        "rounds": quiet.rounds() if still else [],
    }


def _what_is_known(thread: int, op: str) -> dict[str, Any]:
    """Who takes part in a wait that no call of a group explains, and whether it may end by itself.

    All may but new_group, of which it is known how many have been begun, what C++ sends for a model in training, and
    functional collectives, which C++ counts.
    """
    everyone = list(range(NOTES.world_size))
    places = [place(frame) for frame in frames(thread)]
    limits = [_members(name)[1] for name in list(dist.distributed_c10d._world.pg_names.values())]
    if (FUNCTIONAL, "wait_tensor") in places:
        return {"kind": "functional", "members": everyone, "own_limit": any(limits)}
    for frame in frames(thread) if op == "new_group" else ():
        if place(frame) == (C10D, op):
            ranks, limit = frame.f_locals.get("ranks"), frame.f_locals.get("timeout")
            members = everyone if ranks is None else sorted(ranks)
            # a group that only its members make is not counted
            count = 0 if frame.f_locals.get("use_local_synchronization") else dist.get_pg_count()
            return {"kind": "other", "members": members, "own_limit": limit is not None, "sequence": count}
    in_training = op in ("backward", "DistributedDataParallel") and os.path.isdir("/proc/self/task")
    return {"kind": "other", "members": everyone, "own_limit": not in_training or any(limits)}


def _begun() -> dict[str, tuple[int, list[int]]]:
    """By group, how many collectives this rank has begun, also those that C++ makes, and the members."""
    found = {}
    for group, name in list(dist.distributed_c10d._world.pg_names.items()):
        with contextlib.suppress(Exception):  # private, and not every backend counts
            found[name] = group._get_sequence_number_for_group(), dist.get_process_group_ranks(group)
    return found


def _collectives() -> Iterator[Note]:
    """The newest of every group; asynchronous ones let a rank be many ahead of the others."""
    for notes in list(NOTES.collectives.values()):
        yield from list(notes)


def _traffic() -> list[tuple[bool, str, int | None, int, int, int]]:
    """Numbers of messages as (is a send, group, peer's rank or None for any, tag, count, dropped), the newest kinds."""
    dropped, rows = dict(NOTES.dropped), []
    for key, count in list(NOTES.traffic.items())[-2 * REMEMBERED :]:
        is_send, group, peer, tag = key
        members, _ = _members(group)
        peer_rank = members[peer] if 0 <= peer < len(members) else None
        rows.append((is_send, group, peer_rank, tag, count, dropped.get(key, 0)))
    return rows


def variables() -> list[str]:
    """Names that the learner has defined on this rank, modules left out."""
    given = {"rank", "world_size", "mpi_rank", "mpi_size", "In", "Out", "exit", "quit", "open", "get_ipython"}
    return sorted(
        name
        for name, value in list(sys.modules["__main__"].__dict__.items())
        if not name.startswith("_") and name not in given and not isinstance(value, ModuleType)
    )


def describe(note: Note, lines: bool = True) -> dict[str, Any]:
    """A note as plain values that another process can read and compare, with the learner's `lines` or without."""
    members, own = _members(note.group)
    plain: dict[str, Any] = {
        "op": note.op or note.method,
        "kind": "message" if note.method in POINT_TO_POINT else "collective",
        "collective": COLLECTIVES.get(note.method, ""),
        "group": note.group,
        "members": members,
        "own_limit": note.own_limit or own,
        "sequence": note.sequence,
        "tensors": [[str(dtype).removeprefix("torch."), list(shape)] for dtype, shape in note.tensors],
        "place": [os.path.basename(note.frame_lines[0][0]), note.frame_lines[0][1]] if note.frame_lines else [],
        "lines": [line_of(*line) for line in reversed(note.frame_lines)] if lines else [],
    }
    if plain["kind"] == "message":
        plain["is_send"] = note.method == "send"
        plain["tag"] = note.tag
        plain["peer"] = members[note.peer] if 0 <= note.peer < len(members) else None
        return plain
    options, splits = note.args
    if note.method in ROOTED:
        plain["root"] = members[note.root] if 0 <= note.root < len(members) else note.root
    if note.method in REDUCING and hasattr(options, "reduceOp"):
        plain["reduce_op"] = options.reduceOp.op.name
    if splits is not None:
        plain["sends"], plain["receives"] = (_each(split, len(members)) for split in splits)
    return plain


def _each(split: list[int] | int, members: int) -> list[int]:
    """Elements by rank, of a list of them or of a whole that is split evenly."""
    return split if isinstance(split, list) else [split // max(1, members)] * members


def _members(name: str) -> tuple[list[int], bool]:
    """Ranks of the group with this name, and whether it was given a shorter timeout than the cluster's."""
    c10d = dist.distributed_c10d
    for group, its_name in list(c10d._world.pg_names.items()):
        if its_name == name:
            limit = getattr(group, "timeout", c10d.default_pg_timeout)  # of a group in Python, as over mpi4py
            with contextlib.suppress(Exception):  # private, and not every backend has options
                limit = group._get_backend(group._device_types[0]).options._timeout
            return dist.get_process_group_ranks(group), limit < c10d.default_pg_timeout
    return [], False


def _lines(thread: int) -> list[tuple[str, int, str, str, bool]]:
    found = []
    for frame in frames(thread):
        if is_learners(frame.f_code.co_filename):
            found.append((frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name))
    return [line_of(*line) for line in reversed(found)]
