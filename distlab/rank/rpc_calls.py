"""Remote procedure calls: a note of each while it is waited for, what this rank runs for others, and how it travels.

Runs on every rank. `install` puts a thin layer under torch.distributed.rpc, as hooks.py does under process groups.
A function that was written in a cell runs on the callee as the caller has it, and finds the callee's variables.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import re
import sys
import threading
import time
import types
from collections import namedtuple
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import cloudpickle
from torch.distributed import autograd, rpc

from distlab.compat import torch_rpc as private
from distlab.rank.log import LOG, Note, waits
from distlab.rank.raised import describe_failure
from distlab.rank.recording import ended
from distlab.rank.rpc import AGENT, MEETINGS, Served, init_rpc, shutdown
from distlab.text import rank_list, refuse
from distlab.wire.messages import REMOTE, SERVED, from_json, line_of, to_json

CODE = (types.FunctionType, type, types.ModuleType)  # what comes along with a function of a cell that uses it
ENDING = "EOF: RPC is being ended on this rank."

CPP = re.compile(r"\n\s*\n?At:\n.*|\nException raised from.*| \(this error originated at [^)]*\)", re.DOTALL)

Request = namedtuple("Request", "func args kwargs caller number")
_numbers = itertools.count(1)
_sending = threading.local()  # .call: what a trace records of the request that this thread is about to send


# --- the caller's side ---


def _in_a_meeting() -> bool:
    """Whether this thread is in init_rpc or shutdown, whose own calls are not the learner's."""
    note = LOG.now.get(threading.get_ident())
    return note is not None and note.op in MEETINGS


def _note(op: str, function: str, callees: Iterable[int], has_limit: bool = False) -> Note:
    """The note of a remote call, or of several that are waited for together."""
    note = Note(op, REMOTE, callees, function, has_limit)
    note.freed_with = "EOF: the wait for a remote call was ended."
    note.readable = functools.partial(_readable, note)
    return note


def _readable(note: Note, error: RuntimeError) -> RuntimeError:
    """The error of a remote call without C++'s stack, and with what to do about it."""
    message = CPP.sub("", str(error)).strip()
    inner = re.match(r"RuntimeError: (.*)", message, re.DOTALL)
    where = rank_list(note.ranks)
    if late := re.search(r"ran for more than set timeout \((\d+) ms\)", message):
        message = f"RPC timeout: {note.words or note.op}(...) on {where} did not answer within {late[1]} ms."
    if re.match(r"\w+: [^\n]*(cannot|can't) pickle", message, re.IGNORECASE):
        message = f"The result of {note.words} on {where} cannot be sent ({message}). Return plain values or "
        message += "tensors, or leave it there with rpc.remote, and pass its RRef around."
    raised = RuntimeError(inner[1] if inner else message)
    raised.is_remote = bool(inner)
    return raised


def _noting(invoke: Callable[..., Any]) -> Callable[..., Any]:
    """torch's _invoke_rpc, whose Future remembers the note of the call."""

    @functools.wraps(invoke)
    def call(to: Any, func: Any, rpc_type: Any, args: Any = None, kwargs: Any = None, rpc_timeout: float = -1) -> Any:
        if _in_a_meeting():
            return invoke(to, func, rpc_type, args, kwargs, rpc_timeout)
        limited = rpc_timeout != private.UNSET
        note = _note(f"rpc_{rpc_type.value}", name_of(func, args), [rank_of(to)], limited)
        private.use_plain_optimizers()
        _sending.call = None
        future = invoke(to, func, rpc_type, args, kwargs, rpc_timeout)
        LOG.total += 1
        LOG.tie(future, note)
        if LOG.tracer is not None:
            _record(future, note)
        return future

    return call


def _request(func: Any, args: Any, kwargs: Any) -> Request:
    """What is sent of a call of a function in Python, in the place of torch's PythonUDF."""
    number = 0
    if LOG.tracer is not None and not _in_a_meeting():
        number = next(_numbers)
        _sending.call = LOG.tracer.remote(REMOTE, name_of(func, args), number)
        _sending.call.end = _sending.call.start  # all that is known of a call that only makes an RRef
    return Request(func, args, kwargs, LOG.rank, number)


def _record(future: Any, note: Note) -> None:
    """Have a trace record this call, and when it was answered."""
    call = _sending.call or LOG.tracer.remote(REMOTE, "", 0)
    call.op, call.peer, call.blocking, call.end = f"{note.op} {note.words}", *note.ranks, note.op == "rpc_sync", 0
    call.posted = time.time_ns()
    LOG.tracer.calls[note] = call
    future.add_done_callback(lambda _: ended(call))


