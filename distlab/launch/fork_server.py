"""The parent of forked ranks.

It imports torch and ipyparallel's engine once, then forks a process for every engine. A fresh
engine's process executes a new interpreter (fresh.py), which imports them by itself.

Runs as a process of its own, on the notebook's machine or on another host. connection.py talks to
it over stdin and stdout, in lines of JSON (wire/orders.py): first the `ServerPlan`, then orders one
way and reports the other. When stdin closes, or a host receives nothing for long, the notebook's
process is gone; the system ends the engines with their parent. On the notebook's machine
ipyparallel's controller is forked first, which needs no torch; when the server has ended, it still
tells the notebook of the engines that are gone.

The server stays single-threaded and computes nothing: no OpenMP, autograd, CUDA or ZeroMQ thread
may exist when it forks.
"""

import contextlib
import gc
import os
import select
import shlex
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any

from distlab import programs
from distlab.compat.ipython import debugger_hidden
from distlab.launch.forked import run_controller, run_engine, run_store
from distlab.launch.fresh import become_engine
from distlab.launch.logs import LOG_BYTES, fault_of, log_of, stderr_of, tail_of
from distlab.launch.preloading import import_engine, import_ranks, import_ranks_of_launcher
from distlab.programs import end_with_parent, outlive_parent
from distlab.wire import orders
from distlab.wire.codec import from_json, to_json

BEAT_SECONDS = 0.5  # between two heartbeats of a host
ALONE_SECONDS = 60.0  # without an answer to them, after which the notebook counts as gone


