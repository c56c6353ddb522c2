"""What a forked process becomes: ipyparallel's engine, without a nanny process.

Runs in a child of fork_server.py, called by forked.py. ipyparallel gives each engine a nanny, whose
two duties are taken over: the notebook reports to the hub when a rank of distlab's has ended, and
the kernel's own control thread answers ipyparallel's Client.send_signal. With many engines on few
cores a cell takes as long as all their messages and wake-ups take together, so two unnecessary ones
are left out.
"""

import inspect
import os
import signal
import sys
import traceback
from typing import Any

from ipykernel.compiler import XCachingCompiler
from ipykernel.iostream import OutStream
from ipykernel.zmqshell import ZMQInteractiveShell
from ipyparallel.engine.app import IPEngine
from ipyparallel.engine.kernel import IPythonParallelKernel

from distlab.compat.ipyparallel import use_kernel
from distlab.compat.ipython import NeverBusy, StderrKept, modules_unread
from distlab.wire.source import is_learners


class ForkedKernel(NeverBusy, IPythonParallelKernel):
    """ipyparallel's kernel, which also relays signals, and does not report that it becomes busy.

    ipyparallel's client waits for "idle", which ends the output of a request, and never for "busy".
    After an error the kernel continues with the cells that wait: a notebook's own kernel skips
    them, and here that would happen on some ranks only.
    """

    control_msg_types = (*IPythonParallelKernel.control_msg_types, "signal_request")

    def __init__(self, **options: Any):
        with modules_unread():
            super().__init__(**options)
        self.shell.parent = self
        self.shell.kernel = self

    def signal_request(self, stream: Any, ident: Any, parent: dict[str, Any]) -> None:
        """Answer Client.send_signal, as a nanny would."""
        number = parent["content"]["sig"]
        if isinstance(number, str):
            number = getattr(signal, number)
        os.kill(os.getpid(), number)
        done = {"status": "ok"}
        self.session.send(stream, "signal_reply", content=done, parent=parent, ident=ident)

    async def execute_request(self, stream: Any, ident: Any, parent: dict[str, Any]) -> None:
        """Run a cell, and do not skip those that wait behind it if it fails."""
        parent["content"]["stop_on_error"] = False
        await super().execute_request(stream, ident, parent)


class QuietStream(StderrKept, OutStream):
    """stdout or stderr of an engine; a flush with nothing to flush does not wake the output thread.

    An engine flushes both after every request, and each flush waits for a round trip through that
    thread.
    """

    _written = False

    # ipykernel gives it this type, and Python's own streams another one
    def write(self, string: str) -> int | None:  # type: ignore[override]
        self._written = True
        return super().write(string)

    def flush(self) -> None:
        if self._written:
            self._written = False
            super().flush()


class ForkedEngine(IPEngine):
    """The engine's application. SIGTERM ends it at once, as it ends a script.

    ipyparallel's handler would let the cell go on, and end the rank after it.
    """

    def init_signal(self) -> None:
        super().init_signal()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def prepare() -> None:
    """Make what all engines have in common: configuration, folders, IPython's shell.

    Runs in the fork server, before it forks.
    """
    use_kernel(ForkedKernel)
    # the engine sets it as well, but later: debugpy reads it
    os.environ.setdefault("PYDEVD_DISABLE_FILE_VALIDATION", "1")
    sys.argv = ["ipengine"]
    # No nanny, whose duties are taken over; and no look for the controller's heartbeats, because an
    # engine ends with its fork server, and that with the notebook.
    app = ForkedEngine.instance(
        enable_nanny=False, max_heartbeat_misses=0, out_stream_factory=QuietStream
    )
    # a database in SQLite is not needed; %history works without it
    super(IPEngine, app).initialize(["--log-level=WARN", "--HistoryManager.enabled=False"])
    # the working folder, where a learner's files may be named as torch's; init_engine adds it
    sys.path.remove("")
    # a kernel takes the shell that is there, and gives it what it has itself
    ZMQInteractiveShell.instance(parent=app, user_ns=app.user_ns, compiler_class=XCachingCompiler)


def serve_as_engine(number: int, stderr: tuple[int, int, int]) -> None:
    """Be engine `number` until it is asked to end. Runs in a forked child.

    Args:
        number: the engine's.
        stderr: three descriptors: both ends of a pipe for what is written past Python, and the file
            that keeps it.
    """
    QuietStream.kept = stderr
    app = ForkedEngine.instance()
    app.id = number
    app.init_engine()
    _run_event_loop(app)


def _run_event_loop(app: IPEngine) -> None:
    """Run the engine's event loop until it is asked to end.

    asyncio lets sys.exit() in a task end the loop, and has noted it in the task before: whatever
    awaits the task raises it when the loop goes on. In the cell itself, IPython catches it.
    """
    start = app.start
    while True:
        try:
            return start()
        except SystemExit as end:
            if not _is_of_a_coroutine(end):
                raise
        start = app.loop.start


def _is_of_a_coroutine(error: BaseException) -> bool:
    """Whether a coroutine of the learner's has raised an error.

    Else a handler of signals has, or a callback.
    """
    for frame, _ in traceback.walk_tb(error.__traceback__):
        code = frame.f_code
        if code.co_flags & inspect.CO_COROUTINE and is_learners(code.co_filename):
            return True
    return False
