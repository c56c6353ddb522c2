"""The parent of forked ranks: imports torch and ipyparallel's engine once, then forks a process for every engine.

Runs as a process of its own, on the notebook's machine or on another host. connection.py talks with it over stdin and
stdout, in lines of JSON (wire/orders.py): first the `ServerPlan`, then orders there and reports back. When stdin
closes, or a host receives nothing for long, the process that asked for the engines is gone, and they end with it.

The server stays single-threaded and computes nothing: no OpenMP, autograd, CUDA or ZeroMQ thread may exist when it
forks.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import os
import select
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from distlab.compat.ipython import debugger_hidden
from distlab.wire import orders
from distlab.wire.messages import from_json, to_json

PR_SET_PDEATHSIG = 1
BEAT_SECONDS = 0.5  # between two signs of life of a host
ALONE_SECONDS = 60.0  # without an answer to them, after which the notebook counts as gone
LOG_BYTES = 1 << 14  # of the end of an engine's log, reported with its end
# what every engine would import by itself, each anew
PRELOADED = (
    "torch",
    "ipykernel.debugger",
    "sqlite3",
    "tornado.platform.asyncio",
    "IPython.core.completerlib",
    "IPython.core.oinspect",
    "IPython.extensions.storemagic",
)
NO_PYTHON = 127  # exit status of a shell that does not find a program
RELAYED = (signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP, signal.SIGQUIT)


class Server:
    """The fork server's loop and its children.

    Args:
        source: descriptor from which to read orders.
        sink: descriptor to which to write reports.
        plan: the first line that was read.
        host: number of this host.

    Attributes:
        engines: number of each engine that runs, by its process.
    """

    def __init__(self, source: int, sink: int, plan: orders.ServerPlan, host: int):
        self._orders, self._reports, self._plan, self._host = source, os.fdopen(sink, "wb"), plan, host
        self.engines: dict[int, int] = {}
        self.libc = ctypes.CDLL(None)
        self._wakeup, self._woken = socket.socketpair()
        self._received, self._pending = time.monotonic(), b""

    def serve(self) -> None:
        """Fork, relay and report until the orders end, SIGTERM asks for the end, or the last engine has ended."""
        self._wakeup.setblocking(False)
        signal.set_wakeup_fd(self._wakeup.fileno(), warn_on_full_buffer=False)
        for number in (*RELAYED, signal.SIGTERM, signal.SIGCHLD):
            signal.signal(number, lambda *_: None)  # a handler in Python: the number reaches the wakeup descriptor
        beats = bool(self._plan.hosts)  # on the notebook's own machine the end of the orders is enough
        self._received = beat = time.monotonic()
        while not beats or time.monotonic() - self._received < ALONE_SECONDS:
            if beats and time.monotonic() >= beat:
                self.report(orders.Alive(self._host))
                beat = time.monotonic() + BEAT_SECONDS
            left = max(0.0, beat - time.monotonic()) if beats else None
            ready, _, _ = select.select([self._orders, self._woken], [], [], left)
            if self._woken in ready:
                numbers, before = self._woken.recv(256), len(self.engines)
                for number in set(numbers) & set(RELAYED):
                    self._signal(self.engines, number)
                self._reap()
                if signal.SIGTERM in numbers or (before and not self.engines and not self._plan.stay):
                    return
            if self._orders in ready:
                received = os.read(self._orders, 65536)
                *lines, self._pending = (self._pending + received).split(b"\n")
                self._received = time.monotonic()
                for order in map(from_json, lines):
                    if order.host == self._host:
                        self._obey(order)
                if not received:
                    return

    def _obey(self, order: orders.Order) -> None:
        if isinstance(order, orders.SignalOrder):
            self._signal([pid for pid, engine in self.engines.items() if engine in order.engines], order.number)
        elif isinstance(order, orders.ForkOrder):
            os.environ.update(order.environment)  # ipyparallel's connection information is in it
            for engine in order.engines:
                pid = self._fork(_run_engine, self._plan, engine)
                self.engines[pid] = engine
                self.report(orders.Forked(self._host, engine, pid))

    def _reap(self) -> None:
        """Report the engines that have ended."""
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                pid, status = ended
                if pid in self.engines:
                    engine = self.engines.pop(pid)
                    log = _end_of_log(engine) if self._plan.stay else ""
                    self.report(orders.Ended(self._host, engine, pid, os.waitstatus_to_exitcode(status), log))

    def _signal(self, pids: Iterable[int], number: int) -> None:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def serve_store(self, address: str) -> None:
        """Fork a process that serves a TCPStore at an address of this machine, and report its port."""
        from distlab.wire.rendezvous import listen

        with listen(address) as listener:
            self._fork(_run_store, listener)
            self.report(orders.StoreAddress(self._host, *listener.getsockname()))

    def report(self, message: orders.Report) -> None:
        """Report to connection.py; its process may have ended."""
        with contextlib.suppress(OSError):
            self._reports.write(to_json(message).encode() + b"\n")
            self._reports.flush()

    def _fork(self, child: Callable[..., None], *arguments: Any) -> int:
        """Fork; the child runs child(*arguments) and never returns from here. Returns its pid in the parent."""
        pid = os.fork()
        if pid:
            return pid
        status = 1
        try:
            self.libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            signal.set_wakeup_fd(-1)
            for number in (*RELAYED, signal.SIGTERM, signal.SIGCHLD):
                signal.signal(number, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            os.close(self._orders)
            for end in (self._reports, self._wakeup, self._woken):
                end.close()
            child(*arguments)
            status = 0
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else int(end.code is not None)
        except BaseException:
            traceback.print_exc()
        finally:
            with contextlib.suppress(OSError, ValueError):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(status)


def _run_engine(plan: orders.ServerPlan, number: int) -> None:
    """Be an ipyparallel engine, with `number` for its id where the server stays. Runs in a forked child."""
    from distlab.launch import engine

    arguments = plan.arguments
    if plan.stay:
        arguments = (*arguments, f"--IPEngine.id={number}")
        with open(_log_of(number), "ab") as log:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
    if "OMP_NUM_THREADS" in os.environ:  # OpenMP read the variable when torch was loaded in the parent
        import torch

        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    engine.run(arguments)


def _run_store(listener: socket.socket) -> None:
    """Serve a TCPStore until the parent ends. Runs in a forked child."""
    from distlab.wire.rendezvous import serve

    store = serve(listener)
    while store is not None:
        time.sleep(3600)


def _log_of(engine: int) -> str:
    """Path of the log of an engine, where each has its own."""
    return os.path.join(os.environ["IPP_PROFILE_DIR"], "log", f"fork-{engine}.log")


def _end_of_log(engine: int) -> str:
    with contextlib.suppress(OSError), open(_log_of(engine), "rb") as log:
        log.seek(max(0, log.seek(0, os.SEEK_END) - LOG_BYTES))
        return log.read().decode(errors="replace")
    return ""


def command(module: str = __name__, python: str = sys.executable) -> list[str]:
    """The command line that runs a module as `python -m` does, but without the working folder on the path.

    Python's own modules are imported by their names: a learner's random.py or queue.py is not one of them.
    """
    bare = "import sys; sys.path[:] = filter(None, sys.path); import runpy"
    return [python, "-c", f"{bare}; runpy.run_module({module!r}, run_name='__main__', alter_sys=True)"]


def remote_command(python: str) -> str:
    """The line for another host's shell that runs a server there; exit status NO_PYTHON where `python` is not there."""
    return f"exec sh -c {shlex.quote(f'exec {shlex.join(command(python=python))}')}"


