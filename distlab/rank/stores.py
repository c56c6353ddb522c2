"""Waits of a learner's own stores, and of groups that are built from them: each can be ended.

Runs on every rank; table.py puts the wrappers in place. torch waits for other processes in C++: for
the server of a TCPStore, for its workers, for a key in a file, for the connections of a new group.
Only a wait that has a connection ends when the watchdog shuts that down. The others are made here
in steps, or on another thread, so that the rank can be freed; where a wait ends by itself, its
error is torch's own, at torch's own time.

What torch or distlab asks a store for without a learner's line on the stack passes unchanged.
"""

import functools
import math
import operator
import os
import re
import socket
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from distlab.compat import torch as private
from distlab.rank import freed
from distlab.rank.log import LOG, InCall, Note
from distlab.rank.waits import wait_elsewhere, wait_until
from distlab.wire.messages import OTHER

# of a store; this torch may lack some
WAITING_METHODS = ("get", "multi_get", "wait", "queue_pop", "barrier")
# a client's own wait for its server, in C++, after it was looked for in steps
LAST_TRY = timedelta(seconds=2)
PROBE_SECONDS = 1.0  # for one look whether the server of a TCPStore listens
AT_ONCE = timedelta(milliseconds=1)
STORE_DEFAULT = timedelta(seconds=300)  # torch's own


def _note_of(name: str, words: str = "") -> Note | None:
    """A note of a wait for any process; None if no line of the learner's leads to it.

    Inside of another call, such as init_process_group or init_rpc, it is that call which the
    learner waits in.
    """
    note = LOG.waiting_in.get(threading.get_ident())
    if note is not None:
        return note
    note = Note("", OTHER, has_limit=True)
    if not note.lines:
        return None
    if not note.op:
        note.op = name
        note.words = words
    return note


# --- connecting to a TCPStore, or serving one ---


def on_open_store(
    original: Callable[..., Any], store: dist.Store, *args: Any, **kwargs: Any
) -> None:
    """TCPStore.__init__: a server waits for its workers, a client for its server."""
    try:
        options = _Opening(*args, **kwargs)
    except TypeError:  # torch says what is wrong
        return original(store, *args, **kwargs)
    note = _note_of("TCPStore", f"{options.host!r}, {options.port}")
    if note is None:
        return original(store, *args, **kwargs)
    open_it = functools.partial(original, store, *args, **kwargs)
    with InCall(note):
        if options.is_master:  # it has a connection to itself
            return open_it()
        freed_with = freed.from_processes(note.op)
        connect = functools.partial(_open_client, open_it, options, original, store, freed_with)
        return wait_elsewhere(connect, freed_with)


class _Opening:
    """The arguments of TCPStore.__init__ that say what it waits for; TypeError for others."""

    def __init__(
        self,
        host_name: str,
        port: int,
        world_size: int | None = None,
        is_master: bool = False,
        timeout: timedelta = STORE_DEFAULT,
        *more: Any,
        **others: Any,
    ):
        port = operator.index(port)
        if not isinstance(host_name, str) or port not in range(2**16):
            raise TypeError(host_name, port)
        self.host = host_name
        self.port = port
        self.world_size = world_size
        self.is_master = is_master
        self.timeout = _duration(timeout)
        self.more = more
        self.others = others


def _duration(given: timedelta | float) -> timedelta:
    """A time limit as torch takes it, also as a number of seconds."""
    if isinstance(given, timedelta):
        return given
    return timedelta(seconds=given)


def _open_client(
    open_it: Callable[[], None],
    options: _Opening,
    original: Callable[..., Any],
    store: dist.Store,
    freed_with: str,
) -> None:
    """Open a client, on a thread of its own, which ends soon after this rank was freed.

    C++ would go on for the store's timeout and longer: at the learner's next try it could be taken
    for a worker.
    """
    until_last_try = (options.timeout - LAST_TRY).total_seconds()
    listens = functools.partial(_listens, options)
    if until_last_try <= 0 or wait_until(listens, freed_with, until_last_try):
        open_it()
        return
    try:
        original(
            store,
            options.host,
            options.port,
            options.world_size,
            False,
            LAST_TRY,
            *options.more,
            **options.others,
        )
    except RuntimeError as error:
        raise _with_time(error, LAST_TRY, options.timeout) from None
    store.set_timeout(options.timeout)


