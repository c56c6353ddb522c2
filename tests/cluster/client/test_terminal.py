"""Outside of a notebook: what a script and IPython show on a terminal while ranks work, and what a file gets of it."""

import contextlib
import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios

import pytest

from tests.processes import python

SCRIPT = """\
import time
import distlab
from torch.distributed import all_reduce

def slowly(rank, world_size):
    time.sleep(1.5)
    print("hello")
    return rank

with distlab.Cluster(2) as cluster:
    print(cluster.run(slowly))
    distlab.sweep(cluster, {"gloo": all_reduce}, [8], repeat=1)
"""
CELL = """\
%load_ext distlab
import distlab
cluster = distlab.Cluster(2)
get_ipython().run_cell_magic("px", "", "import time; time.sleep(1.5); print('hello')")
cluster.stop()
exit
"""
IPYTHON = ["-m", "IPython", "--no-banner", "--colors=NoColor", "--no-confirm-exit", "--simple-prompt"]
PROGRAMS = {"script": (["-c", SCRIPT], ""), "ipython": (IPYTHON, CELL)}


def on_terminal(name: str, folder) -> str:
    """Everything that a program writes to a terminal, with what is typed there."""
    command, typed = PROGRAMS[name]
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("4H", 24, 80, 0, 0))
    environment = {**os.environ, "IPYTHONDIR": str(folder), "TERM": "dumb", "COLUMNS": "80"}
    process = subprocess.Popen([sys.executable, *command], stdin=its, stdout=its, stderr=its, env=environment)
    os.close(its)
    os.write(ours, typed.encode())
    written = b""
    with contextlib.suppress(OSError):  # EIO: the program has closed its end
        while piece := os.read(ours, 1 << 16):
            written += piece
    os.close(ours)
    assert process.wait(timeout=30) == 0, written.decode()
    return written.decode()


def on_screen(line: str) -> str:
    """What a person sees of a line in the end: a carriage return goes back to its beginning."""
    seen = ""
    for part in line.split("\r"):
        seen = part + seen[len(part) :]
    return seen


@pytest.mark.parametrize("name", PROGRAMS)
def test_one_line_of_a_terminal_is_updated_and_erased(name, tmp_path):
    """While ranks start and work their state stands on one line; in the end only what they wrote is there."""
    written = on_terminal(name, tmp_path)
    assert "\rstarting 2 ranks ..." in written
    assert re.search(r"\r\d s: ranks 0-1: ", written), written
    assert re.search(r"\r0 of 1 [^\r]* 00:\d\d, 8 B on 2 ranks", written) or name == "ipython", written
    seen = [on_screen(line) for line in written.replace("\r\n", "\n").split("\n")]
    assert "ranks 0-1: hello" in "\n".join(seen)
    assert not [line for line in seen if re.search(r"starting|\d s: |of 1", line)], seen
    assert "text/plain" not in written


def test_a_file_gets_what_the_ranks_wrote_and_no_sign_of_life():
    """Redirected, the same program writes no line that is only meant for somebody who waits."""
    done = python("-c", SCRIPT)
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "ranks 0-1: hello\n[0, 1]\n")
