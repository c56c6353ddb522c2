"""The private parts of IPython and ipykernel that distlab uses, and whether anybody watches.

Tried with IPython 8 and 9, ipykernel 6.29 to 7. Runs on the notebook's kernel, and on ranks.
"""

import contextlib
import functools
import os
import re
import select
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio

# Modules and functions that a rank's stack is searched for: a cell runs in the first, the others
# show an error.
RUNS_CELL = ("IPython.core.interactiveshell", "run_code")
SHOW_ERROR = (
    ("IPython.core.interactiveshell", "showtraceback"),
    ("_pytest.reports", "from_item_and_call"),
)
# what a rank's event loop calls a coroutine or a callback in, and whose of those are not the
# learner's
LOOP_STEP = ("asyncio.events", "_run")
OF_THE_ENGINE = ("ipykernel", "ipyparallel", "tornado", "zmq")
READ_AT_ONCE = 1 << 16  # bytes of what a rank's children print
# what the library of torch's profiler says once on each rank, although nothing is wrong: the thread
# that has loaded it is not the one that uses it
NEEDLESS = re.compile(r"ERROR: External init callback must run in same thread as .*\n")
HISTORY = "IPython.core.history"  # its thread waits for work


def current_shell() -> Any:
    """The IPython shell of this process; None outside of IPython, which is not imported to ask."""
    get_ipython = getattr(sys.modules.get("IPython"), "get_ipython", None)
    return None if get_ipython is None else get_ipython()


def is_ipythons(name: str, value: Any) -> bool:
    """Whether IPython has put this value under this name for cells, and not a cell."""
    shell = current_shell()
    return shell is not None and shell.user_ns_hidden.get(name) is value


def start_folder() -> Path:
    """The folder in which this kernel was started, that of its notebook.

    Private: IPython's list of folders.
    """
    shell = current_shell()
    folders = None if shell is None else shell.user_ns.get("_dh")
    return Path(folders[0] if folders else ".").absolute()


def somebody_watches() -> bool:
    """Whether a person is watching: a front end that could ask its user for input, or a terminal.

    Programs that execute notebooks (nbclient, nbval) never allow input, and IPP_NONINTERACTIVE
    forbids it.
    """
    return os.environ.get("IPP_NONINTERACTIVE", "") in ("", "0") and _somebody_is_at(sys.stderr)


def can_type() -> bool:
    """Whether a person can answer input().

    Not where a program executes notebooks, or pytest keeps what is printed.
    """
    return _somebody_is_at(sys.stdin)


def _somebody_is_at(stream: Any) -> bool:
    """Whether a person has this stream in a terminal, or a front end.

    Private: an attribute of the kernel.
    """
    shell = notebook_shell()
    if shell is None:
        return stream.isatty()
    return bool(getattr(shell.kernel, "_allow_stdin", False))


def notebook_shell() -> Any:
    """The IPython shell of a notebook's kernel.

    None in a terminal or a plain script, where output is plain text.
    """
    shell = current_shell()
    return shell if hasattr(shell, "kernel") else None


def publish(bundle: dict[str, Any], handle: bool = False, update: Any = None) -> Any:
    """Show a MIME bundle in the notebook.

    Args:
        handle: whether it will be updated; a `DisplayHandle` is returned then.
        update: the handle of an output that it replaces.
    """
    from IPython.display import display as ipython_display

    if update is not None:
        update.update(bundle, raw=True)
        return update
    return ipython_display(bundle, raw=True, display_id=handle or None)


def show_errors_with(
    show: Callable[[BaseException, list[str]], list[str]], kinds: tuple[type, ...]
) -> None:
    """Let `show` see errors of some kinds that a person gets, and the lines of their tracebacks.

    IPython shows the lines that it returns. A second time, and outside of a notebook, nothing
    happens.

    Private: the method in which a kernel's shell sends them.
    """
    shell = notebook_shell()
    if shell is not None and not isinstance(shell._showtraceback, functools.partial):
        shell._showtraceback = functools.partial(_show_and_send, shell._showtraceback, show, kinds)


def _show_and_send(
    send: Callable[..., None],
    show: Callable[[BaseException, list[str]], list[str]],
    kinds: tuple[type, ...],
    kind: type,
    error: BaseException,
    lines: list[str],
) -> None:
    if isinstance(error, kinds) and somebody_watches():
        lines = show(error, lines)
    send(kind, error, lines)


class NeverBusy:
    """A mixin before a kernel's class: the kernel reports when it is idle, and not when busy."""

    def _publish_status(self, status: str, *args: Any, **kwargs: Any) -> None:
        if status != "busy":
            # the kernel's class, which comes after this one
            super()._publish_status(status, *args, **kwargs)  # type: ignore[misc]


class _NoSubshells:
    """In the place of the thread that serves a kernel's subshells, which has a main thread.

    There is none here, and so it has none.
    """

    parent_thread = None

    def __bool__(self) -> bool:
        return False