def rank_of(to: Any) -> int:
    """The cluster's rank of a WorkerInfo, a name or a worker id; refused where there is no such worker."""
    if AGENT.worker is None:
        raise RuntimeError(ENDING)
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
        notes = [note for note in map(LOG.ties.get, futures) if note is not None and not note.done]
        if notes:
            callees = sorted({rank for note in notes for rank in note.ranks})
            names = ", ".join(dict.fromkeys(note.words for note in notes))
            LOG.tie(whole, _note("wait_all", names, callees, all(note.ends_by_itself for note in notes)))
        return whole

    return call


def _owner(rref: Any, timeout: float = private.UNSET) -> tuple[list[int], bool]:
    """The rank that RRef.to_here waits for, and whether with a limit."""
    if AGENT.worker is None:
        raise RuntimeError("This RRef belongs to an RPC that has ended: make a new one with rpc.remote.")
    return [rank_of(rref.owner())], timeout != private.UNSET


def _others(*_: Any, **__: Any) -> tuple[list[int], bool]:
    """The ranks that a backward pass through calls may wait for."""
    return [rank for rank in (AGENT.worker.ranks if AGENT.worker else ()) if rank != LOG.rank], False


def _waiting_for(op: str, callees: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    """A function that waits for other ranks, noted and traced; its error is one that can be read."""

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        ranks, limited = callees(*args, **kwargs)
        note = _note(op, "", ranks, limited)
        peer = ranks[0] if callees is _owner else None
        trace = LOG.tracer and LOG.tracer.remote(REMOTE, op, 0, peer, blocking=True)
        with waits(note):
            try:
                return original(*args, **kwargs)
            except RuntimeError as error:
                raise _readable(note, error) from None
            finally:
                if trace:
                    ended(trace, trace.start)

    return call


# --- the callee's side ---


def _serve(request: Any) -> Any:
    """Run a function for another rank, as C++ asks for; what it returns, or what it raised.

    Runs on: a rank, on a thread of the agent's pool.
    """
    thread = threading.get_ident()
    outer = AGENT.serving.get(thread)
    if isinstance(request, AttributeError):  # what torch makes of a request that cannot be read
        request = Request(_raise_unreadable, (str(request),), {}, -1, 0)
    served, number = Served(request.caller, name_of(request.func, request.args)), request.number
    trace = LOG.tracer and number and LOG.tracer.remote(SERVED, served.function, number, served.caller)
    AGENT.serving[thread] = served
    _collect_prints()
    LOG.total += 1
    try:
        if AGENT.worker is None:  # the agent is being taken down, and this call had waited for a thread
            raise RuntimeError(ENDING)
        return request.func(*request.args, **request.kwargs)
    except BaseException as error:  # an interrupt of the rank is meant for this thread, too
        return private.failed(_described(error))
    finally:
        if served.printed:
            AGENT.report("".join(served.printed))
        if trace:
            ended(trace)
        LOG.total += 1
        AGENT.serving.pop(thread, None)
        if outer is not None:
            AGENT.serving[thread] = outer


def _raise_unreadable(message: str) -> None:
    """Say why a request could not be read: this rank does not have a class in it."""
    found = re.search(r"attribute '([\w.]+)'", message)
    what = found[1] if found else "what it names"
    advice = "define it in a %%px cell that runs on every rank."
    raise AttributeError(f"rank {LOG.rank} does not have {what}: {advice}")


def _described(error: BaseException) -> str:
    """An exception of a served function, for its caller: what, where, with the learner's lines."""
    failure = replace(describe_failure(error), traceback="")
    return to_json(replace(failure, kind="") if getattr(error, "is_remote", False) else failure)


def _raise_here(result: Any) -> None:
    """Raise on the caller what a served function raised, as C++ asks for. Runs on: a rank, on any thread."""
    described = private.failure(result)
    if described is None:
        return
    failure = from_json(described)
    rows = [": ".join(filter(None, [failure.kind, failure.message]))]
    for line in failure.lines:
        if not line.text and line.file:  # a function of this rank, which travelled
            line = line_of(line.file, line.number, line.place)
        place = f" in {line.place}" if line.place else ""
        rows.append(f"  rank {failure.rank}   line {line.number}{place}   {line.text}".rstrip())
    raise RuntimeError("\n".join(rows))


def _collect_prints() -> None:
    """Keep what served functions print from now on: a rank that serves no call prints without this."""
    for stream in (sys.stdout, sys.stderr):
        if not hasattr(stream.write, "collects"):
            with contextlib.suppress(AttributeError):  # of a class in C
                stream.write = _printing(stream.write)


def _printing(write: Callable[[str], Any]) -> Callable[[str], Any]:
    """A stream's write, which keeps what a served function writes, to be reported under this rank."""

    def call(text: str) -> Any:
        served = AGENT.serving.get(threading.get_ident())
        if served is None:
            return write(text)
        served.printed.append(text)
        return len(text)

    call.collects = True
    return call


# --- how functions travel ---


class Pickler(cloudpickle.Pickler):
    """cloudpickle's, with which torch pickles a remote call; a function of a cell finds the callee's variables.

    Functions, classes and modules that it uses come along where the callee has none of that name; other values do not.
    A class of a cell goes by its name, so that it is one class on all ranks.
    """

    def reducer_override(self, obj: Any) -> Any:
        reduce = self.dispatch_table.get(type(obj))  # torch's, of tensors and RRefs
        if reduce is not None:
            return reduce(obj)
        if isinstance(obj, types.MethodType):  # cloudpickle would take its function along
            return getattr, (obj.__self__, obj.__name__)
        if isinstance(obj, type) and obj.__module__ == "__main__" and "<locals>" not in obj.__qualname__:
            return NotImplemented  # by its name
        if not isinstance(obj, types.FunctionType):
            return super().reducer_override(obj)
        main = _namespace()
        of_cell = obj.__globals__ is main
        if of_cell:
            self.globals_ref[id(main)] = _Namespace()
        reduced = super().reducer_override(obj)
        if not isinstance(reduced, tuple):  # one that can be imported
            return reduced
        make, arguments, (state, slots), items, pairs, set_state = reduced
        if of_cell:
            come = {name: value for name, value in slots["__globals__"].items() if isinstance(value, CODE)}
        else:  # it came by value itself: what this rank lent it, the callee lends it, too
            come = {name: value for name, value in slots["__globals__"].items() if value is not main.get(name)}
        slots = {**slots, "__globals__": {}}
        return make, arguments, (state, slots, come, set_state), items, pairs, _complete


class _Namespace:
    """Stands for the __main__ of the rank that unpickles it."""

    def __reduce__(self) -> tuple[Callable[..., Any], tuple]:
        return _namespace, ()


def _namespace() -> dict[str, Any]:
    return vars(sys.modules["__main__"])


def _complete(function: types.FunctionType, state: tuple[Any, ...]) -> None:
    """Give a function its attributes, what came with it where its namespace lacks that, and this rank's names."""
    attributes, slots, come, set_state = state
    for name, value in come.items():
        function.__globals__.setdefault(name, value)
    set_state(function, (attributes, slots))
    for name, value in _namespace().items():
        function.__globals__.setdefault(name, value)


# --- what is wrapped ---


def _by_owner(reduce: Callable[..., Any]) -> Callable[..., Any]:
    """The reducer of RRefs for torch's pickler, as they can be passed on in a later agent of a process, too."""

    def call(self: Any, rref: Any) -> Any:
        reduced = reduce(self, rref)
        return reduced if AGENT.is_first else private.passed_on_as_by_owner(reduced)

    return call


def install(report: Callable[[str], None]) -> None:
    """Put the layer on torch.distributed.rpc; a second time does nothing.

    Runs on: every rank, on its main thread.

    Args:
        report: sends the notebook what a served function has printed.
    """
    AGENT.report = report
    if not rpc.is_available() or rpc.init_rpc is init_rpc:
        return
    wraps = (
        (rpc, "init_rpc", lambda _: init_rpc),
        (rpc, "shutdown", lambda _: shutdown),
        (rpc.api, "shutdown", lambda _: shutdown),
        (rpc.api, "_invoke_rpc", _noting),
        (rpc.api, "PythonUDF", lambda _: _request),
        (private.RREF_PICKLER, "_py_rref_reducer", _by_owner),
        (private.COLLECTOR, "_collect_all", _collecting),
        (rpc.internal, "_pickler", lambda _: Pickler),
        (rpc.internal, "_run_function", lambda _: _serve),
        (rpc.internal, "_handle_exception", lambda _: _raise_here),
        (rpc.PyRRef, "to_here", functools.partial(_waiting_for, "to_here", _owner)),
        (autograd, "backward", functools.partial(_waiting_for, "dist_autograd.backward", _others)),
    )
    for owner, name, wrap in wraps:
        setattr(owner, name, wrap(getattr(owner, name)))
