"""A program that runs a command, and ends it with all its processes when nobody reads any more.

A process of its own, started by jobs.py with the command as its arguments. Its standard input is a
pipe, which the system closes when the notebook's kernel ends, in whatever way it does.
"""

import subprocess
import sys
import threading
from collections.abc import Sequence

import psutil


def run(command: Sequence[str]) -> int:
    """Run the command until it ends or standard input does. Returns its exit status."""
    program = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    thread = threading.Thread(target=_end_with_input, args=(program,), daemon=True)
    thread.start()
    return program.wait()


def _end_with_input(program: "subprocess.Popen[bytes]") -> None:
    """Wait for the end of standard input, and kill the command and what it has started."""
    sys.stdin.read()
    if program.poll() is not None:
        return
    processes = psutil.Process(program.pid).children(recursive=True)
    program.kill()
    for process in processes:
        try:
            process.kill()
        except psutil.NoSuchProcess:  # it has ended by itself
            continue


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