class Server:
    """The fork server's loop and its children.

    Args:
        source: descriptor from which to read orders.
        sink: descriptor to which to write reports.
        preload: what a person wants every engine to have imported.

    Attributes:
        host: number of this host.
        engines: number of each engine that runs, by its process; CONTROLLER for the controller.
    """

    def __init__(self, source: int, sink: int, preload: Sequence[str] = ()):
        self.host = 0
        self._preload = preload
        self.engines: dict[int, int] = {}
        self._orders = os.fdopen(source, "rb", buffering=0)
        self._reports = os.fdopen(sink, "wb")
        self._received = 0.0  # when the newest orders came
        self._pending = b""  # the beginning of an order whose end has not come
        self._next_beat: float | None = None  # when to send a heartbeat; None for never
        self._wanted_store: str | None = None  # the address of a store that is to be served
        # by process: the end of the pipe with what the engine writes past Python
        self._errors: dict[int, int] = {}
        self._wakeup, self._woken = socket.socketpair()

    def serve(self, store: str | None, beats: bool) -> None:
        """Fork and report until the orders end.

        Args:
            store: address of this machine at which to serve a TCPStore, once the orders that are
                there are carried out; the first engines take longer to come; None for no store.
            beats: whether to send heartbeats, and to end if nobody answers them; on the notebook's
                own machine the end of the orders is enough.
        """
        self._wanted_store = store
        self._see_ends_of_children()
        self._received = time.monotonic()
        if beats:
            self._next_beat = self._received
        arrivals = select.poll()
        arrivals.register(self._orders, select.POLLIN)
        arrivals.register(self._woken, select.POLLIN)
        while not self._is_alone():
            self._beat()
            ready = {descriptor for descriptor, _ in arrivals.poll(self._patience())}
            if self._wanted_store is not None and not ready:
                self._serve_store(self._wanted_store)
                self._wanted_store = None
            if self._woken.fileno() in ready:
                self._woken.recv(256)
                self._reap()
            if self._orders.fileno() in ready:
                arrived = self._orders.read(65536)
                if not arrived:
                    return
                self._receive(arrived)

    def _see_ends_of_children(self) -> None:
        """Have the system wake the loop when a child ends."""
        self._wakeup.setblocking(False)
        signal.set_wakeup_fd(self._wakeup.fileno(), warn_on_full_buffer=False)
        # a Python handler, or nothing is written to the descriptor
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._reap()  # the controller may have ended before

    def _is_alone(self) -> bool:
        """Whether the notebook has not answered heartbeats for so long that it counts as gone."""
        if self._next_beat is None:
            return False
        return time.monotonic() - self._received >= ALONE_SECONDS

    def _beat(self) -> None:
        """Send a heartbeat if it is time for one."""
        if self._next_beat is not None and time.monotonic() >= self._next_beat:
            self.report(orders.Alive(self.host))
            self._next_beat = time.monotonic() + BEAT_SECONDS

    def _patience(self) -> float | None:
        """Milliseconds to wait until something happens; None for as long as nothing does."""
        if self._wanted_store is not None:
            return 0.0
        if self._next_beat is not None:
            return 1000 * max(0.0, self._next_beat - time.monotonic())
        return None

    def _receive(self, arrived: bytes) -> None:
        """Carry out the orders for this host; srun sends each host those of all."""
        self._received = time.monotonic()
        *lines, self._pending = (self._pending + arrived).split(b"\n")
        orders_of_all = map(from_json, lines)
        self._obey([order for order in orders_of_all if order.host == self.host])

    def _obey(self, batch: Sequence[orders.AnyOrder]) -> None:
        forked: dict[int, int] = {}  # the engine of each new process
        for order in batch:
            if isinstance(order, orders.KillOrder):
                self._kill(order.engine)
            elif isinstance(order, orders.ForkOrder):
                pid = self._fork_engine(order)
                if pid is not None:
                    forked[pid] = order.engine
        self.engines |= forked
        # after the last fork: what is touched between two forks is copied
        for pid, engine in forked.items():
            self.report(orders.EngineProcess(engine, pid))

    def _kill(self, engine: int) -> None:
        """End an engine's process."""
        for pid, its_engine in self.engines.items():
            if its_engine == engine:
                os.kill(pid, signal.SIGKILL)  # it is there until it is reaped

    def _fork_engine(self, order: orders.ForkOrder) -> int | None:
        """Fork an engine, and return its process; None if the system refuses it."""
        # it has ipyparallel's connection information
        os.environ.update(order.environment)
        reader, writer = os.pipe()
        if order.fresh:
            pid = self._fork_if_allowed(
                become_engine, os.getpid(), order.engine, reader, writer, self._preload
            )
        else:
            pid = self._fork_if_allowed(run_engine, order.engine, reader, writer)
        os.close(writer)
        if pid is None:
            os.close(reader)
            return None
        self._errors[pid] = reader
        return pid

    def fork_controller(self, arguments: Sequence[str]) -> None:
        """Fork ipyparallel's controller, which has these arguments."""
        # before the fork: torch, which is imported next, needs most of its modules as well
        from distlab.launch import controller  # noqa: F401

        pid = self._fork(run_controller, arguments)
        self.engines[pid] = orders.CONTROLLER

    def _reap(self) -> None:
        """Report the engines that have ended."""
        with contextlib.suppress(ChildProcessError):  # there are no children
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    return
                engine = self.engines.pop(pid, None)
                if engine is not None:
                    self._report_end(engine, pid, status)

    def _report_end(self, engine: int, pid: int, status: int) -> None:
        """Report that an engine's process has ended, and what is known of why.

        Args:
            status: as the system writes it.
        """
        code = os.waitstatus_to_exitcode(status)
        log = self._last_words(engine, pid)
        self.report(orders.EngineProcess(engine, pid, code, log, fault_of(engine)))

    def _last_words(self, engine: int, pid: int) -> str:
        """The end of what an engine's process has written.

        Of what was written past Python, the process may have had no time to read all before it
        ended.
        """
        written = tail_of(log_of(engine)) + tail_of(stderr_of(engine))
        reader = self._errors.pop(pid, None)
        if reader is not None:
            # a process that it has started may still have the other end
            os.set_blocking(reader, False)
            with open(reader, "rb", buffering=0) as pipe:
                while unread := pipe.read(1 << 16):
                    written += unread
        return written[-LOG_BYTES:].decode(errors="replace")

    def _serve_store(self, address: str) -> None:
        """Fork a process that serves a TCPStore at an address of this machine; report its port."""
        # imported here, because only the first host serves a store
        from distlab.wire.rendezvous import listen

        with listen(address) as listener:
            if self._fork_if_allowed(run_store, listener) is not None:
                host, port = listener.getsockname()
                self.report(orders.StoreAddress(host, port))

    def report(self, message: orders.AnyReport) -> None:
        """Report to connection.py; its process may have ended."""
        line = to_json(message).encode() + b"\n"
        with contextlib.suppress(OSError):
            self._reports.write(line)
            self._reports.flush()

    def _fork_if_allowed(self, child: Callable[..., None], *arguments: Any) -> int | None:
        """Fork; where the system refuses it, report why and return None.

        Ranks that are there must not end because there is no room for one more.
        """
        try:
            return self._fork(child, *arguments)
        except OSError as error:
            self.report(orders.NotForked(str(error)))
            return None

    def _fork(self, child: Callable[..., None], *arguments: Any) -> int:
        """Fork, and return the child's process number.

        The child runs child(*arguments), and never returns from here.
        """
        server = os.getpid()
        pid = os.fork()
        if pid:
            return pid
        status = 1
        try:
            # the controller tells the notebook of the engines that are gone with this server
            if child is not run_controller:
                end_with_parent(server)
            self._leave_to_parent()
            child(*arguments)
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)

    def _leave_to_parent(self) -> None:
        """Give up what the server has: its signals, its orders, and the pipes of other engines.

        Runs in a forked child.
        """
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)  # the server may ignore it
        for end in (self._orders, self._reports, self._wakeup, self._woken):
            end.close()
        for of_another in self._errors.values():
            os.close(of_another)


