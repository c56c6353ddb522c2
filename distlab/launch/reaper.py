"""The guard: a small process for each cluster that ends the cluster's processes when its notebook's
process is gone.

A kernel that is killed with SIGKILL, as by nbclient or when JupyterLab closes, runs no exit
handler. The guard is its child, waits for its end, and then ends every process whose environment
holds the cluster's tag. It runs as `python reaper.py PID TAG FOLDER`; its functions also serve
launcher.py in the notebook's kernel, and the doctor.
"""

import contextlib
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator

import psutil

TAG = "DISTLAB_CLUSTER"


def find(tag: str) -> list[psutil.Process]:
    """Processes of this user whose environment holds `tag`, this one excepted. Runs on: anywhere."""
    return [process for process, found in _tagged() if found == tag]


def of_notebook(pid: int) -> list[psutil.Process]:
    """Processes of all clusters that the process with this number has started: a tag begins with
    it.
    """
    return [process for process, tag in _tagged() if tag.startswith(f"{pid}-")]


def threads(process: psutil.Process) -> int:
    """How many threads a process has; none if it has ended."""
    with contextlib.suppress(psutil.Error):
        return process.num_threads()
    return 0


def leftovers() -> list[psutil.Process]:
    """Processes of clusters whose guard is gone as well."""
    guarded = {
        word
        for process in psutil.process_iter(["cmdline"])
        for word in process.info["cmdline"] or ()
    }
    return [process for process, tag in _tagged() if tag not in guarded]


def _tagged() -> Iterator[tuple[psutil.Process, str]]:
    """Every process of a cluster that this user may look at, with its tag; not this one."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            tag = process.environ().get(TAG)
            if tag is not None and process.pid != os.getpid():
                yield process, tag


def end(processes: list[psutil.Process], patience: float = 1.0) -> None:
    """Ask the processes to end, and kill after `patience` seconds those that have not; returns when
    all are gone.
    """
    for number, seconds in ((signal.SIGTERM, patience), (signal.SIGKILL, 5.0)):
        for process in processes:
            with contextlib.suppress(psutil.Error):
                process.send_signal(number)
        deadline = time.monotonic() + seconds
        while (processes := [p for p in processes if _lives(p)]) and time.monotonic() < deadline:
            time.sleep(0.01)
        if not processes:
            return


def _lives(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def main(owner: int, tag: str, folder: str) -> None:
    """Wait until the process `owner` is gone, then end the cluster and remove its folder."""
    while os.getppid() == owner:
        time.sleep(0.5)
    # one that was being started while we looked is found in the next round
    while processes := find(tag):
        end(processes)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3])
