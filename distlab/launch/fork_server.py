"""The parent of forked ranks: imports torch and ipyparallel's engine once, then forks a process for every engine.

Runs as a process of its own, on the notebook's machine or on another host; fork_launcher.py talks with it by JSON lines
over stdin and stdout. The first line is its plan, see `main`. Orders: {"fork": [ids], "environment": {...}} and
{"signal": number, "ids": ...}. Reports: {"hello": {...}} of a host, {"store": [address, port]},
{"forked": id, "pid": pid} and {"ended": id, "pid": pid, "status": status, "said": the end of its log}. Where one
connection leads to several hosts, orders and reports have a "host": its number. When stdin closes, or a host hears
nothing for long, the process that asked for the engines is gone, and they end with it.

It stays single-threaded and computes nothing: no OpenMP, autograd, CUDA or ZeroMQ thread may exist when it forks.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import select
import shlex
import shutil
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

PR_SET_PDEATHSIG = 1
BEAT_SECONDS = 0.5  # between two signs of life of a host
ALONE_SECONDS = 60.0  # without an answer to them, after which nobody is believed to be there any more
SAID_BYTES = 1 << 14  # of the end of an engine's log, that is reported with its end
PRELOADED = (
    "distlab.launch.forked_engine",
    "distlab.rank.entry",
    "distlab.rank.group",  # with torch
    # what an engine would import by itself, each anew
    "ipykernel.debugger",
    "sqlite3",
    "tornado.platform.asyncio",
    "IPython.core.completerlib",
    "IPython.core.oinspect",
    "IPython.extensions.storemagic",
)
NO_PYTHON = 41  # exit status of a host's shell
RELAYED = (signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP, signal.SIGQUIT)


class Server:
    """What the parent knows of its children.

    Args:
        orders, reports: descriptors to read from and to write to. arguments: ipyparallel engine arguments.
        stay: whether to stay when the last engine has ended, and fork more when asked; each has a log of its own then.
        host: number of this host; None on the notebook's own machine, where no signs of life are exchanged.
    """

    def __init__(self, orders: int, reports: int, arguments: list[str], stay: bool, host: int | None):
        self.orders, self.reports, self.arguments, self.stay, self.host = orders, reports, arguments, stay, host
        self.engines: dict[int, int] = {}  # pid -> the number it was forked under
        self.libc = ctypes.CDLL(None)
        self.wakeup, self.woken = socket.socketpair()
        self._heard, self._pending = time.monotonic(), b""

    def serve(self) -> None:
        """Fork, relay and report until the orders end, SIGTERM asks for the end, or the last engine has ended."""
        self.wakeup.setblocking(False)
        signal.set_wakeup_fd(self.wakeup.fileno(), warn_on_full_buffer=False)
        for number in (*RELAYED, signal.SIGTERM, signal.SIGCHLD):
            signal.signal(number, lambda *_: None)  # a handler in Python: the number reaches the wakeup descriptor
        self._heard = beat = time.monotonic()
        while time.monotonic() - self._heard < ALONE_SECONDS or self.host is None:
            if self.host is not None and time.monotonic() >= beat:
                self.tell(beat=1)
                beat = time.monotonic() + BEAT_SECONDS
            left = None if self.host is None else max(0.0, beat - time.monotonic())
            ready, _, _ = select.select([self.orders, self.woken], [], [], left)
            if self.woken in ready:
                numbers, before = self.woken.recv(256), len(self.engines)
                for number in set(numbers) & set(RELAYED):
                    self._signal(self.engines, number)
                self._reap()
                if signal.SIGTERM in numbers or (before and not self.engines and not self.stay):
                    return
            if self.orders in ready and not all(map(self._obey, self.heard())):
                return

    def heard(self) -> list[dict[str, Any]]:
        """The orders that have come, after a wait for the first; an empty one when there will be no more."""
        received = os.read(self.orders, 65536)
        *lines, self._pending = (self._pending + received).split(b"\n")
        self._heard = time.monotonic()
        return [*map(json.loads, lines), *([] if received else [{}])]

    def _obey(self, order: dict[str, Any]) -> bool:
        """Do what is asked of this host; whether the server goes on."""
        if self.host is not None and order.get("host", self.host) != self.host:
            return True
        os.environ.update(order.get("environment", {}))  # ipyparallel's connection information is in it
        for number in order.get("fork", ()):
            pid = self._fork(_run_engine, self, number)
            self.engines[pid] = number
            self.tell(forked=number, pid=pid)
        if "signal" in order:
            self._signal([pid for pid, number in self.engines.items() if number in order["ids"]], order["signal"])
        return bool(order)

    def _reap(self) -> None:
        """Take note of the children that have ended."""
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                pid, status = ended
                if pid in self.engines:
                    number = self.engines.pop(pid)
                    said = _end_of_log(number) if self.stay else ""
                    self.tell(ended=number, pid=pid, status=os.waitstatus_to_exitcode(status), said=said)

    def _signal(self, pids: Iterable[int], number: int) -> None:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def serve_store(self, address: str) -> None:
        """Fork a process that serves a TCPStore at an address of this machine, and tell its port."""
        from distlab.wire.rendezvous import listen

        with listen(address) as listener:
            self._fork(_run_store, listener)
            self.tell(store=listener.getsockname())

    def tell(self, **event: Any) -> None:
        """Report to fork_launcher.py; nobody may be there to hear it."""
        report = json.dumps(event if self.host is None else {"host": self.host, **event}).encode() + b"\n"
        with contextlib.suppress(OSError):
            while report:
                report = report[os.write(self.reports, report) :]

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
            for end in (self.orders, self.reports):
                os.close(end)
            for end in (self.wakeup, self.woken):
                end.close()
            child(*arguments)
            status = 0
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else int(end.code is not None)
        except BaseException:
            traceback.print_exc()
        finally:
            with contextlib.suppress(Exception):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(status)


def _run_engine(server: Server, number: int) -> None:
    """Be an ipyparallel engine, with `number` for its id where the server stays. Runs in a forked child."""
    from distlab.launch import forked_engine

    arguments = server.arguments
    if server.stay:
        arguments = [*arguments, f"--IPEngine.id={number}"]
        with open(_log_of(number), "ab") as log:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
    if "OMP_NUM_THREADS" in os.environ:  # OpenMP read the variable when torch was loaded in the parent
        import torch

        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    forked_engine.run(arguments)


def _run_store(listener: socket.socket) -> None:
    """Serve a TCPStore until the parent ends. Runs in a forked child."""
    from distlab.wire.rendezvous import serve

    store = serve(listener)
    while store is not None:
        time.sleep(3600)


def _log_of(number: int) -> str:
    """Path of the log of the engine that is forked under this number, where each has its own."""
    return os.path.join(os.environ["IPP_PROFILE_DIR"], "log", f"fork-{number}.log")


def _end_of_log(number: int) -> str:
    with contextlib.suppress(OSError), open(_log_of(number), "rb") as log:
        log.seek(max(0, log.seek(0, os.SEEK_END) - SAID_BYTES))
        return log.read().decode(errors="replace")
    return ""


def command(module: str, python: str = sys.executable) -> list[str]:
    """The command line that runs a module as `python -m` does, but without the working folder on the path.

    Python's own modules are imported by their names: a learner's random.py or queue.py is not one of them.
    """
    bare = "import sys; sys.path[:] = filter(None, sys.path); import runpy"
    return [python, "-c", f"{bare}; runpy.run_module({module!r}, run_name='__main__', alter_sys=True)"]


def remote_command(python: str) -> str:
    """The line for another host's shell that runs a server there; exit status NO_PYTHON where `python` is not there."""
    there = f"command -v {shlex.quote(python)} >/dev/null 2>&1 || exit {NO_PYTHON}"
    return f"exec sh -c {shlex.quote(f'{there}; exec {shlex.join(command(__name__, python))}')}"


