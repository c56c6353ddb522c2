"""Remote procedure calls: those that this rank makes, what it runs for others, and how both travel.

Runs on every rank. table.py puts the functions of `patches_of_rpc` into torch.distributed.rpc.
A function that was written in a cell runs on the callee as the caller defined it, and finds the
callee's variables.
"""

import contextlib
import functools
import itertools
import re
import sys
import threading
import time
import types
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, NamedTuple

import cloudpickle
from torch.distributed import autograd, rpc

from distlab.arguments import refuse
from distlab.compat import torch_rpc as private
from distlab.diagnosis.lines import where
from distlab.rank import freed
from distlab.rank.hooks import Patch
from distlab.rank.log import LOG, InCall, Note
from distlab.rank.plugins import PLUGINS
from distlab.rank.raised import describe_failure
from distlab.rank.recording import ended
from distlab.rank.rpc import AGENT, Served, init_rpc, shutdown
from distlab.rank.this_rank import THIS_RANK
from distlab.wire.codec import from_json, to_json
from distlab.wire.messages import REMOTE, SERVED, Answer
from distlab.wire.namespace import bind_rank_globals, namespace_of_cells
from distlab.wire.source import Line, line_of
from distlab.words import rank_list

# what comes along with a function of a cell that uses it
CODE = (types.FunctionType, type, types.ModuleType)
MOST_PRINTED_BY_CALL = 100_000  # characters of what a served function has printed
_IS_REMOTE = "is_remote"  # the attribute of an error that says what a function raised elsewhere

CPP_STACK = re.compile(
    r"\n\s*\n?At:\n.*|\nException raised from.*| \(this error originated at [^)]*\)", re.DOTALL
)


class Request(NamedTuple):
    """What a rank sends when it calls a function of Python's on another one.

    Attributes:
        func, args, kwargs: the call.
        caller: the rank that calls.
        number: the number by which the two ends of the call find each other in a trace; 0 if
            nothing is recorded.
    """

    func: Callable[..., Any]
    args: Any
    kwargs: Any
    caller: int
    number: int


_numbers = itertools.count(1)
# .trace: what a trace records about the call whose request this thread is about to send
_sending = threading.local()


# --- the caller's side ---


def _note_of_call(op: str, function: str, callees: Iterable[int], has_limit: bool = False) -> Note:
    """The note of a remote call, or of several that are waited for together."""
    note = Note(op, REMOTE, callees, function, has_limit, freed.FROM_REMOTE_CALL)
    note.readable = functools.partial(_readable, note)
    return note


def _readable(note: Note, error: RuntimeError) -> RuntimeError:
    """The error of a remote call without C++'s stack, and with what to do about it."""
    message = CPP_STACK.sub("", str(error)).strip()
    inner = re.match(r"RuntimeError: (.*)", message, re.DOTALL)
    if inner:  # what the function has raised there
        raised = RuntimeError(inner[1])
        vars(raised)[_IS_REMOTE] = True
        return raised
    callees = rank_list(note.ranks)
    late = re.search(r"ran for more than set timeout \((\d+) ms\)", message)
    if late:
        call = f"{note.words or note.op}(...)"
        message = f"RPC timeout: {call} on {callees} did not answer within {late[1]} ms."
    if re.match(r"\w+: [^\n]*(cannot|can't) pickle", message, re.IGNORECASE):
        message = (
            f"The result of {note.words} on {callees} cannot be sent ({message}). Return plain "
            "values or tensors, or leave it there with rpc.remote, and pass its RRef around."
        )
    return RuntimeError(message)


def _on_invoke(
    original: Callable[..., Any],
    to: Any,
    func: Any,
    rpc_type: Any,
    args: Any,
    kwargs: Any,
    rpc_timeout: float,
) -> Any:
    """torch's _invoke_rpc, whose Future remembers the note of the call."""
    callee = rank_of(to)
    op = f"rpc_{rpc_type.value}"
    has_limit = rpc_timeout != private.UNSET
    note = _note_of_call(op, name_of(func, args), [callee], has_limit)
    private.use_plain_optimizers()
    trace = None
    if PLUGINS.tracer is not None:
        blocks = op == "rpc_sync"
        shown = f"{op} {note.words}"
        trace = PLUGINS.tracer.remote(REMOTE, shown, 0, peer=callee, blocking=blocks, note=note)
    _sending.trace = trace
    try:
        future = original(to, func, rpc_type, args, kwargs, rpc_timeout)
    finally:  # the request may not be picklable
        _sending.trace = None
    LOG.activity += 1
    LOG.tie(future, note)
    if trace is not None:
        trace.posted = time.time_ns()
        future.add_done_callback(lambda _: ended(trace))
    return future


def _on_request(_: Any, func: Any, args: Any, kwargs: Any) -> Request:
    """What is sent for a call of a Python function, instead of torch's PythonUDF."""
    number = 0
    if PLUGINS.tracer is not None:
        number = next(_numbers)
        trace = getattr(_sending, "trace", None)
        if trace is None:  # for a call that makes an RRef, only the time when it was sent is known
            trace = PLUGINS.tracer.remote(REMOTE, name_of(func, args), 0)
            trace.end = trace.start
        trace.sequence = number
    return Request(func, args, kwargs, THIS_RANK.rank, number)


