"""A plugin of pytest for the notebooks: forks their kernels from one process that has imported the libraries.

A new kernel computes for seconds until torch, matplotlib and ipyparallel are imported, and there are 54 notebooks. Here
that happens once for each run of pytest. Each kernel imports distlab itself, and each cluster starts as always.
"""

import multiprocessing
import os
import runpy
import sys
from typing import Any

from jupyter_client.provisioning import local_provisioner

FORKS = multiprocessing.get_context("forkserver")
LIBRARIES = ["ipykernel.kernelapp", "torch", "matplotlib.pyplot", "ipyparallel"]


def pytest_configure() -> None:
    # ipykernel sets it before a notebook imports matplotlib, which reads it only once
    os.environ["MPLBACKEND"] = "module://matplotlib_inline.backend_inline"
    FORKS.set_forkserver_preload(LIBRARIES)
    local_provisioner.launch_kernel = Kernel


class Kernel:
    """A forked kernel, with what Jupyter's client calls of a Popen."""

    stdin = stdout = stderr = None

    def __init__(self, command: list[str], *, env: dict[str, str], cwd: str | None = None, **_: Any):
        ready, tell = FORKS.Pipe(duplex=False)
        self._process = FORKS.Process(target=_be_kernel, args=(command, env, cwd or os.getcwd(), tell))
        self._process.start()
        ready.recv()  # it has a process group of its own, to which the client sends signals
        self.pid = self._process.pid

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self) -> int | None:
        self._process.join()
        return self._process.exitcode


def _be_kernel(command: list[str], env: dict[str, str], cwd: str, tell: Any) -> None:
    """Do what `python -m ipykernel_launcher` does. Runs in a forked process."""
    os.setsid()
    tell.send(True)
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    option, module, *arguments = command[1:]
    assert option == "-m", command
    sys.argv = [module, f"--IPKernelApp.parent_handle={os.getppid()}", *arguments]  # it ends with its parent
    runpy.run_module(module, run_name="__main__", alter_sys=True)
