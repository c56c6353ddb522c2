"""What runs around each cell and each call on a rank: it restores what a cell may have replaced.

Runs on every rank, on its main thread; watchdog.watch puts it in place. It restores handlers of
signals, stdout and stderr, the environment variables that say which rank this is, and Python's
builtins. A process that a cell has forked prints what it prints under its rank, and ends where the
cell does.
"""

from __future__ import annotations

import asyncio
import builtins
import functools
import gc
import multiprocessing
import os
import pdb
import re
import runpy
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from typing import Any, ClassVar

from distlab.compat.ipython import ReadsToTheEnd, current_shell, let_cells_await, task_of_cell
from distlab.debugger import console
from distlab.debugger.console import CONSOLE
from distlab.rank.children import end_process, make_children_plain
from distlab.wire.rendezvous import INTERFACES
from distlab.wire.source import line_of

RANK_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", *INTERFACES)
# Variables of sys that IPython defines, and code.interact. Libraries take a process that has them
# for a person's, where one process is all there is: Lightning's Trainer refuses to train on several
# ranks.
PROMPTS = ("ps1", "ps2", "ps3")
# for the watchdog to let a frame go; a child that something else keeps costs so much at a failure
FRAMES_SECONDS = 0.2
_first_environment: dict[str, str | None] = {}
# the task of the cell that runs, if it has a top-level await; a second time if it runs another cell
_awaiting: list[asyncio.Task[Any]] = []
_BUILTINS = vars(builtins)
_GENUINE = dict(_BUILTINS)


def restore_builtins() -> None:
    """Put Python's own builtins back if a cell has replaced any.

    It may have replaced all, so this calls none.

    Runs on: any thread. The watchdog does it while a cell runs: it could not answer without them.
    """
    _BUILTINS.update(_GENUINE)


def awaiting() -> asyncio.Task[Any] | None:
    """The task of the cell that is running, if it has a top-level await.

    Between two of its steps no frame shows it.

    Runs on: any thread.
    """
    return _awaiting[-1] if _awaiting else None


def restore_around_cells(
    handlers: dict[int, Callable[..., Any]], at_end: Callable[[], None]
) -> None:
    """From now on, restore these signal handlers, and the rest as it is now, around every cell.

    ipykernel would install a handler of SIGINT for every message; this replaces it. Of an engine
    that is attached a second time, only the handlers and `at_end` are new.

    Runs on: a rank, on its main thread, before its first cell in this cluster.

    Args:
        at_end: called when a cell or a call has ended, before the notebook knows of it.
    """
    _first_environment.update({name: os.environ.get(name) for name in RANK_VARIABLES})
    installed = _AroundCells.installed
    if installed is not None:  # this engine was attached to a cluster before
        installed.renew(handlers, at_end)
        return
    kept = _Kept(handlers)
    kept.restore()
    make_children_plain([*handlers, signal.SIGTERM], kept.streams)
    kernel = current_shell().kernel
    let_cells_await(kernel)
    _AroundCells(kernel, kept, at_end).install()
    _show_less(kernel.shell)


class _Kept:
    """What an engine needs and a cell may have replaced, as it is when this is made.

    Args:
        handlers: the handlers of signals, by the signal's number.

    Attributes:
        streams: stdout and stderr, by name; empty in a process that a cell has forked.
    """

    def __init__(self, handlers: dict[int, Callable[..., Any]]) -> None:
        self._handlers = handlers
        self.streams: dict[str, Any] = {"stdout": sys.stdout, "stderr": sys.stderr}
        # the thread that sends what is written; close() takes it away
        self._sender = self.streams["stdout"].pub_thread

    def renew(self, handlers: dict[int, Callable[..., Any]]) -> None:
        """Keep other handlers of signals from now on."""
        self._handlers = handlers
        self.restore()

    def restore(self) -> None:
        """Put all of it back, and end what a person did in the debugger."""
        restore_builtins()
        if CONSOLE.was_used:
            CONSOLE.reset()
        sys.breakpointhook = console.pause
        pdb.set_trace = console.pause
        for prompt in PROMPTS:
            vars(sys).pop(prompt, None)
        for name, stream in self.streams.items():
            stream.pub_thread = self._sender
            setattr(sys, name, stream)
        for name, value in _first_environment.items():
            if value is not None:
                os.environ.setdefault(name, value)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def read_to_the_end(self) -> None:
        """Return when the streams have what the rank's children have written."""
        for stream in self.streams.values():
            if isinstance(stream, ReadsToTheEnd):
                stream.read_to_the_end()


