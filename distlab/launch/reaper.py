"""The guard: a small process for each cluster, which ends the cluster when its notebook is gone.

A kernel that is killed with SIGKILL, as by nbclient or when JupyterLab closes, runs no exit
handler. The guard is its child, waits for its end, and then ends every process whose environment
holds the cluster's tag. It runs as `python reaper.py PID TAG FOLDER`. Its functions are also called
in the notebook's kernel, by starting.py, launcher.py, processes.py, ahead.py and one_process.py, by
this_host.py, and by the doctor.
"""

import contextlib
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator

import psutil

TAG = "DISTLAB_CLUSTER"  # the variable whose value all processes of one cluster have
KILLED_SECONDS = 5.0  # for the system to end processes that were killed


def processes_of(tag: str) -> list[psutil.Process]:
    """Processes of this user whose environment holds `tag`, this one excepted.

    Runs on: anywhere.
    """
    return [process for process, its_tag in _tagged() if its_tag == tag]


def of_notebook(pid: int) -> list[psutil.Process]:
    """Processes of all clusters that the process with this number has started."""
    # a tag begins with the number of the process that made it
    return [process for process, tag in _tagged() if tag.startswith(f"{pid}-")]


def threads(process: psutil.Process) -> int:
    """How many threads a process has; none if it has ended."""
    try:
        return process.num_threads()
    except psutil.Error:
        return 0


def leftovers() -> list[psutil.Process]:
    """Processes of clusters whose guard is gone as well."""
    # a guard has the tag of its cluster in its command line
    words_of_commands: set[str] = set()
    for process in psutil.process_iter(["cmdline"]):
        words_of_commands.update(process.info["cmdline"] or ())
    return [process for process, tag in _tagged() if tag not in words_of_commands]


def _tagged() -> Iterator[tuple[psutil.Process, str]]:
    """Every process of a cluster that this user may look at, with its tag; not this one."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            tag = process.environ().get(TAG)
            if tag is not None and process.pid != os.getpid():
                yield process, tag


def end_processes(processes: list[psutil.Process], patience: float = 1.0) -> None:
    """Ask the processes to end, and kill those that have not after `patience` seconds.

    Returns when all are gone.
    """
    left = _end_by(signal.SIGTERM, processes, patience)
    if left:
        _end_by(signal.SIGKILL, left, KILLED_SECONDS)


def _end_by(
    number: signal.Signals, processes: list[psutil.Process], patience: float
) -> list[psutil.Process]:
    """Send the processes a signal, and return those that live on after `patience` seconds."""
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.send_signal(number)
    deadline = time.monotonic() + patience
    living = list(filter(_lives, processes))
    while living and time.monotonic() < deadline:
        time.sleep(0.01)
        living = list(filter(_lives, living))
    return living


def _lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def main(owner: int, tag: str, folder: str) -> None:
    """Wait until the process `owner` is gone, then end the cluster and remove its folder."""
    while os.getppid() == owner:
        time.sleep(0.5)
    # one that was being started while we looked is found in the next round
    while processes := processes_of(tag):
        end_processes(processes)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3])
