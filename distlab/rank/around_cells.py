"""What runs around each cell and each call on a rank: restores what an engine needs and a cell may
have replaced.

Runs on every rank, on its main thread; watchdog.watch puts it in place. It restores handlers of
signals, stdout and stderr, the environment variables that say which rank this is, and Python's
builtins. A process that a cell has forked prints what it prints under its rank, and ends where the
cell does.
"""

import asyncio
import builtins
import faulthandler
import functools
import gc
import multiprocessing
import os
import pdb
import re
import runpy
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable
from typing import Any

from distlab.compat.ipython import ReadsToTheEnd, current_shell, let_cells_await, task_of_cell
from distlab.debugger import console
from distlab.debugger.console import CONSOLE
from distlab.wire.rendezvous import INTERFACES
from distlab.wire.source import line_of

VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", *INTERFACES)
# variables of sys that IPython defines, and code.interact. Libraries take a process that has them
# for a person's, where one process is all there is: Lightning's Trainer refuses to train on several
# ranks.
PROMPTS = ("ps1", "ps2", "ps3")
_first_environment: dict[str, str | None] = {}
# the task of the cell that runs if it has a top-level await
_awaiting: list[asyncio.Task[Any]] = []
# the number of the rank's process, which one that a cell has forked knows, too
_rank: set[int] = set()
_BUILTINS, _GENUINE = vars(builtins), dict(vars(builtins))


def restore_builtins() -> None:
    """Put Python's own builtins back if a cell has replaced any. It may have replaced all, so this
    calls none.

    Runs on: any thread. The watchdog does it while a cell runs: it could not answer without them.
    """
    _BUILTINS.update(_GENUINE)


def awaiting() -> asyncio.Task[Any] | None:
    """The task of the cell that is running if it has a top-level await: between two of its steps,
    no frame shows it.

    Runs on: any thread.
    """
    return _awaiting[-1] if _awaiting else None


def keep(handlers: dict[int, Callable[..., Any]], at_end: Callable[[], None]) -> None:
    """From now on, restore these signal handlers, and the rest as it is now, around every cell.

    ipykernel would install a handler of SIGINT for every message; this replaces it.

    Args:
        at_end: called when a cell or a call has ended, before the notebook knows of it.
    """
    _rank.add(os.getpid())
    _first_environment.update({name: os.environ.get(name) for name in VARIABLES})
    streams = {name: getattr(sys, name) for name in ("stdout", "stderr")}
    sender = sys.stdout.pub_thread  # the thread that sends what is written; close() takes it away

    def restore() -> None:
        restore_builtins()
        if CONSOLE.was_used:
            CONSOLE.reset()
        sys.breakpointhook = pdb.set_trace = console.pause
        for prompt in PROMPTS:
            vars(sys).pop(prompt, None)
        for name, stream in streams.items():
            stream.pub_thread = sender
            setattr(sys, name, stream)
        for name, value in _first_environment.items():
            if value is not None:
                os.environ.setdefault(name, value)
        for number, handler in handlers.items():
            signal.signal(number, handler)

    restore()
    _make_children_plain([*handlers, signal.SIGTERM], streams)

    def end() -> None:
        for stream in streams.values():
            if isinstance(stream, ReadsToTheEnd):
                stream.read_to_the_end()
        at_end()

    _around_cells(current_shell().kernel, restore, end)


