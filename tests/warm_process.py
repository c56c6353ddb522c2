"""A plugin of pytest: forks kernels, servers of clusters, and pytests from one warm process.

A new Python computes for seconds until torch, matplotlib and ipyparallel are imported; the
notebooks start 54 kernels and twice as many clusters, and tests/testing runs pytest as a program
again and again. Here the import happens once for each run of pytest, with the modules of distlab
that this file needs and those that ranks would import. Tests marked `new_python`, those of the
start itself, and all that do not load this plugin, start them as always.
"""

import ctypes
import gc
import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile
from multiprocessing import forkserver, process, resource_tracker
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from jupyter_client.provisioning import local_provisioner
from nbval import kernel

from distlab.launch import fork_server, reaper
from distlab.notebook import settings
from distlab.wire.rendezvous import INTERFACES

FORKS = multiprocessing.get_context("forkserver")
LIBRARIES = ["ipykernel.kernelapp", "torch", "matplotlib.pyplot", "tornado.platform.asyncio"]
LIBRARIES += [
    "ipyparallel.controller.app",
    "ipyparallel.engine.app",
    "torch._dynamo",
    "torch.distributed.fsdp",
]
LIBRARIES += [
    "torch.distributed.pipelining",
    "torch.distributed.checkpoint",
    "torch.distributed.tensor.parallel",
]
LIBRARIES += ["ipykernel.debugger", "IPython.core.oinspect", "encodings.idna"]
# and of distlab what each server of a cluster, and each rank of a check, would import for itself
OWN = ["distlab.rank.group", "distlab.checking.trial"]
# psutil, and so reaper.py, reads the environment with which a program was started: there it stands
# until it is replaced
# what torch reads of a rank's environment when it is imported
READ_ONCE = ("TORCH_CPP_LOG_LEVEL", "KINETO_LOG_LEVEL")
PYTEST = "pytest"
ROOM = "_" * len(reaper.TAG), "_" * 40


def pytest_configure() -> None:
    """Start the warm process, and have it fork."""
    if reaper.TAG in os.environ:  # on a rank of marked tests, whose pytest has the same plugins
        return
    # as ipykernel sets it, before matplotlib
    os.environ["MPLBACKEND"] = "module://matplotlib_inline.backend_inline"
    given = {name: settings.environment("", interface=None)[name] for name in READ_ONCE}
    given["PYDEVD_DISABLE_FILE_VALIDATION"] = "1"  # of debugpy, which would warn of frozen modules
    with mock.patch.dict(os.environ, {**given, ROOM[0]: ROOM[1]}):
        FORKS.set_forkserver_preload([*LIBRARIES, *OWN, __name__])
        forkserver.ensure_running()
    local_provisioner.launch_kernel = _launch_kernel
    kernel.start_new_kernel = _start_new_kernel
    subprocess.Popen = Servers


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    Servers.forked = item.get_closest_marker("new_python") is None


def _launch_kernel(
    command: list[str], *, launch: Any = local_provisioner.launch_kernel, **options: Any
):
    if not Servers.forked:
        return launch(command, **options)
    return Forked(command, **{name: options.get(name) for name in ("env", "cwd", "stderr")})


def _start_new_kernel(*arguments: Any, start: Any = kernel.start_new_kernel, **options: Any):
    try:
        return start(*arguments, **options)
    except (
        RuntimeError
    ):  # another program has taken a port between Jupyter's choice and the kernel's start
        return start(*arguments, **options)


class Forked:
    """A program `python -m` or `python -c` in a forked process, with what is called of a Popen."""

    stdin = stdout = stderr = returncode = None

    def __init__(
        self, command: list[str], *, env: dict[str, str], cwd: str | None = None, **ends: Any
    ):
        given = [ends.get(name) for name in ("stdin", "stdout", "stderr")]
        given[2] = given[1] if given[2] == subprocess.STDOUT else given[2]
        files = {}
        for number, one in enumerate(given):
            if one is not None:
                files[number] = Connection(os.dup(one if isinstance(one, int) else one.fileno()))
        ready, tell = FORKS.Pipe(duplex=False)
        arguments = (command, env, cwd or os.getcwd(), files, tell)
        # it ends with this one
        self._process = FORKS.Process(target=_be_program, args=arguments, daemon=True)
        self._process.start()
        ready.recv()  # it has a process group of its own, to which the client sends signals
        self.pid = self._process.pid

    def poll(self) -> int | None:
        if self.returncode is None and self._process.exitcode is not None:
            self.returncode = self._process.exitcode
            self._process.close()  # its pipes, which a test may count
        return self.returncode

    def wait(self, timeout: float | None = None) -> int | None:
        if self.returncode is None:
            self._process.join(timeout)
        return self.poll()

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        if self.poll() is None:
            self._process.kill()


def _be_program(
    command: list[str], env: dict[str, str], cwd: str, files: dict[int, Connection], tell: Any
) -> None:
    """Do what a new Python does with this command. Runs in a forked process."""
    os.setsid()
    tell.send(True)
    for number, file in files.items():
        os.dup2(file.fileno(), number)
        file.close()  # or its children would keep it open
    multiprocessing.set_start_method(None, force=True)
    process.current_process().name = "MainProcess"
    process.current_process()._config["daemon"] = False  # it may have children
    os.environ.clear()
    os.environ.update(env)
    tempfile.tempdir = None  # it may be another one
    os.chdir(cwd)
    option, program, *arguments = command[1:]
    if option == "-c":
        _tag(env[reaper.TAG])
        resource_tracker._resource_tracker._fd = None  # it has its own, as a new Python has
        sys.argv = ["-c", *arguments]
        exec(program, {"__name__": "__main__"})
    else:
        # it is: Python would start another one
        forkserver._forkserver.ensure_running = lambda: None
        subprocess.Popen = Servers
        if program != PYTEST:  # a kernel ends with its parent
            arguments = [f"--IPKernelApp.parent_handle={os.getppid()}", *arguments]
        sys.argv = [program, *arguments]
        runpy.run_module(program, run_name="__main__", alter_sys=True)


# a report shows the files of the learner's lines, and this one would count as theirs
_be_program.__code__ = _be_program.__code__.replace(co_filename=runpy.__file__)


class Servers(subprocess.Popen):
    """On Linux, pytests and servers of clusters without hosts are forked; all else is started."""

    forked = True

    def __new__(cls, command: Any, *arguments: Any, **options: Any):
        if cls.forked and sys.platform == "linux" and _is_quicker_forked(command, options):
            return Forked(command, **options)
        return super().__new__(cls)


def _is_quicker_forked(command: Any, options: dict[str, Any]) -> bool:
    if command == fork_server.server_command():
        return INTERFACES[0] in (options.get("env") or {})
    return command[:3] == [sys.executable, "-m", PYTEST]


def _tag(value: str) -> None:
    """Mark this process as a cluster's."""
    block = Path("/proc/self/environ").read_bytes()
    start = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[47])
    room = "=".join(ROOM).encode()
    written = f"{reaper.TAG}={value}".encode() + b"\0"
    assert len(written) <= len(room), written
    ctypes.memmove(start + block.index(room), written, len(written))


# the last import of the warm process: no child's collector touches, and thereby copies, the shared
# pages
gc.freeze()
