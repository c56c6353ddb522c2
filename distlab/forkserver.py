"""The parent of forked ranks: imports torch and ipyparallel's engine once, then forks a process for every engine.

Runs as a process of its own, started by processes.py or launcher.py; it talks with that side by JSON lines over an
inherited socket. Orders: {"fork": [ids], "environment": {...}, "request_ids": ...} and {"signal": number, "ids": ...}.
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
import random
import select
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any

PR_SET_PDEATHSIG = 1
PRELOADED = (
    "distlab.engine",
    "torch",
    "torch.distributed",
    "distlab.worker",
    "distlab.remote",
    "distlab.rendezvous",
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
        channel: the socket to launcher.py. url_file: ipyparallel's connection file for engines, perhaps yet unwritten.
        log: path of the engines' logs, the number and ".log" are added. arguments: ipyparallel engine arguments.
        stay: whether to stay when the last engine has ended, and fork more when asked.
    """

    def __init__(self, channel: socket.socket, url_file: str, log: str, arguments: list[str], stay: bool):
        self.channel, self.url_file, self.log, self.arguments, self.stay = channel, url_file, log, arguments, stay
        self.status, self.begun = 0, False
        self.engines: dict[int, int] = {}  # pid -> the number it was forked under
        self.ids: dict[int, int] = {}  # pid -> the id that the hub gave it
        self.ids_out, self.ids_in = os.pipe()
        os.set_blocking(self.ids_out, False)
        self.helpers: set[int] = set()  # the store and notifiers
        self.libc = ctypes.CDLL(None)
        self.wakeup, self.woken = socket.socketpair()

    def serve(self) -> None:
        """Fork, relay and report until the channel closes or SIGTERM asks for the end."""
        self.wakeup.setblocking(False)
        signal.set_wakeup_fd(self.wakeup.fileno(), warn_on_full_buffer=False)
        for number in (*RELAYED, signal.SIGTERM, signal.SIGCHLD):
            signal.signal(number, _ignore)
        pending = b""
        while True:
            ready, _, _ = select.select([self.channel, self.woken], [], [])
            if self.woken in ready and not self._signalled(self.woken.recv(256)):
                return
            if not self.stay and self.begun and not self.engines:
                return
            if self.channel in ready:
                received = self.channel.recv(65536)
                if not received:
                    return
                *lines, pending = (pending + received).split(b"\n")
                for line in lines:
                    self._obey(json.loads(line))

    def _obey(self, order: dict[str, Any]) -> None:
        if "fork" in order:
            for number in order["fork"]:
                pid = self._fork(_run_engine, self, number, order["environment"], order["request_ids"])
                self.engines[pid] = number
                self.tell(forked=number, pid=pid)
            self.begun = True
        if "signal" in order:
            wanted = order["ids"]
            self._signal([pid for pid, number in self.engines.items() if number in wanted], order["signal"])

    def _signalled(self, numbers: bytes) -> bool:
        """React to signals; False when one of them asks for the end."""
        for number in numbers:
            if number in RELAYED:
                self._signal(list(self.engines), number)
        self._reap()
        return signal.SIGTERM not in numbers

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self.helpers.discard(pid)
            if pid in self.engines:
                number, status = self.engines.pop(pid), os.waitstatus_to_exitcode(status)
                self.status = self.status or status
                self.tell(ended=number, pid=pid, status=status)
                self._learn_ids()
                if pid in self.ids:
                    self.helpers.add(self._fork(_tell_hub, self, self.ids.pop(pid)))

    def _learn_ids(self) -> None:
        """Read which ids the hub has given to the engines."""
        with contextlib.suppress(BlockingIOError):
            for line in os.read(self.ids_out, 1 << 16).decode().splitlines():
                pid, engine_id = map(int, line.split())
                self.ids[pid] = engine_id

    def _signal(self, pids: list[int], number: int) -> None:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def serve_store(self) -> None:
        """Fork a process that serves a TCPStore on loopback, and tell its port."""
        from distlab.rendezvous import listen

        with listen() as listener:
            self.helpers.add(self._fork(_run_store, listener))
            self.tell(store=listener.getsockname()[1])

    def tell(self, **event: Any) -> None:
        """Report to launcher.py; nobody may be there to hear it."""
        with contextlib.suppress(OSError):
            self.channel.sendall(json.dumps(event).encode() + b"\n")

    def end(self, patience: float = 0.5) -> None:
        """End every child: ask, wait, kill."""
        pids = [*self.engines, *self.helpers]
        for number, seconds in ((signal.SIGTERM, patience), (signal.SIGKILL, 2.0)):
            self._signal(pids, number)
            deadline = time.monotonic() + seconds
            while pids and time.monotonic() < deadline:
                with contextlib.suppress(ChildProcessError):
                    while (pid := os.waitpid(-1, os.WNOHANG)[0]) != 0:
                        if pid in pids:
                            pids.remove(pid)
                    time.sleep(0.01)
                    continue
                return

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


def _ignore(*_: Any) -> None:
    """A Python handler, so that the signal's number reaches the wakeup descriptor."""