def start(
    arguments: Sequence[str], plan: orders.ServerPlan, output_file: str
) -> tuple[subprocess.Popen, socket.socket]:
    """Start a server, or the program that leads to servers, as a process; it forks nothing before it is ordered to.

    Runs on: the notebook's kernel, or wherever ipyparallel's Cluster runs.

    Args:
        arguments: the command line.
        plan: its environment is also that of the process.
        output_file: gets what the process writes to stderr.

    Returns:
        the process, and the socket over which it takes orders and reports.
    """
    here, there = socket.socketpair()
    os.makedirs(os.path.dirname(output_file), exist_ok=True)
    with there, open(output_file, "ab") as output:
        ends = {"stdin": there, "stdout": there, "stderr": output}
        variables = {**os.environ, **plan.environment}
        process = subprocess.Popen(arguments, env=variables, start_new_session=True, **ends)
    with contextlib.suppress(OSError):  # srun, or ssh, may have refused already
        here.sendall(to_json(plan).encode() + b"\n")
    return process, here


def main(plan: orders.ServerPlan) -> None:
    """Import what every rank needs, and serve."""
    os.environ.update(plan.environment)
    source, sink = os.dup(0), os.dup(1)
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    if plan.hosts:
        serve_host(source, sink, plan)
        return
    server = Server(source, sink, plan, host=0)
    preload(plan.preload)
    if plan.stay:
        server.serve_store("127.0.0.1")
    server.serve()  # when it ends, the system kills the children


def serve_host(source: int, sink: int, plan: orders.ServerPlan) -> None:
    """The same on another host: it reports what it is first, and has a folder of its own."""
    from distlab.launch.local import report_of_host

    hello = report_of_host(plan.hosts)
    server = Server(source, sink, plan, hello.host)
    server.report(hello)
    server.libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # while it imports, it does not see the end of its orders
    preload(plan.preload)
    server.libc.prctl(PR_SET_PDEATHSIG, 0)
    with tempfile.TemporaryDirectory(prefix="distlab-host-", ignore_cleanup_errors=True) as folder:
        os.environ["IPP_PROFILE_DIR"] = folder
        os.makedirs(os.path.join(folder, "log"))
        if hello.host == 0:
            server.serve_store(hello.address)
        server.serve()


def preload(modules: Sequence[str]) -> None:
    """Import what the engines will share."""
    gc.disable()  # nothing of what is imported is garbage, and looking for it takes a tenth of the time
    with debugger_hidden():
        from distlab.launch import engine  # noqa: F401

        for module in (*PRELOADED, *modules):
            importlib.import_module(module)
    gc.freeze()  # the collector is not to touch, and so to copy, the shared pages
    gc.enable()


if __name__ == "__main__":
    with open(0, "rb", buffering=0, closefd=False) as stdin:  # the orders that come after the first line stay there
        main(from_json(stdin.readline()))