def rank_of(to: Any) -> int:
    """The cluster's rank of a WorkerInfo, a name or an id; ArgumentError without such a worker."""
    workers = AGENT.workers
    if not workers:
        raise RuntimeError(freed.RPC_ENDS)
    names = list(workers)
    name = getattr(to, "name", to)
    is_id = isinstance(name, int) and name in range(len(names))
    if is_id:
        name = names[name]
    if name not in names:
        known = ", ".join(map(repr, names))
        rule = f"the name, WorkerInfo or id of a worker ({known})"
        refuse("to", rule, to, "Use a name that init_rpc was given.")
    return workers[name]


def name_of(func: Any, args: Any) -> str:
    """The name of a function as the learner knows it: for a call through an RRef, the method's."""
    name = getattr(func, "__name__", type(func).__name__)
    if name.startswith("_local_invoke") and args and len(args) > 1:
        return args[1]
    return name


def _on_collect(original: Callable[..., Any], futures: Iterable[Any]) -> Any:
    """torch's _collect_all, whose Future waits for all that the collected ones wait for."""
    futures = list(futures)
    future_of_all = original(futures)
    noted = map(LOG.ties.get, futures)
    notes = [note for note in noted if note is not None and not note.done]
    if notes:
        callees: set[int] = set()
        for note in notes:
            callees.update(note.ranks)
        names = ", ".join(dict.fromkeys(note.words for note in notes))
        has_limit = all(note.has_limit for note in notes)
        note_of_all = _note_of_call("wait_all", names, sorted(callees), has_limit)
        LOG.tie(future_of_all, note_of_all)
    return future_of_all


def _on_to_here(original: Callable[..., Any], rref: Any, timeout: float = private.UNSET) -> Any:
    """RRef.to_here, which waits for the owner."""
    if not AGENT.workers:
        raise RuntimeError(
            "This RRef belongs to an RPC agent that has ended: make a new one with rpc.remote."
        )
    owner = rank_of(rref.owner())
    has_limit = timeout != private.UNSET
    note = _note_of_call("to_here", "", [owner], has_limit)
    return _wait(note, owner, functools.partial(original, rref, timeout))