def _run_engine(server: Server, number: int, environment: dict[str, str], request_id: bool) -> None:
    """Be an ipyparallel engine, and ask for the id `number` if `request_id`. Runs in a forked child."""
    from distlab import engine

    log = os.open(f"{server.log}{number}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for descriptor in (1, 2):
        os.dup2(log, descriptor)
    os.close(log)
    os.environ.update(environment)
    random.seed()
    if "OMP_NUM_THREADS" in environment:  # OpenMP read the variable when torch was loaded in the parent
        import torch

        torch.set_num_threads(int(environment["OMP_NUM_THREADS"]))
    wish = [f"--IPEngine.id={number}"] if request_id else []
    engine.run([*server.arguments, f"--IPEngine.url_file={server.url_file}", *wish], server.ids_in)


def _run_store(listener: socket.socket) -> None:
    """Serve a TCPStore until the parent ends. Runs in a forked child."""
    from distlab.rendezvous import serve

    store = serve(listener)
    while store is not None:
        time.sleep(3600)


def _tell_hub(server: Server, engine_id: int) -> None:
    """Tell ipyparallel's hub that an engine has ended, as a nanny does. Runs in a forked child."""
    import zmq
    from ipyparallel import util
    from jupyter_client.session import Session

    with open(server.url_file) as file:
        info = json.load(file)
    context = zmq.Context()
    public, secret = zmq.curve_keypair()
    dealer = context.socket(zmq.DEALER)
    dealer.LINGER = 3000
    url = f"{info['interface']}:{info['registration']}"
    keys = {"curve_serverkey": (info.get("curve_serverkey") or "").encode() or None}
    util.connect(dealer, url, curve_publickey=public, curve_secretkey=secret, **keys)
    session = Session(key=info["key"].encode(), signature_scheme=info["signature_scheme"], packer=info["pack"])
    session.send(dealer, "unregistration_request", content={"id": engine_id})
    dealer.close()
    context.term()


def _wait_for(path: str, channel: socket.socket, patience: float = 60.0) -> None:
    """Wait until the connection file is there and whole, or nobody wants engines any more."""
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError, ValueError), open(path) as file:
            json.load(file)
            return
        with contextlib.suppress(BlockingIOError):
            if not channel.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT):
                sys.exit(0)
        time.sleep(0.005)
    sys.exit(f"the connection file {path} did not arrive in {patience:g} s")


def command(module: str) -> list[str]:
    """The command line that runs a module as `python -m` does, but without the working folder on the path.

    Python's own modules are imported by their names: a learner's random.py or queue.py is not one of them.
    """
    bare = "import sys; sys.path[:] = filter(None, sys.path); import runpy"
    return [sys.executable, "-c", f"{bare}; runpy.run_module({module!r}, run_name='__main__', alter_sys=True)"]


def start(
    profile_dir: str,
    cluster_id: str,
    environment: dict[str, str],
    arguments: Sequence[str] = (),
    url_file: str = "",
    stay: bool = True,
    name: str = "fork",
) -> tuple[subprocess.Popen, socket.socket]:
    """Start the server as a process of its own; it forks nothing before it is told to.

    Runs on: the notebook's kernel, or wherever ipyparallel's Cluster runs.

    Args:
        profile_dir, cluster_id: ipyparallel's names; the connection file is expected where the controller writes it.
        environment: additions to the environment. arguments: ipyparallel engine arguments.
        url_file: the connection file, if it is elsewhere. name: of the log files.
        stay: whether to serve a TCPStore, and to stay when the last engine has ended.

    Returns:
        the process, and the socket over which it takes orders and reports.
    """
    here, there = socket.socketpair()
    logs = os.path.join(profile_dir, "log")
    os.makedirs(logs, exist_ok=True)
    controller_writes = os.path.join(profile_dir, "security", f"ipcontroller-{cluster_id}-engine.json")
    plan = {
        "channel": there.fileno(),
        "url_file": url_file or controller_writes,
        "log": os.path.join(logs, f"{name}-"),
        "arguments": list(arguments),
        "stay": stay,
    }
    known = {"IPP_CLUSTER_ID": cluster_id, "IPP_PROFILE_DIR": profile_dir}
    with there, open(os.path.join(logs, f"{name}.log"), "ab") as output:
        process = subprocess.Popen(
            [*command("distlab.forkserver"), json.dumps(plan)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **known, **environment},
            start_new_session=True,
            pass_fds=[there.fileno()],
        )
    return process, here


def preload() -> None:
    """Import what every rank needs, and keep the collector from touching (and so copying) the shared pages.

    ipykernel imports debugpy with every kernel, 25 MB that an engine cannot use: it has no debugger's channel. It is
    hidden until ipykernel has looked; a learner can still import it.
    """
    gc.disable()  # nothing of what is imported is garbage, and looking for it takes a tenth of the time
    hidden = "debugpy" not in sys.modules
    if hidden:
        sys.modules["debugpy"] = None  # type: ignore[assignment]
    for module in PRELOADED:
        importlib.import_module(module)
    if hidden:
        del sys.modules["debugpy"]
    gc.freeze()
    gc.enable()


def main(plan: dict[str, Any]) -> None:
    """Preload, wait for the controller, and serve.

    Args:
        plan: channel (descriptor), url_file, log, arguments, stay (which also means: serve a TCPStore).
    """
    channel = socket.socket(fileno=plan["channel"])
    server = Server(channel, plan["url_file"], plan["log"], plan["arguments"], plan["stay"])
    preload()
    _wait_for(plan["url_file"], channel)
    if plan["stay"]:
        server.serve_store()
    try:
        server.serve()
    finally:
        server.end()
    sys.exit(server.status if server.status >= 0 else 128 - server.status)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
