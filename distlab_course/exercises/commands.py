"""Python programs that an exercise runs, in a folder of their own, and torchrun's command line.

Called by launching.py, train_scripts.py and several_hosts.py, in the notebook's kernel, and on a
rank where a check reads a command line there.
"""

import contextlib
import os
import re
import shlex
import subprocess
import sys
import tempfile

import psutil

from distlab_course.practice import loopback_interface

TORCHRUN = ["-m", "torch.distributed.run"]
SECONDS = 120  # in which a program should end


def output_in(folder, *arguments, seconds=SECONDS, **variables):
    """What a Python program prints in this folder, if it ends in time.

    torchrun leaves a folder for logs behind, in a temporary one, which is removed here.
    """
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as temporary:
        return _output_with(folder, arguments, seconds, {"TMPDIR": temporary, **variables})


def _output_with(folder, arguments, seconds, variables):
    """What a Python program prints, with these variables in its environment.

    It gets no variable of a launcher that has started this process. Whatever it has started ends
    with it.
    """
    environment = {
        "GLOO_SOCKET_IFNAME": loopback_interface(),
        "PYTHON_COLORS": "0",
        **variables,
    }
    for name, value in os.environ.items():
        if not re.match("RANK|WORLD_|LOCAL_|MASTER_", name):
            environment.setdefault(name, value)
    program = subprocess.Popen(
        [sys.executable, *arguments],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        return program.communicate(timeout=seconds)[0]
    except subprocess.TimeoutExpired:
        return f"Error: {shlex.join(arguments)} does not end"
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            descendants = psutil.Process(program.pid).children(recursive=True)
            for process in [*descendants, program]:
                process.kill()


def torchrun_options(words):
    """The options after torchrun, as it reads them; ValueError with what it would say."""
    from torch.distributed.run import get_args_parser

    parser = get_args_parser()

    def refuse(message):
        raise ValueError(f"torchrun would say: {message}")

    parser.error = refuse
    return parser.parse_args(words)
