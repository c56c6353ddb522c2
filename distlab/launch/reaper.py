"""The guard: a small process, one a cluster, that ends the cluster's processes when one of two others is gone.

These are the notebook's process and the controller, without which no rank can be reached. A kernel that is killed with
SIGKILL, as nbclient and a closed JupyterLab do it, runs no exit handler. The guard is its child, waits for its end, and
then ends every process whose environment holds the cluster's tag. It runs as `python reaper.py PID TAG FOLDER`; its
functions also serve processes.py in the notebook's kernel, and the doctor.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import time

import psutil

TAG = "DISTLAB_CLUSTER"
CONTROLLER = "controller.pid"
CLOCK_SECONDS = 60.0  # the start time of a process is one of the wall clock, which may be set meanwhile


def owner_of_this_process() -> str:
    """This process as "pid-starttime", which no later process with the same pid is taken for."""
    return f"{os.getpid()}-{psutil.Process().create_time():.2f}"


def find(tag: str) -> list[psutil.Process]:
    """Processes of this user whose environment holds `tag` (all clusters' processes for ""), this one excepted.

    Runs on: anywhere.
    """
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            value = process.environ().get(TAG)
            if value is not None and (not tag or value == tag) and process.pid != os.getpid():
                found.append(process)
    return found


def leftovers() -> list[psutil.Process]:
    """Processes of clusters whose notebook is gone; not those of a container, which count their pids anew."""
    here = _pid_namespace("self")
    return [p for p in find("") if _pid_namespace(p.pid) == here and not owner_lives(_tag(p))]


def _tag(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error, OSError):
        return process.environ().get(TAG, "")
    return ""


def _pid_namespace(pid: int | str) -> str:
    """Name of the namespace in which a process has its number; "" where the system does not say, or has only one."""
    try:
        return os.readlink(f"/proc/{pid}/ns/pid")
    except OSError:
        return ""


def end(processes: list[psutil.Process], patience: float = 1.0) -> None:
    """Ask the processes to end, and kill after `patience` seconds those that have not; returns when all are gone."""
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
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def owner_lives(owner: str) -> bool:
    """Whether the process is there that `owner`, or a tag that begins with it, was made by."""
    try:
        pid, start = owner.split("-")[:2]
        return abs(psutil.Process(int(pid)).create_time() - float(start)) < CLOCK_SECONDS
    except (psutil.Error, ValueError):
        return False


def main(owner: int, tag: str, folder: str) -> None:
    """Wait until the process `owner` or the controller is gone, then end the cluster and remove its folder.

    The controller's number is looked for in the folder's file CONTROLLER, which is written when it has started.
    """
    controller = None
    while os.getppid() == owner and (controller is None or _lives(controller)):
        time.sleep(0.5)
        with contextlib.suppress(OSError, ValueError, psutil.Error), open(os.path.join(folder, CONTROLLER)) as file:
            controller = controller or psutil.Process(int(file.read()))
    for _ in range(5):  # a process that was being started while we looked is found in the next round
        processes = find(tag)
        end(processes)
        if not processes:
            break
        time.sleep(0.2)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3])
