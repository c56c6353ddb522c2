"""What a rank communicates about: each call of a process group is noted as it begins, and each wait for one.

Runs on every rank. `install` puts a thin layer under torch.distributed's functions, on the methods of torch's
ProcessGroup and Work, where every call that Python makes passes with its arguments complete. A note holds plain
values, never a tensor. The sentinel reads the notes from its own thread while the main thread is blocked, and checked
mode (agreement on each call before data moves) hooks in here. What C++ sends by itself, such as DDP's buckets, does not
pass here.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from distlab.errors import refuse
from distlab.notes import COLLECTIVES, NOTES, POINT_TO_POINT, ROOTED, Note, restore, waiting_for

BLOCKING = ("send", "send_object_list")  # functions that wait for what they send
FREED_SECONDS = 0.05  # how often a wait that only Python can end looks whether it was ended


def install() -> None:
    """Put the layer in place; a second time does nothing.

    Runs on: every rank, on its main thread, before the group is built.
    """
    if install_on(dist.ProcessGroup, dist.Work):
        torch.Future.wait = _waiting(torch.Future.wait)
        torch.Future.then = _derived(torch.Future.then)


def install_on(group: type, work: type) -> bool:
    """Put the layer on a class of groups and their class of Work; whether it was not there yet.

    Runs on: every rank, on its main thread, before a group of this class is built.
    """
    if getattr(work.wait, "__module__", "") == __name__:
        return False
    for name in (*POINT_TO_POINT, *COLLECTIVES):
        if hasattr(group, name):
            setattr(group, name, _noting(name, getattr(group, name)))
    work.wait = _waiting(work.wait)
    work.get_future = _derived(work.get_future)
    return True


def _noting(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """The method, with a note of each call; `ProcessGroup.send` and the rest return a Work that remembers its note."""
    groups = dist.distributed_c10d._world
    original = _named(name, original)

    @functools.wraps(original)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        # not self.group_name, which raises where the group is a class in Python
        note = Note(name, groups.pg_names.get(self, ""), args, kwargs)
        if name in ROOTED or name in ("send", "recv"):
            _check_rank(self, note, groups.pg_group_ranks.get(self))
        if NOTES.tracer is None:
            return noted(note, self, *args, **kwargs)
        return NOTES.tracer.call(note, args, lambda: noted(note, self, *args, **kwargs))

    def noted(note: Note, self: Any, *args: Any, **kwargs: Any) -> Any:
        NOTES.add(note)
        thread = threading.get_ident()
        outer = NOTES.now.get(thread)
        NOTES.now[thread] = note
        try:
            if NOTES.checker is None:
                work = original(self, *args, **kwargs)
            else:
                work = NOTES.checker.call(note, lambda: original(self, *args, **kwargs))
        except Exception:
            if name != "monitored_barrier":  # the only one that has waited when it raises
                NOTES.take_back(note)
            raise
        finally:
            restore(thread, outer)
        if work is not None and name != "monitored_barrier":
            # a group of another kind may keep a message that nobody waits for
            is_message = name == "send" and note.op not in BLOCKING and type(self) is dist.ProcessGroup
            NOTES.tie(work, note, is_message)
        return work

    call.__module__ = __name__
    return call


def _named(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """The method, called from a frame with its own name.

    By that name pybind11 knows that it comes from the method of a class in Python, and looks for one in C++; otherwise
    it would find the layer again, for a group whose class lacks the method.
    """

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return original(self, *args, **kwargs)

    call.__code__ = call.__code__.replace(co_name=name)
    return functools.wraps(original)(call)


def _check_rank(group: dist.ProcessGroup, note: Note, members: dict[int, int] | None) -> None:
    """Refuse a peer or a root that the group does not have: gloo would wait for it, or end the process.

    Args:
        members: of the group; None when it is gone.
    """
    is_message = note.method in POINT_TO_POINT
    rank = note.peer if is_message else note.root
    if members is None or rank in range(len(members)):
        return
    size, name = len(members), "dst" if note.method == "send" else ROOTED.get(note.method, "src")
    name = "peer" if note.op == "batch_isend_irecv" else name
    advice = f"Use a rank below the number of ranks, which is {size} here."
    if group is not dist.group.WORLD:  # torch itself refuses a rank of the world that is not in this group
        refuse(f"group_{name}", f"a rank of its group, from 0 to {size - 1}", rank, advice)
    if is_message and rank == size:
        advice = "The last rank has no next one: use (rank + 1) % world_size, or skip it."
    elif is_message and rank == -1:
        advice = "Rank 0 has no previous one: use (rank - 1) % world_size, or skip it."
    refuse(name, f"a rank from 0 to {size - 1}", rank, advice)


def _waiting(original: Callable[..., Any]) -> Callable[..., Any]:
    """Work.wait or Future.wait, which says meanwhile what is waited for."""

    @functools.wraps(original)
    def wait(self: Any, *args: Any, **kwargs: Any) -> Any:
        note = NOTES.of(self)
        if note is None:
            return original(self, *args, **kwargs)
        if args or kwargs:
            note.waits_shorter = True
        with waiting_for(note):
            make = functools.partial(original, self, *args, **kwargs)
            if note.method == "recv_anysource":
                make = functools.partial(_wait_elsewhere, make)
            outcome = make() if NOTES.tracer is None else NOTES.tracer.wait(note, self, make)
        note.done = True
        return outcome

    wait.__module__ = __name__
    return wait


def _wait_elsewhere(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Wait on another thread, so that the sentinel can free this one.

    A recv from any source belongs to no connection: gloo does not end it when its sockets are shut down. The thread
    that is left behind ends at the group's timeout.
    """
    outcome: list[Any] = []
    done, freed = threading.Event(), NOTES.freed

    def work() -> None:
        try:
            outcome.append(original(*args, **kwargs))
        except Exception as error:
            outcome.append(error)
        done.set()

    threading.Thread(target=work, name="distlab-any-source", daemon=True).start()
    while not done.wait(FREED_SECONDS):
        if NOTES.freed != freed:
            raise RuntimeError("Connection closed: the wait for a message from any rank was ended.")
    if isinstance(outcome[0], Exception):
        raise outcome[0]
    return outcome[0]


def _derived(original: Callable[..., Any]) -> Callable[..., Any]:
    """Work.get_future or Future.then, whose result remembers the note too."""

    @functools.wraps(original)
    def derive(self: Any, *args: Any) -> Any:
        future = original(self, *args)
        note = NOTES.of(self)
        if note is not None:
            NOTES.tie(future, note)
        return future

    return derive