def _listens(options: _Opening) -> bool:
    """Whether the server of a TCPStore accepts connections."""
    try:
        with socket.create_connection((options.host, options.port), PROBE_SECONDS) as probe:
            # or it has met itself, by the port that it was given
            return probe.getsockname() != probe.getpeername()
    except OSError:
        return False


def _with_time(error: RuntimeError, waited: timedelta, limit: timedelta) -> RuntimeError:
    """torch's error of a shorter wait, with the time that the whole wait took."""
    millisecond = timedelta(milliseconds=1)
    old = f"{waited / millisecond:.0f}"
    new = f"{limit / millisecond:.0f}"
    message = re.sub(rf"\b{old}( ?)ms\b", rf"{new}\1ms", str(error))
    return type(error)(message)


# --- waiting for the keys of a store ---


def on_store_wait(
    name: str, original: Callable[..., Any], store: dist.Store, *args: Any, **kwargs: Any
) -> Any:
    """A method of a store that waits for what others write, even programs that are no ranks."""
    call = functools.partial(original, store, *args, **kwargs)
    note = _note_of(f"store.{name}", repr(args[0]) if args else "")
    if note is None:
        return call()
    with InCall(note):
        if not args or not private.is_polling(store) or _takes_what_is_there(name, args, kwargs):
            return call()
        if name == "barrier":
            return wait_elsewhere(call, freed.from_processes(note.op))
        limit = _limit_of(name, store, args)
        is_there = functools.partial(_is_there, name, store, *args)
        if _wait_for_keys(is_there, note, limit):
            return call()
        return _too_late(name, original, store, args, kwargs, limit)


def _limit_of(name: str, store: dist.Store, args: tuple[Any, ...]) -> timedelta:
    """For how long a method of a store may wait; zero, as for torch, without a limit."""
    if name == "wait" and len(args) > 1:
        return _duration(args[1])
    return private.timeout_of_store(store)


def _takes_what_is_there(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a method of a store returns, or fails, at once: queue_pop with block=False."""
    blocks = args[1] if len(args) > 1 else kwargs.get("block", True)
    return name == "queue_pop" and not blocks


def _wait_for_keys(is_there: Callable[[], bool], note: Note, limit: timedelta) -> bool:
    """Look for what a store is waited for, in steps, between which this rank can be freed."""
    seconds = limit.total_seconds() or math.inf
    return wait_until(is_there, freed.from_processes(note.op), seconds)


def _is_there(name: str, store: dist.Store, what: Any, *_: Any) -> bool:
    """Whether a method of a store without a server can return, or refuse its arguments, at once."""
    path = private.path_of(store)
    if path and not os.path.exists(path):  # or `check` would wait for the file
        return False
    try:
        if name == "queue_pop":
            return store.queue_len(what) > 0
        keys = [what] if name == "get" else what
        return store.check(keys)
    except TypeError:
        return True


def _too_late(
    name: str,
    original: Callable[..., Any],
    store: dist.Store,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    limit: timedelta,
) -> Any:
    """Let torch look for the last time, and raise its own error, with the time that was waited."""
    if name == "wait" and len(args) > 1:
        args = (args[0], AT_ONCE)
    usual = private.timeout_of_store(store)
    store.set_timeout(AT_ONCE)
    try:
        return original(store, *args, **kwargs)
    except RuntimeError as error:
        raise _with_time(error, AT_ONCE, limit) from None
    finally:
        store.set_timeout(usual)


# --- building a group ---


def on_build_gloo(original: Callable[..., Any], group: Any, *args: Any, **kwargs: Any) -> None:
    """ProcessGroupGloo.__init__: it waits for the addresses and connections of the other ranks.

    A wait for a connection that nobody opens has no socket that could be shut down; it ends on its
    thread, at its own timeout.
    """
    call = functools.partial(original, group, *args, **kwargs)
    note = _note_of("ProcessGroupGloo")
    if note is None:
        return call()
    if note.op != "init_process_group":
        LOG.check_not_of_parent(dist.group.WORLD)  # whose store this one is
    is_under_way = note is LOG.waiting_in.get(threading.get_ident())
    # new_group is in no call of the log here, so nobody would see its wait
    if note.op == "new_group" and not is_under_way:
        return call()
    with InCall(note):
        return wait_elsewhere(call, freed.from_processes(note.op))
