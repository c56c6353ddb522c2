"""What runs in the place of torch's methods of process groups, Works and Futures.

Runs on every rank. Every call that Python makes goes through the methods of torch's ProcessGroup
and Work, with its arguments complete: each call and each wait is noted there, in the log that the
watchdog reads while the main thread is blocked. What C++ sends by itself, such as DDP's buckets,
does not come through here. Functional collectives, as DTensor makes them, are made and waited for
in C++, too; Python reaches both by operators of torch.ops.

In checked mode calls go through checks.py, which posts them later. Where C++ is about to begin
something at once, what the rank has begun before is posted first: gloo matches the calls of a group
by their order.
"""

import functools
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from math import prod
from operator import index
from typing import Any

import torch
import torch.distributed as dist

from distlab.arguments import refuse
from distlab.compat import torch as private
from distlab.rank.checked_calls import check_memory, for_cpp, is_compared, posted
from distlab.rank.log import LOG, Note, waits
from distlab.rank.membership import is_short
from distlab.rank.methods import COLLECTIVES, POINT_TO_POINT, ROOTED, TOGETHER
from distlab.rank.plugins import PLUGINS
from distlab.rank.waits import wait_elsewhere, wait_until
from distlab.wire.messages import COLLECTIVE, MESSAGE

# functions that keep the Work until then
WAITS_FOR_MESSAGE = ("send", "send_object_list", "recv", "recv_object_list")
DROPPED_BEFORE = "Freed while it waited behind a message whose Work was dropped."

# a class, a module or an operator, the name of one of its functions, and what is called in its
# place, with the original before the arguments
Row = tuple[Any, str, Callable[..., Any]]


def patches_of(*owners: type) -> Iterator[Row]:
    """The rows of classes of process groups and of Works, with names that not all of them have."""
    for owner in owners:
        for name in (*POINT_TO_POINT, *COLLECTIVES):
            yield owner, name, functools.partial(on_call, name)
        yield from patches_of_work(owner)


def patches_of_work(work: type) -> list[Row]:
    """The rows of a class of Works."""
    return [(work, "wait", on_wait), (work, "get_future", on_get_future)]


def install(rows: Iterable[Row]) -> None:
    """Put the wrappers of these rows in place; a second time does nothing.

    Runs on: every rank, on its main thread, before a group of these classes is built.
    """
    for owner, name, instead in rows:
        of_operator = name == "__call__"  # Python looks it up in the class of an object
        original = getattr(type(owner) if of_operator else owner, name, None)
        if original is None or hasattr(original, "is_distlabs"):
            continue
        if isinstance(owner, type) and issubclass(owner, (dist.ProcessGroup, dist.Store)):
            original = called_as(name, original)
        wrapper = _wrapper(instead, original)
        if of_operator:
            owner.__class__ = type(type(owner).__name__, (type(owner),), {name: wrapper})
        else:
            setattr(owner, name, wrapper)