class _AroundCells:
    """What runs in the place of an engine's methods: it restores what is kept, and notes the end.

    Everything is restored around every message, and once more before the engine reports how a cell
    or a call has ended; only then is the end noted. IPython shows some exceptions, such as those of
    a script of %run, and goes on as if the cell had succeeded; here the cell fails.

    Attributes:
        installed: the one that was put in place in this process, or in the rank that it was forked
            from; None before.
    """

    installed: ClassVar[_AroundCells | None] = None

    def __init__(self, kernel: Any, kept: _Kept, at_end: Callable[[], None]) -> None:
        self._kernel = kernel
        self._kept = kept
        self._at_end = at_end
        self._rank_pid = os.getpid()
        self._shown: list[BaseException] = []  # what IPython has shown since the cell began
        # the methods that are replaced
        shell = kernel.shell
        self._own_run_ast_nodes = shell.run_ast_nodes
        self._own_do_apply = kernel.do_apply
        self._own_showtraceback = shell.showtraceback
        self._own_safe_execfile = shell.safe_execfile

    def is_in_rank(self) -> bool:
        """Whether this process is the rank, and not one that a cell has forked."""
        return os.getpid() == self._rank_pid

    def renew(self, handlers: dict[int, Callable[..., Any]], at_end: Callable[[], None]) -> None:
        """Go on with other handlers of signals, and with another function to call at the end."""
        self._kept.renew(handlers)
        self._at_end = at_end

    def install(self) -> None:
        """Put these methods in their place; once in a process, or each would run twice."""
        _AroundCells.installed = self
        kernel = self._kernel
        shell = kernel.shell
        shell.run_ast_nodes = self.run_statements
        kernel.do_apply = self.run_call
        shell.showtraceback = self.show_error
        shell.safe_execfile = self.run_file
        shell.safe_run_module = _run_module
        kernel.pre_handler_hook = self._kept.restore
        kernel.post_handler_hook = self._kept.restore

    async def run_statements(self, *args: Any, result: Any, **kwargs: Any) -> Any:
        """In the place of run_ast_nodes, which runs the statements of a cell."""
        self._shown.clear()
        task = task_of_cell()
        if task is not None:
            _awaiting.append(task)
        try:
            return await self._own_run_ast_nodes(*args, result=result, **kwargs)
        finally:
            if task is not None:
                _awaiting.remove(task)
            self._fail_as_shown(result)
            self._end()

    def _fail_as_shown(self, result: Any) -> None:
        """Let a cell fail with the first exception that IPython has shown and not passed on.

        It does so where the repr of a cell's value raises, for example.
        """
        if self._shown and result.error_in_exec is None:
            result.error_in_exec = self._shown[0]
        self._shown.clear()
        if result.error_in_exec is not None:
            end_abandoned_children(result.error_in_exec)

    def run_call(self, *args: Any, **kwargs: Any) -> Any:
        """In the place of do_apply, which runs a call of the notebook."""
        try:
            return self._own_do_apply(*args, **kwargs)
        finally:
            self._end()

    def _end(self) -> None:
        """Note the end of a cell or a call; a process that the cell has forked ends here itself."""
        self._kept.restore()
        if not self.is_in_rank():
            end_process(failed=False)
        self._kept.read_to_the_end()
        self._at_end()

    def run_file(self, *args: Any, exit_ignore: bool = False, **options: Any) -> None:
        """In the place of safe_execfile, which runs a script of %run: its exceptions go on."""
        try:
            options.setdefault("raise_exceptions", True)
            self._own_safe_execfile(*args, **options)
        except SystemExit:
            if not exit_ignore:
                raise

    def show_error(self, *args: Any, **kwargs: Any) -> None:
        """In the place of showtraceback."""
        self._kept.restore()
        error = sys.exc_info()[1]
        if error is not None:  # there is none where %tb shows an old one
            self._shown.append(error)
        self._own_showtraceback(*args, **kwargs)
        if not self.is_in_rank():
            end_process(failed=True)
        if CONSOLE.after_failure and error is not None:
            console.post_mortem(error)