def server_command(python: str = sys.executable) -> list[str]:
    """The command line that runs a server."""
    return programs.command(__name__, python)


def remote_command(python: str) -> str:
    """The line for another host's shell that runs a server there."""
    server = shlex.join(server_command(python))
    return f"exec sh -c {shlex.quote(f'exec {server}')}"


def main() -> None:
    """Serve by the plan that comes first."""
    parent = os.getppid()
    # the orders that come after the first line stay there
    with open(0, "rb", buffering=0, closefd=False) as stdin:
        plan = from_json(stdin.readline())
    _serve(plan, parent)
    os._exit(0)  # taking torch apart takes half a second of computation


def _serve(plan: orders.ServerPlan, parent: int) -> None:
    """Import what every rank needs, and serve.

    A server on another host first reports what the host is, and has a folder of its own.

    Args:
        parent: number of the process that started this one.
    """
    os.environ.update(plan.environment)
    source, sink = _take_stdin_and_stdout()
    server = Server(source, sink, plan.preload)
    address = "127.0.0.1"
    if plan.hosts:
        from distlab.launch.this_host import report_of_host

        hello = report_of_host(plan.hosts, plan.fresh)
        address = hello.address
        server.host = hello.host
        server.report(hello)
    # while it imports, it does not see the end of its orders
    end_with_parent(parent, signal.SIGTERM)
    with contextlib.ExitStack() as ends:
        if plan.hosts:
            signal.signal(signal.SIGTERM, lambda *_: sys.exit())  # so that the folder is removed
            folder = ends.enter_context(
                tempfile.TemporaryDirectory(prefix="distlab-host-", ignore_cleanup_errors=True)
            )
            os.environ["IPP_PROFILE_DIR"] = folder
            os.mkdir(os.path.join(folder, "log"))
        _preload(server, plan)
        outlive_parent()
        gc.freeze()  # so that the collector does not touch, and thereby copy, the shared pages
        gc.enable()
        serves_store = server.host == 0
        server.serve(address if serves_store else None, beats=bool(plan.hosts))


def _take_stdin_and_stdout() -> tuple[int, int]:
    """Descriptors for orders and reports, which nobody else reads or writes from now on.

    What this process or a library prints goes to stderr, and with it into the server's log.
    """
    source = os.dup(0)
    sink = os.dup(1)
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    return source, sink


def _preload(server: Server, plan: orders.ServerPlan) -> None:
    """Import what the engines will share, and fork the controller on the way.

    The controller then starts while torch is imported. Fresh engines share nothing, and import all
    of it by themselves.
    """
    # nothing that is imported is garbage, and looking for it takes a tenth of the time
    gc.disable()
    with debugger_hidden():
        if not plan.fresh and not plan.direct:
            import_engine()
        if plan.controller:
            server.fork_controller(plan.controller)
        if plan.fresh:
            return
        if plan.direct:
            import_ranks_of_launcher(plan.preload)
        else:
            import_ranks(plan.preload)
