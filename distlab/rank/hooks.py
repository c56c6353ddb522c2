"""All that distlab wraps in torch on a rank, in one table, and the wrappers of process groups, Works and Futures.

Runs on every rank. Every call that Python makes passes the methods of torch's ProcessGroup and Work, with its arguments
complete: each call and each wait is noted in the log there, which the watchdog reads while the main thread is blocked.
What C++ sends by itself, such as DDP's buckets, does not pass here.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist

from distlab.compat.torch import GROUP_NAMES, functional_operators, members_of, sender_of
from distlab.rank import functional, stores
from distlab.rank.log import COLLECTIVES, LOG, POINT_TO_POINT, ROOTED, Note, waits
from distlab.rank.python_waits import wait_elsewhere, wait_until
from distlab.text import refuse
from distlab.wire.messages import MESSAGE, OTHER

Wrap = Callable[[str, Callable[..., Any]], Callable[..., Any]]  # of a name and the function that has it
Row = tuple[Any, str, Wrap]  # a class, a module or an operator, the name of one of its functions, what is put around it

BLOCKING = ("send", "send_object_list")  # functions that wait for what they send
FREED = "Connection closed: the wait for a message from any rank was ended."


def table() -> Iterator[Row]:
    """Every function of torch that has a wrapper on a rank."""
    yield from rows_of(dist.ProcessGroup, dist.Work)
    yield torch.Future, "wait", waiting_for_future
    yield torch.Future, "then", then_of_future
    for name, operator in functional_operators():
        yield operator, "__call__", functional.wait_tensor if name == "wait_tensor" else functional.collective
    for module in (dist, dist.distributed_c10d):
        yield module, "destroy_process_group", destroying
    for name in stores.WAITING:
        yield dist.Store, name, stores.waiting
    yield dist.TCPStore, "__init__", stores.connecting


def rows_of(group: type, work: type) -> list[Row]:
    """The rows of a class of process groups and its class of Works."""
    return [*calls_of(group), *waits_of(work)]


def calls_of(group: type) -> list[Row]:
    """The rows of a class of process groups."""
    return [(group, name, noting) for name in (*POINT_TO_POINT, *COLLECTIVES)]


def waits_of(work: type) -> list[Row]:
    """The rows of a class of Works."""
    return [(work, "wait", waiting), (work, "get_future", derived)]


def install(rows: Iterable[Row] = ()) -> None:
    """Put the wrappers of the rows in place, of the whole table by default; a second time does nothing.

    Runs on: every rank, on its main thread, before a group of these classes is built.
    """
    for owner, name, wrap in rows or table():
        of_operator = name == "__call__"  # Python looks it up in the class of an object
        original = getattr(type(owner) if of_operator else owner, name, None)
        if original is None or hasattr(original, "is_distlabs"):
            continue
        wrapper = wrap(name, original)
        wrapper.is_distlabs = True
        if of_operator:
            owner.__class__ = type(type(owner).__name__, (type(owner),), {name: wrapper})
        else:
            setattr(owner, name, wrapper)


def called_as(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """The method, called from a frame with its own name.

    By that name pybind11 knows that it comes from the method of a class in Python, and looks for one in C++; otherwise
    it would find the wrapper again, for a group whose class lacks the method.
    """

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return original(self, *args, **kwargs)

    call.__code__ = call.__code__.replace(co_name=name)
    return functools.wraps(original)(call)


def destroying(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """destroy_process_group, which closes this rank's connections: other ranks that wait for it fail."""

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> None:
        note = Note(name, OTHER)
        if note.lines:  # the learner calls it, and not distlab
            LOG.destroyed = note
        original(*args, **kwargs)

    return call


# --- calls of a process group ---