def _show_less(shell: Any) -> None:
    """Have IPython, and libraries, show what makes sense on a rank."""
    shell.set_hook("show_in_pager", _print_page, 0)
    # IPython's, for a person at a terminal
    warnings.filterwarnings("ignore", message="To exit: use 'exit'")
    # tqdm.auto's: a rank has no widgets
    warnings.filterwarnings("ignore", message="IProgress not found")
    # Python's since 3.12, for each worker of a loader: a rank always has threads, of distlab's own
    warnings.filterwarnings("ignore", r"This process .* is multi-threaded, use of fork")
    warnings.formatwarning = functools.partial(_warning_words, warnings.formatwarning)
    # IPython's own form parses torch's files: half a second on each rank
    shell.InteractiveTB.set_mode("Plain")


def end_abandoned_children(error: BaseException | None = None) -> None:
    """After a failure, end the children that only its traceback keeps.

    The workers of a DataLoader's iterator are such children: a process that is forked later would
    have the iterator as well, and complain of it. A rank without children collects nothing.

    Runs on: a rank, on its main thread; nothing happens in a process that a cell has forked.

    Args:
        error: one that IPython keeps. The variables of its frames go: the debugger was there
            before, if at all, and %debug finds nobody who types on a rank.
    """
    around = _AroundCells.installed
    if around is None or not around.is_in_rank() or not multiprocessing.active_children():
        return
    if error is not None:
        traceback.clear_frames(error.__traceback__)
    deadline = time.monotonic() + FRAMES_SECONDS
    gc.collect()
    # the watchdog may be reading a frame, which keeps its variables meanwhile
    while multiprocessing.active_children() and time.monotonic() < deadline:
        time.sleep(0.01)
        gc.collect()


def _run_module(name: str, names: dict[str, Any]) -> None:
    """In the place of safe_run_module, which does `%run -m name`: an exception ends the cell.

    Args:
        names: those that it defines are added.
    """
    try:
        names.update(runpy.run_module(name, run_name="__main__", alter_sys=True))
    except SystemExit as end:
        if end.code:
            raise


def _warning_words(
    own: Callable[..., str],
    message: Warning,
    category: type[Warning],
    filename: str,
    number: int,
    line: str | None = None,
) -> str:
    """A warning as Python writes it, but with "line 3" for a line of a cell.

    Nobody knows the file of a cell, and each rank has another one.

    Args:
        own: Python's function, which takes what follows.
    """
    words = own(message, category, filename, number, line)
    where = line_of(filename, number, "")
    if not where.is_in_cell:
        return words
    return words.replace(f"{filename}:{number}", where.position, 1)


def _print_page(shell: Any, text: Any, *_: Any, **__: Any) -> None:
    """Print what `name?` shows: a rank has no pager.

    Without colours, and without the file of a cell's function, which differs on each rank.
    """
    if isinstance(text, dict):
        text = text["text/plain"]
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    print(re.sub(r"^File: .*ipykernel.*\n", "", plain, flags=re.MULTILINE))


def restore_environment() -> None:
    """Give the variables that a group is built from the values that they had at first.

    Runs on: a rank.
    """
    for name, value in _first_environment.items():
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value
