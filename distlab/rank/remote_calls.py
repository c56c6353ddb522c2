"""Remote procedure calls: a note of each while it is waited for, and what this rank runs for others.

Runs on every rank. `install` puts a thin layer under torch.distributed.rpc, as call_hooks.py does under process groups:
each call is noted with the ranks that it waits for, and of each function that is served for another rank it is known
for whom, in which thread, and what it prints. How functions travel is in remote_functions.py.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import re
import sys
import threading
import traceback
from collections import namedtuple
from collections.abc import Callable, Iterable
from dataclasses import asdict
from time import time_ns
from typing import Any

from torch.distributed import autograd, rpc
from torch.distributed.rendezvous import register_rendezvous_handler

from distlab.compat import torch_rpc as private
from distlab.rank import remote_agent, remote_functions
from distlab.rank.call_log import MEETINGS, NOTES, RemoteNote, waiting_for
from distlab.rank.recording import ended
from distlab.rank.remote_agent import AGENT, Served
from distlab.text import refuse
from distlab.wire.messages import REMOTE, SERVED, Line
from distlab.wire.source import is_learners, line_of

Request = namedtuple("Request", "func args kwargs caller number")
_numbers = itertools.count(1)
_sending = threading.local()  # .call: what a trace records of the request that this thread is about to send


def install(tell: Callable[[str], None]) -> None:
    """Put the layer on torch.distributed.rpc; a second time does nothing.

    Runs on: every rank, on its main thread.

    Args:
        tell: sends the notebook what a function has printed that was served.
    """
    AGENT.tell = tell
    if not rpc.is_available() or rpc.init_rpc is remote_agent.init_rpc:
        return
    register_rendezvous_handler(remote_agent.SCHEME, remote_agent.rendezvous)
    AGENT.init = private.replace("init_rpc", lambda _: remote_agent.init_rpc)
    AGENT.shutdown = private.replace("shutdown", lambda _: remote_agent.shutdown)
    private.keep_rrefs(lambda: AGENT.again)
    private.replace("_invoke_rpc", _noting)
    private.collect_with(_collecting)
    private.serve_with(_serve, _raise_here, remote_functions.Pickler, _request)
    rpc.PyRRef.to_here = _waiting_for_owner(rpc.PyRRef.to_here)
    autograd.backward = _waiting_for_all(autograd.backward)
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        with contextlib.suppress(AttributeError):  # of a class in C
            stream.write = _printing(stream.write)


# --- the caller's side ---


def _noting(invoke: Callable[..., Any]) -> Callable[..., Any]:
    """torch's _invoke_rpc, whose Future remembers the note of the call."""

    @functools.wraps(invoke)
    def call(to: Any, func: Any, rpc_type: Any, args: Any = None, kwargs: Any = None, rpc_timeout: float = -1) -> Any:
        outer = NOTES.now.get(threading.get_ident())
        callee = rank_of(to) if AGENT.worker else -1
        private.use_plain_optimizers()
        _sending.call = None
        future = invoke(to, func, rpc_type, args, kwargs, rpc_timeout)
        if outer is None or outer.op not in MEETINGS:  # of which it is a part
            note = RemoteNote(f"rpc_{rpc_type.value}", name_of(func, args), [callee], rpc_timeout != private.UNSET)
            NOTES.total += 1
            NOTES.tie(future, note)
            if NOTES.tracer is not None and not _is_torchs(func):
                _record(future, note, callee)
        return future

    return call


def _request(func: Any, args: Any, kwargs: Any) -> Request:
    """What is sent of a call of a function in Python, in the place of torch's PythonUDF."""
    number = 0
    if NOTES.tracer is not None and not _is_torchs(func):
        number = next(_numbers)
        _sending.call = NOTES.tracer.remote(REMOTE, name_of(func, args), number)
        _sending.call.end = _sending.call.start  # all that is known of a call that only makes an RRef
    return Request(func, args, kwargs, NOTES.rank, number)


def _is_torchs(func: Any) -> bool:
    """Whether workers call this function as they meet, and no learner does."""
    return getattr(func, "__module__", "") == rpc.api.__name__


def _record(future: Any, note: RemoteNote, callee: int) -> None:
    """Have a trace record this call, and when it was answered."""
    call = _sending.call or NOTES.tracer.remote(REMOTE, "", 0)
    call.op, call.peer, call.blocking, call.end = f"{note.op} {note.function}", callee, note.op == "rpc_sync", 0
    call.posted = time_ns()
    NOTES.tracer.calls[note] = call
    future.add_done_callback(lambda _: ended(call))


def rank_of(to: Any) -> int:
    """The cluster's rank of a WorkerInfo, a name or a worker id; refused where there is no such worker."""
    ranks, names = AGENT.worker.ranks, AGENT.worker.names
    number = names.index(to) if to in names else getattr(to, "id", to)
    if not isinstance(number, int) or number not in range(len(ranks)):
        known = ", ".join(map(repr, names))
        refuse("to", f"the name, WorkerInfo or id of a worker ({known})", to, "Use a name that init_rpc was given.")
    return ranks[number]


def name_of(func: Any, args: Any) -> str:
    """The name of a function as the learner knows it: of a call through an RRef, that of the method."""
    name = getattr(func, "__name__", type(func).__name__)
    return args[1] if name.startswith("_local_invoke") and args and len(args) > 1 else name


