"""The parent of forked ranks: imports torch and ipyparallel's engine once, then forks a process for every engine.

Runs as a process of its own, started by processes.py or fork_launcher.py; it talks with that side by JSON lines over an
inherited socket. Orders: {"fork": [ids], "environment": {...}} and {"signal": number, "ids": ...}.
Reports: {"store": port}, {"forked": id, "pid": pid} and {"ended": id, "pid": pid, "status": status}. When the socket
closes, the process that asked for the engines is gone, and they end with it.

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
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from distlab.compat.ipython import debugger_hidden

PR_SET_PDEATHSIG = 1
PRELOADED = (
    "distlab.launch.forked_engine",
    "distlab.rank.entry_points",
    "distlab.rank.group",  # with torch
    # what an engine would import by itself, each anew
    "ipykernel.debugger",
    "sqlite3",
    "tornado.platform.asyncio",
    "IPython.core.completerlib",
    "IPython.core.oinspect",
    "IPython.extensions.storemagic",
)
RELAYED = (signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP, signal.SIGQUIT)


class Server:
    """What the parent knows of its children.

    Args:
        channel: the socket to fork_launcher.py. arguments: ipyparallel engine arguments.
        stay: whether to stay when the last engine has ended, and fork more when asked; each has a log of its own then.
    """

    def __init__(self, channel: socket.socket, arguments: list[str], stay: bool):
        self.channel, self.arguments, self.stay = channel, arguments, stay
        self.engines: dict[int, int] = {}  # pid -> the number it was forked under
        self.libc = ctypes.CDLL(None)
        self.wakeup, self.woken = socket.socketpair()

    def serve(self) -> None:
        """Fork, relay and report until the channel closes, SIGTERM asks for the end, or the last engine has ended."""
        self.wakeup.setblocking(False)
        signal.set_wakeup_fd(self.wakeup.fileno(), warn_on_full_buffer=False)
        for number in (*RELAYED, signal.SIGTERM, signal.SIGCHLD):
            signal.signal(number, lambda *_: None)  # a handler in Python: the number reaches the wakeup descriptor
        pending = b""
        while True:
            ready, _, _ = select.select([self.channel, self.woken], [], [])
            if self.woken in ready:
                numbers, before = self.woken.recv(256), len(self.engines)
                for number in set(numbers) & set(RELAYED):
                    self._signal(self.engines, number)
                self._reap()
                if signal.SIGTERM in numbers or (before and not self.engines and not self.stay):
                    return
            if self.channel in ready:
                received = self.channel.recv(65536)
                if not received:
                    return
                *lines, pending = (pending + received).split(b"\n")
                for line in lines:
                    self._obey(json.loads(line))

    def _obey(self, order: dict[str, Any]) -> None:
        os.environ.update(order.get("environment", {}))  # ipyparallel's connection information is in it
        for number in order.get("fork", ()):
            pid = self._fork(_run_engine, self, number)
            self.engines[pid] = number
            self._tell(forked=number, pid=pid)
        if "signal" in order:
            self._signal([pid for pid, number in self.engines.items() if number in order["ids"]], order["signal"])

    def _reap(self) -> None:
        """Take note of the children that have ended."""
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                pid, status = ended
                if pid in self.engines:
                    self._tell(ended=self.engines.pop(pid), pid=pid, status=os.waitstatus_to_exitcode(status))

    def _signal(self, pids: Iterable[int], number: int) -> None:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def serve_store(self) -> None:
        """Fork a process that serves a TCPStore on loopback, and tell its port."""
        from distlab.wire.rendezvous import listen

        with listen() as listener:
            self._fork(_run_store, listener)
            self._tell(store=listener.getsockname()[1])

    def _tell(self, **event: Any) -> None:
        """Report to fork_launcher.py; nobody may be there to hear it."""
        with contextlib.suppress(OSError):
            self.channel.sendall(json.dumps(event).encode() + b"\n")

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
            for end in (self.channel, self.wakeup, self.woken):
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
        with open(log_of(os.environ["IPP_PROFILE_DIR"], number), "ab") as log:
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


def log_of(profile_dir: str, number: int) -> str:
    """Path of the log of the engine that is forked under this number, where each has its own."""
    return os.path.join(profile_dir, "log", f"fork-{number}.log")


def command(module: str) -> list[str]:
    """The command line that runs a module as `python -m` does, but without the working folder on the path.

    Python's own modules are imported by their names: a learner's random.py or queue.py is not one of them.
    """
    bare = "import sys; sys.path[:] = filter(None, sys.path); import runpy"
    return [sys.executable, "-c", f"{bare}; runpy.run_module({module!r}, run_name='__main__', alter_sys=True)"]


def start(
    environment: dict[str, str], arguments: Sequence[str], output_file: str, stay: bool = True
) -> tuple[subprocess.Popen, socket.socket]:
    """Start the server as a process of its own; it forks nothing before it is told to.

    Runs on: the notebook's kernel, or wherever ipyparallel's Cluster runs.

    Args:
        environment: additions to the environment, ipyparallel's IPP_CLUSTER_ID and IPP_PROFILE_DIR among them.
        arguments: ipyparallel engine arguments. output_file: gets what the server writes.
        stay: whether to serve a TCPStore, and to stay when the last engine has ended.

    Returns:
        the process, and the socket over which it takes orders and reports.
    """
    here, there = socket.socketpair()
    os.makedirs(os.path.dirname(output_file), exist_ok=True)
    plan = {"channel": there.fileno(), "arguments": list(arguments), "stay": stay}
    with there, open(output_file, "ab") as output:
        process = subprocess.Popen(
            [*command("distlab.launch.fork_server"), json.dumps(plan)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **environment},
            start_new_session=True,
            pass_fds=[there.fileno()],
        )
    return process, here


def main(channel: int, arguments: list[str], stay: bool) -> None:
    """Import what every rank needs, and serve; `channel` is a descriptor."""
    server = Server(socket.socket(fileno=channel), arguments, stay)
    gc.disable()  # nothing of what is imported is garbage, and looking for it takes a tenth of the time
    with debugger_hidden():
        for module in PRELOADED:
            importlib.import_module(module)
    gc.freeze()  # the collector is not to touch, and so to copy, the shared pages
    gc.enable()
    if stay:
        server.serve_store()
    server.serve()  # when it ends, the system kills the children


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