def _wrapper(instead: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        return instead(original, *args, **kwargs)

    call.is_distlabs = True
    return call


def called_as(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """The method, called from a frame with its own name.

    From that name pybind11 knows that the method of a Python class calls it, and looks for one in
    C++; otherwise, for an object whose class lacks the method, it would find the wrapper again.
    """

    def call(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        return original(self, *args, **kwargs)

    call.__code__ = call.__code__.replace(co_name=name)
    return functools.wraps(original)(call)


# --- calls of a process group ---


def on_call(name: str, original: Callable[..., Any], group: Any, *args: Any, **kwargs: Any) -> Any:
    """A method of a process group, with a note of each call."""
    LOG.check_not_of_parent(group)
    make = functools.partial(original, group, *args, **kwargs)
    group_name = private.GROUP_NAMES.get(group, "")
    caller = sys._getframe(2)  # frames 0 and 1 are this function's and the wrapper's
    if type(group) is dist.ProcessGroup and caller.f_globals.get("__name__") == private.DDP_MODULE:
        return for_cpp(group_name, make)
    note = note_of(name, group_name, args, kwargs)
    if name in ROOTED or name in ("send", "recv"):
        _check_rank(group, note)
    if PLUGINS.checker is not None:
        check_memory(note, args)
        make = functools.partial(_checked, note, group, make, is_compared(caller))
    begin = functools.partial(_begin, note, group, make)
    return begin() if PLUGINS.tracer is None else PLUGINS.tracer.call(note, begin)


def note_of(method: str, group: str, args: tuple, kwargs: dict[str, Any]) -> Note:
    """The note of a call of a process group's method, with the arguments that torch gave it."""
    note = Note("", MESSAGE if method in POINT_TO_POINT else COLLECTIVE)
    note.method, note.group = method, group
    if note.op.startswith("_"):  # torch's private function that makes several calls one
        note.op = TOGETHER.get(method, method)
    given = (*args, *kwargs.values()) if kwargs else args
    if note.kind == MESSAGE:
        note.tensors = [_type_and_shape(given[0][0])]
        rest = [private.whole(number) for number in given[1:]]
        if method != "recv_anysource" and rest:
            note.peer = rest.pop(0)
        if rest:  # the tag may be left out
            note.tag = rest[0]
    else:
        note.tensors, note.splits = _tensors(method, given), _splits(method, given)
        note.options = kwargs.get("opts", given[-1] if given else None)
    return note


def _type_and_shape(tensor: Any) -> tuple[Any, tuple[int, ...]]:
    """For what is not a tensor, which torch will refuse, only the type."""
    if isinstance(tensor, torch.Tensor):
        return tensor.dtype, tensor.shape
    return type(tensor).__name__, ()


def _tensors(method: str, args: tuple) -> list[tuple[Any, tuple[int, ...]]]:
    """Type and shape of the tensors that all ranks must agree on: the result's, if it is the same
    everywhere.
    """
    if method in ("barrier", "monitored_barrier"):
        return []
    # for a scatter, the result is compared
    tensors = args[0] if len(args) < 3 or "scatter" in method else args[1]
    return [
        _type_and_shape(tensor)
        for tensor in (tensors if isinstance(tensors, (list, tuple)) else [tensors])
    ]


def _splits(method: str, args: tuple) -> list[list[int] | int] | None:
    """How many elements this rank sends to and receives from each rank, for all_to_all; None
    otherwise.

    Only the total if it is split evenly.
    """
    if method == "alltoall":
        return [[tensor.numel() for tensor in tensors] for tensors in (args[1], args[0])]
    if method in ("alltoall_base", "all_to_all_single"):
        return [_elements(args[1], args[3]), _elements(args[0], args[2])]
    return None


def _elements(tensor: torch.Tensor, sizes: Any) -> list[int] | int:
    """How many elements of a tensor belong to each rank; the total if the sizes, of its first
    dimension, are even.
    """
    if sizes is None or len(sizes) == 0:  # they may be an array, or a tensor
        return tensor.numel()
    elements_of_row = prod(tensor.shape[1:])
    return [index(private.whole(size)) * elements_of_row for size in sizes]


def _begin(note: Note, group: Any, make: Callable[[], Any]) -> Any:
    """Make the call of a note, which is in the log meanwhile, and tie the note to the Work that it
    returns.
    """
    with waits(note):
        work = _added(note, make)
    over_gloo = _is_over_gloo(group)
    # closing the connections does not make gloo end it
    if over_gloo and note.method == "recv_anysource":
        note.freed_with = "Connection closed: the wait for a message from any rank was ended."
    if work is not None:
        # a backend in Python has its own class
        if isinstance(work, dist.Work) and type(work) is not dist.Work:
            install(patches_of_work(type(work)))
        # gloo forgets a message that nobody waits for; a group of another kind may keep it
        LOG.tie(work, note, over_gloo and note.kind == MESSAGE and note.op not in WAITS_FOR_MESSAGE)
    return work


def _is_over_gloo(group: Any) -> bool:
    """Whether gloo carries the messages of a group, for all that is known: a class in Python may
    say so.
    """
    return getattr(group, "OVER_GLOO", type(group) is dist.ProcessGroup)


def _added(note: Note, make: Callable[[], Any]) -> Any:
    """Make a call that is in the log, unless it is refused."""
    LOG.add(note)
    try:
        return make()
    except Exception:
        LOG.take_back(note)
        raise


def _check_rank(group: dist.ProcessGroup, note: Note) -> None:
    """Refuse a peer or a root that is not in the group: gloo would wait for it, or end the
    process.
    """
    size, is_message = group.size(), note.kind == MESSAGE
    rank = note.peer if is_message else note.root
    if not note.group or rank in range(size):  # torch refuses a call of a group that was destroyed
        return
    name = {"send": "dst", **ROOTED}.get(note.method, "src")
    name = "peer" if note.op == "batch_isend_irecv" else name
    advice = f"Use a rank below the number of ranks, which is {size} here."
    # torch itself refuses a rank of the world that is not in this group
    if group is not dist.group.WORLD:
        refuse(f"group_{name}", f"a rank of its group, from 0 to {size - 1}", rank, advice)
    if is_message:
        following = "The last rank has no next one: use (rank + 1) % world_size, or skip it."
        previous = "Rank 0 has no previous one: use (rank - 1) % world_size, or skip it."
        advice = {size: following, -1: previous}.get(rank, advice)
    refuse(name, f"a rank from 0 to {size - 1}", rank, advice)


def _checked(note: Note, group: Any, make: Callable[[], Any], is_compared: bool) -> Any:
    """Make a call in checked mode, compared with the other ranks' or in its turn; a Work that may
    be posted later.
    """
    checker = PLUGINS.checker
    if not is_compared:
        return checker.in_turn(note.group, make)
    if note.kind == MESSAGE and note.peer == group.rank() and _is_over_gloo(group):
        return make()  # gloo refuses a message to oneself
    work = checker.call(note, private.limit_of(group, note.options).total_seconds(), make)
    if note.group in LOG.shared_with_cpp and private.in_backward():
        return posted(work)  # DDP's own collectives follow at once
    return work


# --- waits for their Works and Futures ---


def on_wait(original: Callable[..., Any], work: Any, *args: Any, **kwargs: Any) -> Any:
    """Work.wait or Future.wait, in the log while it waits; a simulated cluster notes its end, too."""
    LOG.check_not_of_parent(work)
    make, note = functools.partial(original, work, *args, **kwargs), LOG.ties.get(work)
    if note is None:
        outcome = make()
    else:
        limits = [given for given in (*args, *kwargs.values()) if isinstance(given, timedelta)]
        note.has_limit |= any(map(is_short, limits))
        outcome = _wait(work, note, make)
    if PLUGINS.simulator is not None:
        PLUGINS.simulator.has_waited(work)
    return outcome


def _wait(work: Any, note: Note, make: Callable[[], Any]) -> Any:
    """Make the wait for the call of a note, by its Work, Future or result."""
    freed_with = note.freed_with or _ends_without_connections(note)
    if freed_with:
        make = functools.partial(_wait_in_python, work, freed_with, make)
    with waits(note):
        outcome = make() if PLUGINS.tracer is None else PLUGINS.tracer.wait(note, work, make)
    if isinstance(work, dist.Work) and note.method == "recv_anysource" and not note.done:
        sender = private.sender_of(work)
        if sender is not None:
            LOG.received_from(note, sender)
    LOG.has_ended(note)
    return outcome


def _ends_without_connections(note: Note) -> str:
    """What to free a wait with that closing the connections does not make gloo end; "" if it does.

    It sends, by itself or in a collective, behind a message to the same rank whose Work was
    dropped.
    """
    # a Work may go meanwhile
    blocked = {
        peer for is_send, group, peer, _ in list(LOG.dropped) if is_send and group == note.group
    }
    waits_behind = (
        note.peer in blocked if note.method == "send" else note.kind == COLLECTIVE and blocked
    )
    return DROPPED_BEFORE if waits_behind else ""


def _wait_in_python(work: Any, freed_with: str, make: Callable[[], Any]) -> Any:
    """Wait for a Work or Future so that the watchdog can end it."""
    if not isinstance(work, torch.Future):
        return wait_elsewhere(make, freed_with)
    done = threading.Event()
    if not work.done():
        work.add_done_callback(lambda _: done.set())
        wait_until(done.wait, freed_with)
    return make()


def on_get_future(original: Callable[..., Any], work: Any, *args: Any) -> Any:
    """Work.get_future or Future.then, whose result is tied to the note, too."""
    future = original(work, *args)
    note = LOG.ties.get(work)
    if note is not None:
        LOG.tie(future, note)
    return future


def on_then(
    original: Callable[..., Any], future: torch.Future, callback: Callable[[Any], Any]
) -> torch.Future:
    """Future.then, whose callback a simulated cluster notes, too."""
    derive = functools.partial(on_get_future, original)
    return (
        derive(future, callback)
        if PLUGINS.simulator is None
        else PLUGINS.simulator.then(future, callback, derive)
    )
