"""A program that runs a command, and ends it with all its processes when nobody reads any more.

A process of its own, started by jobs.py with the command as its arguments. Its standard input is a
pipe, which the system closes when the notebook's kernel ends, in whatever way it does.
"""

import os
import subprocess
import sys
import threading
from collections.abc import Sequence

import psutil

KILLED = 137  # the exit status that a shell gives to a process ended by SIGKILL


def run(command: Sequence[str]) -> int:
    """Run the command until standard input ends, and end it then. Returns an exit status."""
    program = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    is_ending = threading.Event()
    threading.Thread(target=_leave_with, args=(program, is_ending), daemon=True).start()
    sys.stdin.buffer.read()
    is_ending.set()
    _end(program.pid)
    program.wait()
    return KILLED


def _leave_with(program: "subprocess.Popen[bytes]", is_ending: threading.Event) -> None:
    """End this process when the command has ended by itself, with its exit status."""
    status = program.wait()
    if not is_ending.is_set():
        os._exit(status if status >= 0 else KILLED)


def _end(pid: int) -> None:
    """Kill a process and all that it has started, if they are still there."""
    try:
        program = psutil.Process(pid)
        processes = [program, *program.children(recursive=True)]
    except psutil.NoSuchProcess:
        return
    for process in processes:
        try:
            process.kill()
        except psutil.NoSuchProcess:  # it has ended by itself
            continue


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