def _on_backward(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """A backward pass through remote calls, which may wait for all other ranks."""
    ranks = [rank for rank in AGENT.workers.values() if rank != THIS_RANK.rank]
    note = _note_of_call("dist_autograd.backward", "", ranks)
    return _wait(note, None, functools.partial(original, *args, **kwargs))


def _wait(note: Note, peer: int | None, make: Callable[[], Any]) -> Any:
    """Make a wait for other ranks, noted and traced."""
    trace = None
    if PLUGINS.tracer is not None:
        trace = PLUGINS.tracer.remote(REMOTE, note.op, 0, peer, blocking=True)
    with InCall(note):
        try:
            return make()
        finally:
            if trace:
                ended(trace, trace.start)


# --- the callee's side ---


def _on_serve(_: Any, request: Any) -> Any:
    """Run a function for another rank, as C++ asks for; what it returns, or what it raised.

    Runs on: a rank, on a thread of the agent's pool.
    """
    # torch's, of a request whose class this rank does not have
    if isinstance(request, AttributeError):
        return _failed(request)
    thread = threading.get_ident()
    served = Served(request.caller, name_of(request.func, request.args))
    trace = None
    if PLUGINS.tracer is not None and request.number:
        what = served.function
        trace = PLUGINS.tracer.remote(SERVED, what, request.number, served.caller)
    AGENT.serving[thread] = served
    _collect_prints()
    LOG.activity += 1
    try:
        # the agent is being taken down, and this call was waiting for a thread
        if not AGENT.workers:
            raise RuntimeError(freed.RPC_ENDS)
        return request.func(*request.args, **request.kwargs)
    except BaseException as error:  # an interrupt of the rank is meant for this thread, too
        return _failed(error)
    finally:
        if served.printed:
            printed = "".join(served.printed)
            PLUGINS.send(Answer(0, printed=printed[:MOST_PRINTED_BY_CALL]))
        if trace:
            ended(trace)
        LOG.activity += 1
        AGENT.serving.pop(thread, None)


def _failed(error: BaseException) -> Any:
    """What a served function gives instead of a result: what it raised, and where."""
    failure = replace(describe_failure(error), traceback="")
    if vars(error).get(_IS_REMOTE):  # its words say already what was raised, and where
        failure = replace(failure, kind="")
    return rpc.internal.RemoteException(to_json(failure), RuntimeError)


def _on_result(_: Any, result: Any) -> None:
    """Raise on the caller what a served function raised, as C++ asks for.

    Runs on: a rank, on any thread.
    """
    if not isinstance(result, rpc.internal.RemoteException):
        return
    failure = from_json(result.msg)
    what = ": ".join(part for part in (failure.kind, failure.message) if part)
    lines = [_with_text(line) for line in failure.lines]
    raise RuntimeError(f"{what}\n{where([failure.rank], lines)}".rstrip())


def _with_text(line: Line) -> Line:
    """A line with its text: of a function of this rank that travelled, only this rank has it."""
    if line.text:
        return line
    return line_of(line.file, line.number, line.function)


def _collect_prints() -> None:
    """From now on, keep what served functions print. A rank that serves no call does without."""
    streams: tuple[Any, Any] = (sys.stdout, sys.stderr)
    for stream in streams:
        if not isinstance(stream.write, functools.partial):
            with contextlib.suppress(AttributeError):  # of a class in C
                stream.write = functools.partial(_write_or_keep, stream.write)


def _write_or_keep(original: Callable[[str], Any], text: str) -> Any:
    """A stream's write, which keeps what served functions write, to report it under this rank."""
    served = AGENT.serving.get(threading.get_ident())
    if served is None:
        return original(text)
    served.printed.append(text)
    return len(text)


# --- how functions travel ---


class Pickler(cloudpickle.Pickler):
    """cloudpickle's, with which torch pickles remote calls: functions find the callee's variables.

    Functions, classes and modules that it uses come along where the callee has none of that name;
    other values do not. A class of a cell goes by its name, so that it is one class on all ranks.
    """

    def reducer_override(self, obj: Any) -> Any:
        reduce = self.dispatch_table.get(type(obj))  # torch's, of tensors and RRefs
        if reduce is not None:
            return reduce(obj)
        if isinstance(obj, types.MethodType):  # cloudpickle would take its function along
            return getattr, (obj.__self__, obj.__name__)
        if isinstance(obj, type) and _is_of_cell(obj):
            return NotImplemented  # by its name
        if not isinstance(obj, types.FunctionType):
            return super().reducer_override(obj)
        reduced = super().reducer_override(obj)
        if not isinstance(reduced, tuple):  # one that can be imported
            return reduced
        # cloudpickle's: what makes the function, and what gives it its attributes
        make, arguments, (attributes, slots), items, pairs, set_state = reduced
        is_of_cell = obj.__globals__ is namespace_of_cells()
        if is_of_cell:
            make = _make_of_cell
        come_along = _come_along(slots["__globals__"], is_of_cell)
        slots = {**slots, "__globals__": {}}
        state = (attributes, slots, come_along, set_state)
        return make, arguments, state, items, pairs, _restore_function


def _come_along(used: dict[str, Any], is_of_cell: bool) -> dict[str, Any]:
    """Of the global names that a function uses, those that travel with it.

    With a function of a cell, functions, classes and modules do. One that itself came to this rank
    by value has everything but what this rank has lent it, which the callee lends it as well.
    """
    if is_of_cell:
        return {name: value for name, value in used.items() if isinstance(value, CODE)}
    lent = namespace_of_cells()
    return {name: value for name, value in used.items() if value is not lent.get(name)}


def _is_of_cell(kind: type) -> bool:
    """Whether a cell has defined a class at its top level."""
    return kind.__module__ == "__main__" and "<locals>" not in kind.__qualname__


def _make_of_cell(code: types.CodeType, _: dict[str, Any], *more: Any) -> types.FunctionType:
    """A function of a cell, among the names of the rank that unpickles it."""
    return types.FunctionType(code, namespace_of_cells(), *more)


def _restore_function(function: types.FunctionType, state: tuple[Any, ...]) -> None:
    """Give a function its attributes, this rank's names, and what else of its own it lacks."""
    attributes, slots, come_along, set_state = state
    for name, value in come_along.items():
        function.__globals__.setdefault(name, value)
    set_state(function, (attributes, slots))
    bind_rank_globals(function)


# --- what is wrapped ---


def _on_reduce_rref(original: Callable[..., Any], pickler: Any, rref: Any) -> Any:
    """The reducer of RRefs for torch's pickler, so that later agents can pass them on as well."""
    reduced = original(pickler, rref)
    if AGENT.is_first:
        return reduced
    return private.passed_on_as_by_owner(reduced)


def patches_of_rpc() -> list[Patch]:
    """The patches of torch.distributed.rpc, for table.py."""
    return [
        Patch(rpc, "init_rpc", init_rpc),
        Patch(rpc, "shutdown", shutdown),
        Patch(rpc.api, "shutdown", shutdown),
        Patch(rpc.api, "_invoke_rpc", _on_invoke),
        Patch(rpc.api, "PythonUDF", _on_request),
        Patch(rpc.internal, "_pickler", lambda _, stream: Pickler(stream)),
        Patch(rpc.internal, "_run_function", _on_serve),
        Patch(rpc.internal, "_handle_exception", _on_result),
        Patch(private.RREF_PICKLER, "_py_rref_reducer", _on_reduce_rref),
        Patch(private.HAS_COLLECT_ALL, "_collect_all", _on_collect),
        Patch(rpc.PyRRef, "to_here", _on_to_here),
        Patch(autograd, "backward", _on_backward),
    ]
