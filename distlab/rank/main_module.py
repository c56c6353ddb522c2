"""A program as `__main__`: started and ended as Python does it.

Runs on every rank, called by program.py. The module stays `__main__` until the program has ended,
its threads and what it has registered with atexit included, so that its classes can be pickled and
processes that it starts find it.
"""

from __future__ import annotations

import atexit
import builtins
import contextlib
import importlib.util
import io
import logging
import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from importlib.machinery import ModuleSpec, SourceFileLoader
from types import CodeType, ModuleType, TracebackType
from typing import Any, NoReturn
from unittest import mock

from distlab.compat.python import end_multiprocessing, finalizers, run_finalizers
from distlab.errors import DistlabError
from distlab.rank.raised import is_at_fault
from distlab.rank.script_streams import flush_all
from distlab.wire.program import Program
from distlab.wire.source import PACKAGE


def run_as_main(program: Program, is_first_to_write: Callable[[str], bool] | None = None) -> None:
    """Run a program, wait for its threads, and call what it has registered for the end.

    Args:
        is_first_to_write: whether no other rank has written a text, the traceback of an error; None
            where each writes its own.

    Raises:
        SystemExit: the program has ended with a status other than 0, its code.
    """
    with as_process(), _main_module() as module, end_of_process():
        try:
            _execute(program, module)
        except SystemExit as end:
            end.code = status_of(end)
            if end.code:
                raise
        except _Left:
            raise
        except BaseException as error:
            is_report = isinstance(error, DistlabError)  # which says all that there is to say
            if is_at_fault(error) and not is_report:
                show(error, is_first_to_write)
            raise


def _execute(program: Program, module: ModuleType) -> None:
    """Execute a script or a module in the module `__main__`."""
    if program.is_module:
        sys.path.insert(0, program.folder)
        sys.argv = ["-m", *program.arguments]
        spec, code = _find(program.name)
        place = spec.origin or program.name
        module.__package__ = spec.parent
    else:
        place = os.path.join(program.folder, program.name)
        sys.path.insert(0, os.path.dirname(os.path.realpath(place)))
        spec = None
        loader = SourceFileLoader("__main__", place)
        with io.open_code(place) as file:
            code = compile(file.read(), place, "exec", dont_inherit=True)
        module.__package__ = None
        module.__loader__ = loader
    first = place if program.is_module else program.name
    sys.argv = [first, *program.arguments]
    module.__file__ = place
    module.__spec__ = spec
    module.__dict__["__cached__"] = None
    if spec is not None:
        module.__loader__ = spec.loader
        module.__dict__["__cached__"] = spec.cached
    exec(code, module.__dict__)


def _find(name: str) -> tuple[ModuleSpec, CodeType]:
    """The code of a module, or of the __main__ of a package, whose parents are imported for it."""
    spec = importlib.util.find_spec(name)
    if spec is not None and spec.submodule_search_locations is not None:
        name = f"{name}.__main__"
        spec = importlib.util.find_spec(name)
    if spec is None or spec.loader is None:
        raise ImportError(f"No module named {name!r}")
    get_code: Callable[[str], CodeType | None] | None = getattr(spec.loader, "get_code", None)
    code = None if get_code is None else get_code(name)
    if code is None:
        raise ImportError(f"No code object available for {name}")
    return spec, code


def status_of(end: SystemExit) -> int:
    """The exit status of a process that ends so; words are written on stderr, as Python does."""
    if end.code is None:
        return 0
    if isinstance(end.code, int):
        return int(end.code) & 0xFF
    print(end.code, file=sys.stderr)
    return 1


def show(error: BaseException, is_first_to_write: Callable[[str], bool] | None = None) -> None:
    """Write a traceback on stderr, in one piece, with the program's frames and what they call.

    A program that has put its own function into `sys.excepthook` has it called.

    Args:
        is_first_to_write: whether no other rank has written a text; None where each writes its own.
    """
    error.__traceback__ = _without_launcher(error.__traceback__)
    # torch's own writes Python's words, and the rank before each line
    is_torchs = sys.excepthook.__module__.startswith("torch.")
    if sys.excepthook is not sys.__excepthook__ and not is_torchs:
        sys.excepthook(type(error), error, error.__traceback__)
        return
    words = traceback.TracebackException(type(error), error, error.__traceback__)
    _leave_out_frames(words)
    text = "".join(words.format())
    if is_first_to_write is not None and not is_first_to_write(text):
        return  # the report says which ranks have raised it
    with contextlib.suppress(Exception):  # a program may have put anything there
        sys.stderr.write(text)
        sys.stderr.flush()