def let_cells_await(kernel: Any) -> None:
    """Make a cell with a top-level await reply in an engine of ipyparallel.

    Before such a cell, ipykernel 7 asks the thread of its subshells for the main thread; an engine
    has no subshells. Private: both names. Runs on: a rank, when the engine has started.
    """
    if getattr(kernel, "shell_channel_thread", kernel) is None:
        names = {"shell_channel_thread": _NoSubshells(), "_supports_kernel_subshells": False}
        kernel.__class__ = type(type(kernel).__name__, (type(kernel),), names)


def task_of_cell() -> "asyncio.Task[Any] | None":
    """The task of the cell that is running if it has a top-level await.

    Another one runs in a task of the engine. Private: the name of IPython's coroutine.

    Runs on: a rank, in a cell.
    """
    # half of the time that importing distlab takes, where it has not been imported yet
    import asyncio

    task = asyncio.current_task() if asyncio._get_running_loop() is not None else None
    coroutine = None if task is None else task.get_coro()
    return task if getattr(coroutine, "__name__", "") == "run_cell_async" else None


class ReadsToTheEnd:
    """A mixin before OutStream: one can wait for what other processes have written.

    A rank's stream also shows what its children write to the descriptor, which is a pipe that a
    thread reads. What the thread has not read when a cell ends would come after the cell.

    Private: the thread's method, and the attributes of an OutStream that it uses.
    """

    _fid: int | None = None  # the end of the pipe that is read
    _pause = 0.0  # seconds between the moment when something was written and its reading
    _should_watch = False
    _original_stdstream_copy: int

    def __init__(self, *args: Any, **kwargs: Any):
        self._reading = threading.Lock()  # from before something is read until it is in the stream
        super().__init__(*args, **kwargs)

    def _watch_pipe_fd(self) -> None:
        fid = self._fid
        if fid is None:  # the thread that runs this is not started then
            return
        written = select.poll()
        written.register(fid, select.POLLIN)
        while self._should_watch:
            written.poll()
            time.sleep(self._pause)  # called from here, it moves no frame
            with self._reading:
                read = self._read(fid)
                if not read:
                    return
                text = NEEDLESS.sub("", read.decode(errors="replace"))
                # OutStream's, which comes after this class
                self.write(text)  # type: ignore[attr-defined]

    def _read(self, fid: int) -> bytes:
        """What has arrived; it is written into the engine's log as well."""
        read = os.read(fid, READ_AT_ONCE)
        os.write(self._original_stdstream_copy, read)
        return read

    def read_to_the_end(self) -> None:
        """Return when the stream has what was written to its descriptor, or after a second."""
        if self._fid is None:
            return
        deadline = time.monotonic() + 1.0  # of a child that always writes there is no end
        written = select.poll()
        written.register(self._fid, select.POLLIN)
        while written.poll(0) and time.monotonic() < deadline:
            time.sleep(0.001)
        with self._reading:
            pass


class StderrKept(ReadsToTheEnd):
    """ReadsToTheEnd, whose stderr is kept if the process aborts.

    What the process writes just before that would be lost. The system moves it from the pipe into a
    file, before Python sees it; what is still in the pipe can be read by the process that made the
    pipe, when this one has ended.

    Private: the number of the descriptor in an OutStream.

    Attributes:
        kept: both ends of the pipe and the descriptor of the file; None where nothing is kept.
    """

    kept: tuple[int, int, int] | None = None
    # what aborts writes first why, and then faulthandler looks at the frames of all threads: this
    # one must not run then
    _pause = 0.02
    _file: int | None = None
    _position = 0
    _original_stdstream_fd: int

    def _watch_pipe_fd(self) -> None:
        # the name is OutStream's, which comes after this class
        if self.kept is not None and self.name == "stderr":  # type: ignore[attr-defined]
            self._fid, writer, self._file = self.kept
            os.dup2(writer, self._original_stdstream_fd)  # in the place of ipykernel's own pipe
            os.close(writer)
        super()._watch_pipe_fd()

    def _read(self, fid: int) -> bytes:
        if self._file is None:
            return super()._read(fid)
        try:
            count = os.splice(fid, self._file, READ_AT_ONCE)
        # the file system is full, or it or this system cannot do that
        except (OSError, AttributeError):
            self._file = None
            return super()._read(fid)
        read = os.pread(self._file, count, self._position)
        self._position += count
        return read


@contextlib.contextmanager
def modules_unread() -> Iterator[None]:
    """Make a kernel inside this, so that it does not list the file of each module.

    It does so for the debugger, and it costs a forked kernel 10 MB. Private: that it reads
    sys.modules for nothing else.
    """
    kernel_module = vars(sys.modules["ipykernel.ipkernel"])
    kernel_module["sys"] = SimpleNamespace(modules={})
    try:
        yield
    finally:
        kernel_module["sys"] = sys


@contextlib.contextmanager
def debugger_hidden() -> Iterator[None]:
    """Import ipykernel inside this without debugpy.

    Those are 25 MB that a kernel without a debugger channel cannot use. Not documented: ipykernel's
    debugger takes an ImportError as a sign that there is none.
    """
    # None makes an import raise an ImportError; typeshed knows modules only
    sys.modules["debugpy"] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules["debugpy"]