def _around_cells(kernel: Any, restore: Callable[[], None], at_end: Callable[[], None]) -> None:
    """Call `restore` around every message, and both before an engine reports how a cell or a call
    has ended.

    IPython shows some exceptions, such as those of a script of %run, and goes on as if the cell had
    succeeded; here the cell fails.
    """
    rank = os.getpid()
    shown: list[BaseException] = []  # what IPython has shown since the cell began

    def end() -> None:
        restore()
        if os.getpid() != rank:
            _end(failed=False)
        at_end()

    async def run_statements(*args: Any, result: Any, **kwargs: Any) -> Any:
        shown.clear()
        task = task_of_cell()
        if task is not None:
            _awaiting.append(task)
        try:
            return await run(*args, result=result, **kwargs)
        finally:
            if task is not None:
                _awaiting.remove(task)
            if shown and result.error_in_exec is None:  # as where the repr of a cell's value raises
                result.error_in_exec = shown[0]
            shown.clear()
            if result.error_in_exec is not None:
                end_abandoned_children(result.error_in_exec)
            end()

    def run_call(*args: Any, **kwargs: Any) -> Any:
        try:
            return apply(*args, **kwargs)
        finally:
            end()

    def run_file(*args: Any, exit_ignore: bool = False, **options: Any) -> None:
        try:
            execute_file(*args, **{"raise_exceptions": True, **options})
        except SystemExit:
            if not exit_ignore:
                raise

    def show_error(*args: Any, **kwargs: Any) -> None:
        restore()
        if (error := sys.exc_info()[1]) is not None:  # %tb shows an old one
            shown.append(error)
        show(*args, **kwargs)
        if os.getpid() != rank:
            _end(failed=True)
        if CONSOLE.after_failure:
            console.post_mortem(sys.last_value)

    let_cells_await(kernel)
    shell = kernel.shell
    run, apply, show = shell.run_ast_nodes, kernel.do_apply, shell.showtraceback
    shell.run_ast_nodes, kernel.do_apply, shell.showtraceback = run_statements, run_call, show_error
    execute_file, shell.safe_execfile, shell.safe_run_module = (
        shell.safe_execfile,
        run_file,
        _run_module,
    )
    shell.set_hook("show_in_pager", _print_page, 0)
    # IPython's, for a person at a terminal
    warnings.filterwarnings("ignore", message="To exit: use 'exit'")
    # tqdm.auto's: a rank has no widgets
    warnings.filterwarnings("ignore", message="IProgress not found")
    warnings.formatwarning = functools.partial(_warning_words, warnings.formatwarning)
    # IPython's own form parses torch's files: half a second on each rank
    shell.InteractiveTB.set_mode("Plain")
    kernel.pre_handler_hook = kernel.post_handler_hook = restore


def end_abandoned_children(error: BaseException | None = None) -> None:
    """After a failure, end the children that only its traceback keeps, such as the workers of a
    DataLoader's iterator.

    A process that is forked later would have the iterator, too, and complain of it. A rank without
    children collects nothing.

    Runs on: a rank, on its main thread; nothing happens in a process that a cell has forked.

    Args:
        error: one that IPython keeps. The variables of its frames go: the debugger was there
            before, if at all, and %debug finds nobody who types on a rank.
    """
    if os.getpid() not in _rank or not multiprocessing.active_children():
        return
    if error is not None:
        traceback.clear_frames(error.__traceback__)
    gc.collect()


def _run_module(name: str, names: dict[str, Any]) -> None:
    """What `%run -m name` does: like IPython's own, but an exception goes on, and ends the cell.

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
    """A warning as Python writes it, but "line 3" for a line of a cell, whose file nobody knows and
    each rank has anew.

    Args:
        own: Python's function, which takes what follows.
    """
    words = own(message, category, filename, number, line)
    where = line_of(filename, number, "")
    return words.replace(f"{filename}:{number}", where.position, 1) if where.is_in_cell else words


def _print_page(shell: Any, text: Any, *_: Any, **__: Any) -> None:
    """What `name?` shows, as output: a rank has no pager. The file of a cell's function differs on
    each rank.
    """
    text = re.sub(r"\x1b\[[0-9;]*m", "", text["text/plain"] if isinstance(text, dict) else text)
    print(re.sub(r"^File: .*ipykernel.*\n", "", text, flags=re.MULTILINE))


def restore_environment() -> None:
    """Give the variables that a group is built from their first values. Runs on: a rank."""
    for name, value in _first_environment.items():
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value


def _make_children_plain(numbers: list[int], streams: dict[str, Any]) -> None:
    """In a process that a cell forks, make signals, those of faults too, and streams do what they
    do elsewhere.

    Signals are blocked during the fork: one that the parent sends before the child has its own
    handlers, as a short-lived Pool does, would be lost. What the child prints goes to its
    descriptors, as what any program prints that a cell starts, and the rank, which reads them,
    shows it as its own: a thread that sent it is not in the child.

    Args:
        streams: the rank's, by name; whoever has kept one, as a handler of logging does, writes to
            the same place.
    """
    masks = threading.local()

    def before() -> None:
        masks.old = signal.pthread_sigmask(signal.SIG_BLOCK, [*numbers, signal.SIGINT])

    def in_parent() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, masks.old)

    def in_child() -> None:
        faulthandler.disable()  # it would write into the rank's file
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, masks.old)
        for name, descriptor in (("stdout", 1), ("stderr", 2)):
            of_rank = streams.pop(name, None)  # nothing puts it back
            if of_rank is None:  # a child of a child
                continue
            plain = os.fdopen(
                descriptor, "w", buffering=1, encoding="utf-8", errors="replace", closefd=False
            )
            of_rank.write = plain.write
            of_rank.flush = plain.flush
            if getattr(sys, name) is of_rank:
                setattr(sys, name, plain)

    os.register_at_fork(before=before, after_in_parent=in_parent, after_in_child=in_child)


def _end(failed: bool) -> None:
    """End this process, which is not the rank: the cell that ends here has forked it."""
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(failed)