def start(arguments: Sequence[str], plan: dict[str, Any], output_file: str) -> tuple[subprocess.Popen, socket.socket]:
    """Start a server, or what leads to servers, as a process of its own; it forks nothing before it is told to.

    Runs on: the notebook's kernel, or wherever ipyparallel's Cluster runs.

    Args:
        arguments: the command line. plan: as `main` takes it; its environment is also that of the process.
        output_file: gets what the process writes to stderr.

    Returns:
        the process, and the socket over which it takes orders and reports.
    """
    here, there = socket.socketpair()
    os.makedirs(os.path.dirname(output_file), exist_ok=True)
    with there, open(output_file, "ab") as output:
        process = subprocess.Popen(
            arguments,
            stdin=there,
            stdout=there,
            stderr=output,
            env={**os.environ, **plan["environment"]},
            start_new_session=True,
        )
    with contextlib.suppress(OSError):  # srun, or ssh, may have refused already
        here.sendall(json.dumps(plan).encode() + b"\n")
    return process, here


def main(
    arguments: list[str], stay: bool, environment: dict[str, str], hosts: list[dict[str, Any]] | None = None
) -> None:
    """Import what every rank needs, and serve.

    Args:
        arguments: ipyparallel engine arguments.
        stay: whether to serve a TCPStore, and to stay when the last engine has ended.
        environment: additions to the environment, ipyparallel's IPP_CLUSTER_ID and IPP_PROFILE_DIR among them.
        hosts: of a server on another host: what host_report.py needs, of each host that gets this plan.
    """
    os.environ.update(environment)
    orders, reports = os.dup(0), os.dup(1)
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    host, address, serves, folder = None, "127.0.0.1", stay, None
    if hosts is not None:
        from distlab.launch import host_report

        host, address, hello = host_report.make(hosts)
    server = Server(orders, reports, arguments, stay, host)
    if hosts is not None:
        server.tell(hello=hello)
        server.libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # while it imports, it does not see the end of its orders
    gc.disable()  # nothing of what is imported is garbage, and looking for it takes a tenth of the time
    with debugger_hidden():
        for module in PRELOADED:
            importlib.import_module(module)
    gc.freeze()  # the collector is not to touch, and so to copy, the shared pages
    gc.enable()
    if hosts is not None:
        server.libc.prctl(PR_SET_PDEATHSIG, 0)
        serves, folder = host == 0, tempfile.mkdtemp(prefix="distlab-host-")
        os.makedirs(os.path.join(folder, "log"))
        os.environ["IPP_PROFILE_DIR"] = folder
    try:
        if serves:
            server.serve_store(address)
        server.serve()  # when it ends, the system kills the children
    finally:
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)


def first_line() -> bytes:
    """The first line of stdin, and nothing of what comes after it."""
    line = b""
    while not line.endswith(b"\n"):
        if not (byte := os.read(0, 1)):
            sys.exit("distlab: the fork server was given no plan")
        line += byte
    return line


if __name__ == "__main__":
    main(**json.loads(first_line()))