def _without_launcher(trace: TracebackType | None) -> TracebackType | None:
    """A traceback from its first frame on that is not distlab's or Python's import system."""
    while trace is not None and _is_launchers(trace.tb_frame.f_code.co_filename):
        trace = trace.tb_next
    return trace


def _is_launchers(file: str) -> bool:
    return file.startswith((PACKAGE + os.sep, "<frozen importlib", "<frozen runpy"))


def _leave_out_frames(words: traceback.TracebackException) -> None:
    """Leave distlab's own frames out of a traceback, and of those that led to it."""
    left: list[traceback.TracebackException | None] = [words]
    seen: set[int] = set()
    while left:
        one = left.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        frames = [frame for frame in one.stack if not frame.filename.startswith(PACKAGE + os.sep)]
        one.stack[:] = frames
        left += [one.__cause__, one.__context__]


@contextlib.contextmanager
def _main_module() -> Iterator[ModuleType]:
    """A new `__main__`, with `sys.argv` and `sys.path` put back afterwards."""
    argv = sys.argv
    path = list(sys.path)
    before = sys.modules["__main__"]
    hook = sys.excepthook
    sys.excepthook = sys.__excepthook__  # torch has put its own there
    module = ModuleType("__main__")
    module.__dict__["__builtins__"] = builtins
    sys.modules["__main__"] = module
    try:
        yield module
    finally:
        sys.excepthook = hook
        sys.argv = argv
        sys.path[:] = path
        sys.modules["__main__"] = before


class _Left(BaseException):
    """The program has ended its process by `os._exit(0)`, which is no fault."""


@contextlib.contextmanager
def as_process() -> Iterator[None]:
    """Have ends of processes be what a program expects, though the rank's lives on.

    A process that the program has forked ends here, and would otherwise answer for the rank. After
    `os._exit(0)` the rank still has to reply that all is well.
    """
    rank = os.getpid()
    exit_of_system = os._exit
    status = 1

    def leave(code: int) -> NoReturn:
        is_main = threading.current_thread() is threading.main_thread()
        if code == 0 and is_main and os.getpid() == rank:
            raise _Left
        exit_of_system(code)

    try:
        with mock.patch.object(os, "_exit", leave):
            yield
        status = 0
    except _Left:
        return
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 1
        raise
    finally:
        if os.getpid() != rank:
            flush_all()
            exit_of_system(status)


@contextlib.contextmanager
def end_of_process() -> Iterator[None]:
    """Do at the end what Python does at the end of a process, though this one goes on.

    Threads are waited for. Then come the functions that the program has registered, the objects
    that it has not finalized, and the processes that it has not joined.
    """
    registered: list[Any] = []
    finalized = finalizers()
    with _registers(registered):
        try:
            yield
        except _Left:
            raise
        except BaseException:
            _end(registered, finalized)
            raise
        else:
            _end(registered, finalized)


@contextlib.contextmanager
def _registers(registered: list[Any]) -> Iterator[None]:
    """Keep in a list what is registered with atexit."""
    own_register = atexit.register
    own_unregister = atexit.unregister

    def register(function: Any, *args: Any, **kwargs: Any) -> Any:
        registered.append((function, args, kwargs))
        return function

    def unregister(function: Any) -> None:
        registered[:] = [one for one in registered if one[0] != function]
        own_unregister(function)

    atexit.register = register  # type: ignore[assignment]
    atexit.unregister = unregister
    try:
        yield
    finally:
        atexit.register = own_register
        atexit.unregister = own_unregister


def _end(registered: list[Any], finalized: set[Any]) -> None:
    join_threads()
    while registered:  # one may register another
        function, args, kwargs = registered.pop()
        try:
            function(*args, **kwargs)
        except SystemExit:
            continue
        except Exception as error:  # Python writes it, and goes on
            show(error)
    # what modules have registered that were imported before the program
    run_finalizers(finalized)
    end_multiprocessing()
    logging.shutdown()


def join_threads() -> None:
    """Wait for the program's threads, as Python does before it ends.

    Those of executors, which wait for work, are asked to end first.
    """
    executors = sys.modules.get("concurrent.futures.thread")
    if executors is not None:
        vars(executors)["_python_exit"]()
    for thread in threading.enumerate():
        is_own = thread is threading.current_thread()
        if not thread.daemon and not is_own and thread.name != "MainThread":
            thread.join()
