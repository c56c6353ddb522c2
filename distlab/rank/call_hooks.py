"""What a rank communicates about: each call of a process group is noted as it begins, and each wait for one.

Runs on every rank. `install` puts a thin layer under torch.distributed's functions, on the methods of torch's
ProcessGroup and Work, where every call that Python makes passes with its arguments complete. A note holds plain
values, never a tensor. The watchdog reads the notes from its own thread while the main thread is blocked, and checked
mode (agreement on each call before data moves) hooks in here. What C++ sends by itself, such as DDP's buckets, does not
pass here.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from concurrent import futures
from concurrent.futures import Future
from typing import Any

import torch
import torch.distributed as dist

from distlab.compat.torch import members_of, name_of, sender_of
from distlab.rank.call_log import COLLECTIVES, NOTES, POINT_TO_POINT, ROOTED, Note, completed_by, waiting_for
from distlab.text import refuse
from distlab.wire.messages import REMOTE

BLOCKING = ("send", "send_object_list")  # functions that wait for what they send
ANYBODY = "Connection closed: the wait for a message from any rank was ended."
FREED_SECONDS = 0.05  # how often a wait that only Python can end looks whether it was ended


def install(group: type = dist.ProcessGroup, work: type = dist.Work) -> None:
    """Put the layer on a class of groups and their class of Work; a second time does nothing.

    Runs on: every rank, on its main thread, before a group of this class is built.
    """
    if getattr(work.wait, "__module__", "") == __name__:
        return
    for name in (*POINT_TO_POINT, *COLLECTIVES):
        if hasattr(group, name):
            setattr(group, name, _noting(name, getattr(group, name)))
    work.wait = waiting(work.wait, in_python=not getattr(work, "OVER_GLOO", work is dist.Work))
    work.get_future = derived(work.get_future)
    if work is dist.Work:
        torch.Future.wait = waiting(torch.Future.wait)
        torch.Future.then = derived(torch.Future.then)


def _noting(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """The method, with a note of each call."""
    original = named(name, original)

    @functools.wraps(original)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        note = Note(name, name_of(self), args, kwargs)
        if name in ROOTED or name in ("send", "recv"):
            _check_rank(self, note)
        noted = functools.partial(_noted, note, self, functools.partial(original, self, *args, **kwargs))
        return noted() if NOTES.tracer is None else NOTES.tracer.call(note, noted)

    return call


def _noted(note: Note, group: Any, make: Callable[[], Any]) -> Any:
    """Make the call of a note, which is in the log meanwhile and tied to the Work that comes of it."""
    NOTES.add(note)
    try:
        with waiting_for(note):
            work = make() if NOTES.checker is None else NOTES.checker.call(note, make)
    except Exception:
        NOTES.take_back(note)
        raise
    if work is not None:
        # gloo forgets a message that nobody waits for; a group of another kind may keep it
        forgets = getattr(group, "OVER_GLOO", type(group) is dist.ProcessGroup)
        NOTES.tie(work, note, is_message=note.method == "send" and note.op not in BLOCKING and forgets)
    return work


def named(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """The method, called from a frame with its own name.

    By that name pybind11 knows that it comes from the method of a class in Python, and looks for one in C++; otherwise
    it would find the layer again, for a group whose class lacks the method.
    """

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return original(self, *args, **kwargs)

    call.__code__ = call.__code__.replace(co_name=name)
    return functools.wraps(original)(call)


def _check_rank(group: dist.ProcessGroup, note: Note) -> None:
    """Refuse a peer or a root that the group does not have: gloo would wait for it, or end the process."""
    members = members_of(group)
    is_message = note.method in POINT_TO_POINT
    rank = note.peer if is_message else note.root
    if members is None or rank in range(len(members)):  # a group that is gone is torch's to refuse
        return
    size, name = len(members), {"send": "dst", **ROOTED}.get(note.method, "src")
    name = "peer" if note.op == "batch_isend_irecv" else name
    advice = f"Use a rank below the number of ranks, which is {size} here."
    if group is not dist.group.WORLD:  # torch itself refuses a rank of the world that is not in this group
        refuse(f"group_{name}", f"a rank of its group, from 0 to {size - 1}", rank, advice)
    if is_message and rank == size:
        advice = "The last rank has no next one: use (rank + 1) % world_size, or skip it."
    elif is_message and rank == -1:
        advice = "Rank 0 has no previous one: use (rank - 1) % world_size, or skip it."
    refuse(name, f"a rank from 0 to {size - 1}", rank, advice)


def waiting(original: Callable[..., Any], in_python: bool = False) -> Callable[..., Any]:
    """Work.wait or Future.wait, which says meanwhile what is waited for; `in_python`: where the watchdog can end it."""

    @functools.wraps(original)
    def wait(self: Any, *args: Any, **kwargs: Any) -> Any:
        note = NOTES.ties.get(self)
        if note is None:
            return original(self, *args, **kwargs)
        if args or kwargs:
            note.waits_shorter = True
        with waiting_for(note):
            make = functools.partial(original, self, *args, **kwargs)
            if note.method == "recv_anysource" and not in_python:
                make = functools.partial(wait_elsewhere, make, ANYBODY)
            elif note.method == REMOTE:
                _wait_in_python(self)
            try:
                outcome = make() if NOTES.tracer is None else NOTES.tracer.wait(note, self, make)
            except RuntimeError as error:
                if note.method != REMOTE:
                    raise
                raise note.readable(error) from None
        if type(self) is dist.Work and note.method == "recv_anysource" and not note.done:
            NOTES.came_from(note, sender_of(self))
        note.done = True
        return outcome

    wait.__module__ = __name__
    return wait


def wait_elsewhere(original: Callable[[], Any], freed_words: str) -> Any:
    """Wait on another thread, so that the watchdog can free this one, which raises a RuntimeError with these words.

    A recv from any source belongs to no connection: gloo does not end it when its sockets are shut down. The thread
    that is left behind ends at its timeout.
    """
    freed, outcome = NOTES.freed, completed_by(original, Future())
    while not futures.wait([outcome], FREED_SECONDS).done:
        if NOTES.freed != freed:
            raise RuntimeError(freed_words)
    return outcome.result()


def _wait_in_python(future: torch.Future) -> None:
    """Wait for a remote call so that the watchdog can end it.

    C++ completes a call that failed on a thread that serves calls; where all of these wait for calls, it never does.
    """
    freed, done = NOTES.freed, threading.Event()
    if not future.done():
        future.add_done_callback(lambda _: done.set())
        while not done.wait(FREED_SECONDS):
            if NOTES.freed != freed:
                raise RuntimeError("EOF: the wait for a remote call was ended.")


def derived(original: Callable[..., Any]) -> Callable[..., Any]:
    """Work.get_future or Future.then, whose result remembers the note too."""

    @functools.wraps(original)
    def derive(self: Any, *args: Any) -> Any:
        future = original(self, *args)
        note = NOTES.ties.get(self)
        if note is not None:
            NOTES.tie(future, note)
        return future

    return derive