def _collecting(collect: Callable[..., Any]) -> Callable[..., Any]:
    """torch's _collect_all, whose Future waits for all that the collected ones wait for."""

    @functools.wraps(collect)
    def call(futures: Iterable[Any]) -> Any:
        futures = list(futures)
        whole = collect(futures)
        notes = [note for note in map(NOTES.ties.get, futures) if isinstance(note, RemoteNote) and not note.done]
        if notes:
            callees = sorted({rank for note in notes for rank in note.callees})
            names = ", ".join(dict.fromkeys(note.function for note in notes))
            NOTES.tie(whole, RemoteNote("wait_all", names, callees, all(note.ends_by_itself for note in notes)))
        return whole

    return call


def _waiting_for_owner(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method of RRef that waits for its owner."""

    @functools.wraps(method)
    def call(self: Any, timeout: float = private.UNSET) -> Any:
        if AGENT.worker is None:
            raise RuntimeError("This RRef belongs to an RPC that was shut down: make a new one with rpc.remote.")
        owner = rank_of(self.owner())
        note = RemoteNote("to_here", "", [owner], timeout != private.UNSET)
        return _waited(note, owner, lambda: method(self, timeout))

    return call


def _waiting_for_all(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Distributed autograd's backward, which may wait for every worker."""

    @functools.wraps(backward)
    def call(*args: Any, **kwargs: Any) -> Any:
        others = [rank for rank in (AGENT.worker.ranks if AGENT.worker else ()) if rank != NOTES.rank]
        note = RemoteNote("dist_autograd.backward", "", others)
        return _waited(note, None, lambda: backward(*args, **kwargs))

    return call


def _waited(note: RemoteNote, peer: int | None, make: Callable[[], Any]) -> Any:
    """Make a call that waits for others, noted and traced; its error is one that can be read."""
    trace = NOTES.tracer and NOTES.tracer.remote(REMOTE, note.op, 0, peer, blocking=True)
    with waiting_for(note):
        try:
            return make()
        except RuntimeError as error:
            raise note.readable(error) from None
        finally:
            if trace:
                ended(trace, trace.start)


# --- the callee's side ---


def _serve(request: Any) -> Any:
    """Run a function for another rank, as C++ asks for; what it returns, or what it raised.

    Runs on: a rank, on a thread of the agent's pool.
    """
    thread = threading.get_ident()
    outer = AGENT.serving.get(thread)
    caller, number = getattr(request, "caller", -1), getattr(request, "number", 0)
    served = Served(caller, name_of(getattr(request, "func", request), getattr(request, "args", ())))
    trace = NOTES.tracer and number and NOTES.tracer.remote(SERVED, served.function, number, caller)
    AGENT.serving[thread] = served
    NOTES.total += 1
    try:
        if isinstance(request, AttributeError):
            raise AttributeError(_not_there(request))
        if AGENT.worker is None:  # the agent is being taken down, and this call had waited for a thread
            raise RuntimeError("EOF: RPC is being ended on this rank.")
        return request.func(*request.args, **request.kwargs)
    except BaseException as error:  # an interrupt of the rank's is meant for this thread, too
        return private.failed(_told(error))
    finally:
        if served.printed:
            AGENT.tell("".join(served.printed))
        if trace:
            ended(trace)
        NOTES.total += 1
        if outer is not None:
            AGENT.serving[thread] = outer
        else:
            AGENT.serving.pop(thread, None)


def _not_there(error: AttributeError) -> str:
    """Why a request could not be read: a class that this rank does not have."""
    found = re.search(r"attribute '([\w.]+)'", str(error))
    what = found[1] if found else "what it names"
    return f"rank {NOTES.rank} does not have {what}: define it in a %%px cell that runs on every rank."


def _told(error: BaseException) -> str:
    """An exception of a served function, for its caller: what, where, with the learner's lines."""
    stack = traceback.extract_tb(error.__traceback__, limit=200)
    lines = [line_of(f.filename, f.lineno or 0, f.name) for f in stack if is_learners(f.filename)]
    kind = "" if getattr(error, "is_remote", False) else type(error).__name__
    return json.dumps((NOTES.rank, kind, str(error), [asdict(line) for line in lines]))


def _raise_here(result: Any) -> None:
    """Raise on the caller what a served function raised, as C++ asks for. Runs on: a rank, on any thread."""
    told = private.failure(result)
    if told is None:
        return
    rank, kind, message, lines = json.loads(told)
    rows = [": ".join(filter(None, [kind, message]))]
    for line in (Line(**line) for line in lines):
        if not line.text and line.file:  # a function of this rank's, which travelled
            line = line_of(line.file, line.number, line.place)
        place = f" in {line.place}" if line.place else ""
        rows.append(f"  rank {rank}   line {line.number}{place}   {line.text}".rstrip())
    raise RuntimeError("\n".join(rows))


def _printing(write: Callable[[str], Any]) -> Callable[[str], Any]:
    """A stream's write, which keeps what a served function writes, to be told under this rank."""

    def call(text: str) -> Any:
        served = AGENT.serving.get(threading.get_ident())
        if served is None:
            return write(text)
        served.printed.append(text)
        return len(text)

    return call