def noting(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """A method of a process group, with a note of each call."""
    original = called_as(name, original)
    has_rank = name in ROOTED or name in ("send", "recv")

    @functools.wraps(original)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        note = Note.of_group(name, GROUP_NAMES.get(self, ""), args, kwargs)
        if has_rank:
            _check_rank(self, note)
        begin = functools.partial(_begin, note, self, functools.partial(original, self, *args, **kwargs))
        return begin() if LOG.tracer is None else LOG.tracer.call(note, begin)

    return call


def _begin(note: Note, group: Any, make: Callable[[], Any]) -> Any:
    """Make the call of a note, which is in the log meanwhile, and tie the note to the Work that it returns."""
    LOG.add(note)
    try:
        with waits(note):
            work = make() if LOG.checker is None else LOG.checker.call(note, make)
    except Exception:
        LOG.take_back(note)
        raise
    over_gloo = getattr(group, "OVER_GLOO", type(group) is dist.ProcessGroup)
    if over_gloo and note.method == "recv_anysource":  # gloo does not end it when its connections are closed
        note.freed_with = FREED
    if work is not None:
        if isinstance(work, dist.Work) and type(work) is not dist.Work:  # a backend in Python has its own class
            install(waits_of(type(work)))
        # gloo forgets a message that nobody waits for; a group of another kind may keep it
        LOG.tie(work, note, over_gloo and note.method == "send" and note.op not in BLOCKING)
    return work


def _check_rank(group: dist.ProcessGroup, note: Note) -> None:
    """Refuse a peer or a root that the group does not have: gloo would wait for it, or end the process."""
    members = members_of(group)
    is_message = note.kind == MESSAGE
    rank = note.peer if is_message else note.root
    if members is None or rank in range(len(members)):  # torch refuses a call of a group that was destroyed
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


# --- waits for their Works and Futures ---


def waiting(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """Work.wait or Future.wait, in the log while it waits."""

    @functools.wraps(original)
    def wait(self: Any, *args: Any, **kwargs: Any) -> Any:
        note = LOG.ties.get(self)
        if note is None:
            return original(self, *args, **kwargs)
        note.waits_shorter |= bool(args or kwargs)
        make = functools.partial(original, self, *args, **kwargs)
        if note.freed_with:
            make = functools.partial(_in_python, self, note, make)
        with waits(note):
            try:
                outcome = make() if LOG.tracer is None else LOG.tracer.wait(note, self, make)
            except RuntimeError as error:
                if note.readable is None:
                    raise
                raise note.readable(error) from None
        if type(self) is dist.Work and note.method == "recv_anysource" and not note.done:
            LOG.received_from(note, sender_of(self))
        LOG.has_ended(note)
        return outcome

    return wait


def _in_python(work: Any, note: Note, make: Callable[[], Any]) -> Any:
    """Wait for a Work or Future so that the watchdog can end it."""
    if not isinstance(work, torch.Future):
        return wait_elsewhere(make, note.freed_with)
    done = threading.Event()
    if not work.done():
        work.add_done_callback(lambda _: done.set())
        wait_until(done.wait, note.freed_with)
    return make()


def derived(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """Work.get_future or Future.then, whose result is tied to the note too."""

    @functools.wraps(original)
    def derive(self: Any, *args: Any) -> Any:
        future = original(self, *args)
        note = LOG.ties.get(self)
        if note is not None:
            LOG.tie(future, note)
        return future

    return derive


def waiting_for_future(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """Future.wait, whose end a simulated cluster notes too."""
    wait = waiting(name, original)

    @functools.wraps(original)
    def wait_for_future(self: torch.Future) -> Any:
        value = wait(self)
        if LOG.simulator is not None:
            LOG.simulator.has_waited(self)
        return value

    return wait_for_future


def then_of_future(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """Future.then, whose callback a simulated cluster notes too."""
    derive = derived(name, original)

    @functools.wraps(original)
    def then(self: torch.Future, callback: Callable[[Any], Any]) -> torch.Future:
        return derive(self, callback) if LOG.simulator is None else LOG.simulator.then(self, callback, derive)

    return then
