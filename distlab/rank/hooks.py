"""What runs in the place of torch's methods of process groups, Works and Futures.

Runs on every rank; table.py says which function of torch each of these replaces. Every call that
Python makes goes through the methods of torch's ProcessGroup and Work, with its arguments complete:
each call and each wait is noted there, in the log that the watchdog reads while the main thread is
blocked. What C++ sends by itself, such as DDP's buckets, does not come through here (cpp.py), and
functional collectives come through operators (functional.py).

In checked mode calls go through checks.py, which posts them later.
"""

import functools
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from math import prod
from operator import index
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from distlab.compat import torch as private
from distlab.rank import freed
from distlab.rank.checked_calls import check_memory, for_cpp, is_compared, posted
from distlab.rank.log import LOG, InCall, Note, Split
from distlab.rank.membership import is_short
from distlab.rank.methods import (
    COLLECTIVE_METHODS,
    MESSAGE_METHODS,
    ROOTED,
    TOGETHER,
    WAITS_FOR_MESSAGE,
)
from distlab.rank.outside import refuse_rank_outside
from distlab.rank.plugins import PLUGINS, CheckerPlugin
from distlab.rank.waits import wait_elsewhere, wait_in_steps
from distlab.wire.messages import COLLECTIVE, MESSAGE

_IS_WRAPPER = "is_distlabs"  # the attribute of a wrapper by which it is known


class Patch(NamedTuple):
    """A function of torch, and what is called in its place.

    Attributes:
        owner: the class, module or operator that has the function.
        name: of the function. A version of torch may lack it.
        replacement: called as replacement(original, *args, **kwargs).
    """

    owner: Any
    name: str
    replacement: Callable[..., Any]


def patches_of(*owners: type) -> Iterator[Patch]:
    """The patches of classes of process groups and of Works."""
    for owner in owners:
        for name in (*MESSAGE_METHODS, *COLLECTIVE_METHODS):
            yield Patch(owner, name, functools.partial(on_call, name))
        yield from patches_of_work(owner)


def patches_of_work(work: type) -> list[Patch]:
    """The patches of a class of Works."""
    return [Patch(work, "wait", on_wait), Patch(work, "get_future", on_get_future)]


def install_patches(patches: Iterable[Patch]) -> None:
    """Put the replacements in place; a second time does nothing.

    Runs on: every rank, on its main thread, before a group of these classes is built.
    """
    for owner, name, replacement in patches:
        is_operator = name == "__call__"  # Python looks it up in the class of an object
        has_function = type(owner) if is_operator else owner
        original = getattr(has_function, name, None)
        if original is None or hasattr(original, _IS_WRAPPER):
            continue
        if isinstance(owner, type) and issubclass(owner, (dist.ProcessGroup, dist.Store)):
            original = _called_as(name, original)
        wrapper = _wrapper(replacement, original)
        if is_operator:
            own_class = type(owner)
            owner.__class__ = type(own_class.__name__, (own_class,), {name: wrapper})
        else:
            setattr(owner, name, wrapper)


def _wrapper(replacement: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        return replacement(original, *args, **kwargs)

    setattr(call, _IS_WRAPPER, True)
    return call


def _called_as(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
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
    """A method of a process group, with a note of each call.

    In the innermost place torch's own method is called. Around it, in checked mode, the call is
    compared; around that it is noted (`_make_call`); and outermost, it is recorded for a trace.
    """
    LOG.check_not_of_parent(group)
    torchs_own = functools.partial(original, group, *args, **kwargs)
    group_name = private.GROUP_NAMES.get(group, "")
    caller = sys._getframe(2)  # frames 0 and 1 are this function's and the wrapper's
    is_ddp = caller.f_globals.get("__name__") == private.DDP_MODULE
    if is_ddp and type(group) is dist.ProcessGroup:
        return for_cpp(group_name, torchs_own)
    note = note_of(name, group_name, args, kwargs)
    if name in ROOTED or name in ("send", "recv"):
        refuse_rank_outside(group, note)
    if PLUGINS.watcher is not None:
        PLUGINS.watcher.see(note, group, args, caller)
    checker = PLUGINS.checker
    if checker is None:
        make = torchs_own
    else:
        check_memory(checker, note, args)
        compares = is_compared(caller)
        make = functools.partial(_checked, checker, note, group, torchs_own, compares)
    if PLUGINS.tracer is None:
        return _make_call(note, group, make)
    return PLUGINS.tracer.call(note, functools.partial(_make_call, note, group, make))


def _make_call(note: Note, group: Any, make: Callable[[], Any]) -> Any:
    """Make the call of a note, which is in the log meanwhile, and tie the note to its Work."""
    with InCall(note):
        work = make_noted(note, make)
    over_gloo = _is_over_gloo(group)
    if over_gloo and note.method == "recv_anysource":
        # closing the connections does not make gloo end it
        note.freed_with = freed.FROM_ANY_RANK
    if work is None:
        return None
    if isinstance(work, dist.Work) and type(work) is not dist.Work:
        install_patches(patches_of_work(type(work)))  # a backend in Python has its own class
    # gloo forgets a message that nobody waits for; a group of another kind may keep it
    is_lost = over_gloo and note.kind == MESSAGE and note.op not in WAITS_FOR_MESSAGE
    LOG.tie(work, note, is_lost_when_dropped=is_lost)
    return work


def _is_over_gloo(group: Any) -> bool:
    """Whether gloo carries the messages of a group, as far as we know.

    A class of groups in Python says so by an attribute.
    """
    is_torchs_own = type(group) is dist.ProcessGroup
    return getattr(group, "OVER_GLOO", is_torchs_own)


def make_noted(note: Note, make: Callable[[], Any]) -> Any:
    """Make a call that is in the log from now on, unless it is refused."""
    LOG.add(note)
    try:
        return make()
    except Exception:
        LOG.take_back(note)
        raise


def _checked(
    checker: CheckerPlugin, note: Note, group: Any, make: Callable[[], Any], compares: bool
) -> Any:
    """Make a call in checked mode; return a Work that may be posted later.

    Args:
        compares: whether the call is compared with the other ranks', or only made in its turn.
    """
    if not compares:
        return checker.in_turn(note.group, make)
    is_to_itself = note.kind == MESSAGE and note.peer == group.rank()
    if is_to_itself and _is_over_gloo(group):
        return make()  # which gloo refuses
    limit = private.limit_of(group, note.options)
    work = checker.call(note, limit.total_seconds(), make)
    if note.group in LOG.shared_with_cpp and private.in_backward():
        return posted(work)  # DDP's own collectives follow at once
    return work


# --- the note of a call, from the arguments that torch gives a method ---


def note_of(method: str, group: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Note:
    """The note of a call of a process group's method, with the arguments that torch gave it."""
    kind = MESSAGE if method in MESSAGE_METHODS else COLLECTIVE
    note = Note("", kind)
    note.method = method
    note.group = group
    if note.op.startswith("_"):  # torch's private function that makes several calls one
        note.op = TOGETHER.get(method, method)
    given = (*args, *kwargs.values()) if kwargs else args
    if note.kind == MESSAGE:
        tensors, *ends = given
        note.tensors = [_type_and_shape(tensors[0])]
        _note_ends(note, ends)
    else:
        note.tensors = _tensors(method, given)
        note.splits = _splits(method, given)
        note.options = _options(given, kwargs)
    return note


def _options(given: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """The options of a collective, or the root in their place; None if neither is given.

    They are the last argument, if they are one. A tensor is nothing that a note may keep.
    """
    if "opts" in kwargs:
        return kwargs["opts"]
    last = given[-1] if given else None
    return last if isinstance(last, int) or hasattr(last, "timeout") else None


def _note_ends(note: Note, given: Sequence[Any]) -> None:
    """Note the peer and the tag of a message; recv_anysource has no peer, and a tag is optional."""
    numbers = [private.whole(number) for number in given]
    if note.method != "recv_anysource" and numbers:
        note.peer = numbers.pop(0)
    if numbers:
        note.tag = numbers[0]


def _type_and_shape(tensor: Any) -> tuple[Any, tuple[int, ...]]:
    """For what is not a tensor, which torch will refuse, only the type."""
    if isinstance(tensor, torch.Tensor):
        return tensor.dtype, tensor.shape
    return type(tensor).__name__, ()


def _tensors(method: str, args: tuple[Any, ...]) -> list[tuple[Any, tuple[int, ...]]]:
    """Type and shape of the tensors that all ranks must agree on.

    The result's where it is the same everywhere, as that of a scatter.
    """
    if method in ("barrier", "monitored_barrier"):
        return []
    tensors = args[0]
    if len(args) >= 3 and "scatter" not in method:  # results, tensors and options
        tensors = args[1]
    if not isinstance(tensors, (list, tuple)):
        tensors = [tensors]
    return list(map(_type_and_shape, tensors))


def _splits(method: str, args: tuple[Any, ...]) -> tuple[Split, Split] | None:
    """For all_to_all, the elements that this rank sends to and gets from each rank; else None."""
    if method == "alltoall":
        results, tensors, *_ = args
        sent = [tensor.numel() for tensor in tensors]
        received = [result.numel() for result in results]
        return sent, received
    if method in ("alltoall_base", "all_to_all_single"):
        result, tensor, result_sizes, sizes, *_ = args
        return _elements(tensor, sizes), _elements(result, result_sizes)
    return None


def _elements(tensor: torch.Tensor, sizes: Any) -> Split:
    """How many elements of a tensor belong to each rank, by the sizes of its first dimension.

    The total if they are even.
    """
    if sizes is None or len(sizes) == 0:  # they may be an array, or a tensor
        return tensor.numel()
    elements_of_row = prod(tensor.shape[1:])
    rows = [index(private.whole(size)) for size in sizes]
    return [count * elements_of_row for count in rows]


# --- waits for Works and Futures ---


def on_wait(original: Callable[..., Any], work: Any, *args: Any, **kwargs: Any) -> Any:
    """Work.wait or Future.wait: in the log while it waits.

    A simulated cluster notes the end of the wait.
    """
    LOG.check_not_of_parent(work)
    make = functools.partial(original, work, *args, **kwargs)
    note = LOG.ties.get(work)
    if note is None:
        outcome = make()
    else:
        for given in (*args, *kwargs.values()):
            if isinstance(given, timedelta) and is_short(given):
                note.has_limit = True
        outcome = wait_for(work, note, make)
    if PLUGINS.simulator is not None:
        PLUGINS.simulator.on_waited(work)
    return outcome


def wait_for(work: Any, note: Note, make: Callable[[], Any]) -> Any:
    """Make the wait for the call of a note, by its Work, Future or result."""
    freed_with = note.freed_with or _ends_without_connections(note)
    if freed_with:
        make = functools.partial(_wait_in_python, work, freed_with, make)
    if PLUGINS.tracer is not None:
        make = functools.partial(PLUGINS.tracer.wait, note, work, make)
    with InCall(note):
        outcome = make()
    if isinstance(work, dist.Work) and note.method == "recv_anysource" and not note.done:
        sender = private.sender_of(work)
        if sender is not None:
            LOG.messages.received_from(note.message_kind, sender)
    LOG.mark_ended(note)
    return outcome


def _ends_without_connections(note: Note) -> str:
    """The message that frees this wait, if closing its connections would not make gloo end it.

    It would not where the call sends, by itself or in a collective, behind a message to the same
    rank whose Work was dropped. Everywhere else this is "".
    """
    blocked = set()
    for kind in list(LOG.messages.dropped):  # a Work may go meanwhile
        if kind.is_send and kind.group == note.group:
            blocked.add(kind.peer)
    if note.method == "send" and note.peer in blocked:
        return freed.BEHIND_DROPPED
    if note.kind == COLLECTIVE and blocked:
        return freed.BEHIND_DROPPED
    return ""


def _wait_in_python(work: Any, freed_with: str, make: Callable[[], Any]) -> Any:
    """Wait for a Work or Future so that the watchdog can end it."""
    if not isinstance(work, torch.Future):
        return wait_elsewhere(make, freed_with)
    done = threading.Event()
    if not work.done():
        work.add_done_callback(lambda _: done.set())
        wait_in_steps(done.wait, freed_with)
    return make()


def on_get_future(original: Callable[..., Any], work: Any, *args: Any) -> Any:
    """Work.get_future or Future.then: the Future that it returns has the same note."""
    future = original(work, *args)
    note = LOG.ties.get(work)
    if note is not None:
        note.is_followed = True
        LOG.tie(future, note)
    return future


def on_then(
    original: Callable[..., Any], future: torch.Future, callback: Callable[[Any], Any]
) -> torch.Future:
    """Future.then, whose callback a simulated cluster notes as well."""
    derive = functools.partial(on_get_future, original)
    if PLUGINS.simulator is None:
        return derive(future, callback)
    return PLUGINS.simulator.then(future, callback, derive)
