"""Jobs of torchrun that hang on purpose, for lab 33: started, looked at, and ended.

Runs in the notebook's kernel. A job runs beside the notebook until it is ended, also if a cell that
looks at it fails.
"""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import psutil

WAIT = 60.0  # seconds for a job to begin, on a busy machine
PAUSE = 0.5  # between two looks
LOOKS = 3  # that must be equal before a job counts as stuck
# the folders before a file of torch, or before one of the working directory
FOLDERS = re.compile(r'File "(?:[^"]*-packages/(?=torch/)|[^"]*/)')
LINE_OF_TORCH = re.compile(r'(File "torch/[^"]*"), line \d+ in')
# what torch puts around each of its functions, to log it
AROUND = "c10d_logger.py"

# Modules of other teams, which the reader has not seen.
DATA_MODULE = '''"""Batches from the file server. Questions: the data team."""

import os
import socket

import torch

STEPS_OF_SHARD = 5
connection, server = socket.socketpair()  # stands for a connection to the file server
if os.environ["RANK"] != "2":
    server.sendall(b"x" * 1000)


def read_shard(number):
    """The numbers of a shard, as soon as the file server has it."""
    if number > 0:
        connection.recv(1)
    return torch.arange(80.0).view(8, 10) + number


def next_batch(step):
    """The batch of a step."""
    return read_shard(step // STEPS_OF_SHARD)
'''


LAYOUT_MODULE = '''"""The groups over which a rank averages. Questions: the network team."""

import torch.distributed as dist


def make_groups():
    """The row and the column of this rank; every rank makes all groups."""
    rows = [dist.new_group(pair, group_desc=f"row {pair}") for pair in ([0, 1], [2, 3])]
    columns = [dist.new_group(pair, group_desc=f"column {pair}") for pair in ([0, 2], [1, 3])]
    rank = dist.get_rank()
    return {"row": rows[rank // 2], "column": columns[rank % 2]}


def measured_seconds(step):
    """How long an average over each group takes, as this rank has measured it."""
    row_is_busy = step >= 3 and dist.get_rank() in (1, 2)
    return {"row": 1.2 if row_is_busy else 1.0, "column": 1.1}


def in_order(groups, step):
    """The groups of this rank, the faster one first."""
    seconds = measured_seconds(step)
    return [groups[name] for name in sorted(groups, key=seconds.get)]
'''


def write_modules_of_others() -> None:
    """Write data.py and layout.py, which other teams answer for, into the working directory."""
    Path("data.py").write_text(DATA_MODULE)
    Path("layout.py").write_text(LAYOUT_MODULE)


def read_page(port: int, name: str) -> str:
    """A page of a job's debug server, as a browser gets it; one that says what is wrong, too.

    The server is a process of its own, which may begin to listen when the job has long been stuck.
    """
    url = f"http://localhost:{port}/{name}"
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    deadline = time.monotonic() + WAIT
    while True:
        try:
            with opener.open(url, timeout=WAIT) as answer:
                return answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.read().decode()
        except urllib.error.URLError as error:
            refused = isinstance(error.reason, ConnectionRefusedError)
            if not refused or time.monotonic() > deadline:
                raise
            time.sleep(PAUSE)


def stacks_on(page: str) -> str:
    """What a page of stacks says, without tags, folders and addresses."""
    found = []
    for line in without_folders(page).splitlines():
        text = re.sub(r"</?(?:h2|pre)>", "", line)
        if re.match(r"\s*(?:File|Thread|Current thread|<no Python frame>|Rank \d+:)", text):
            indent = "  " if text.lstrip().startswith(("File", "<no")) else ""
            text = re.sub(r"http://\S+/handler", "http://.../handler", text.strip())
            found.append(indent + text)
    return "\n".join(found)


class Job:
    """A command that runs beside the notebook.

    Its ranks print a line "rank 2: ..." whenever they begin something, and write their stack into
    stack2.txt when they get SIGUSR1.

    Attributes:
        output: the file with what the command and its ranks have printed.
    """

    def __init__(self, command: str, output: str = "job.txt", **variables: str) -> None:
        self.output = Path(output)
        environment = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
        guarded = [sys.executable, "-m", "distlab_course.guarded_job", *shlex.split(command)]
        with self.output.open("wb") as file:
            self._guard = subprocess.Popen(
                guarded,
                stdin=subprocess.PIPE,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=environment,
            )

    @property
    def pids(self) -> dict[int, int]:
        """The process number of each rank."""
        found = {}
        for launcher in psutil.Process(self._guard.pid).children():
            for child in launcher.children():
                rank = child.environ().get("RANK")
                if rank is not None:
                    found[int(rank)] = child.pid
        return dict(sorted(found.items()))

    def wait_until_stuck(self, ranks: int, said: str) -> None:
        """Return when each of so many ranks has printed this, and then moves no more."""
        deadline = time.monotonic() + WAIT
        while not self._all_have_said(ranks, said):
            if self._guard.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"The job has not come that far:\n{self.output.read_text()}")
            time.sleep(0.1)
        looks = [self.look()]
        while looks[-LOOKS:].count(looks[-1]) < LOOKS:
            time.sleep(PAUSE)
            looks.append(self.look())

    def _all_have_said(self, ranks: int, said: str) -> bool:
        lines = self.output.read_text().splitlines()
        return all(f"rank {rank}: {said}" in lines for rank in range(ranks))

    def look(self) -> dict[int, str]:
        """The stack of each rank, as faulthandler writes it when it gets SIGUSR1.

        The files stay as they are written. Left out here are folders, which differ from machine to
        machine, and the numbers of torch's lines, which change with its version.
        """
        stacks = {}
        for rank, pid in self.pids.items():
            file = Path(f"stack{rank}.txt")
            file.write_text("")
            os.kill(pid, signal.SIGUSR1)
            deadline = time.monotonic() + WAIT
            while not file.read_text().endswith("<module>\n"):
                if time.monotonic() > deadline:
                    raise RuntimeError(f"Rank {rank} has not written its stack.")
                time.sleep(0.01)
            stacks[rank] = without_folders(file.read_text())
        return stacks

    def dumps(self) -> dict[int, dict]:
        """What each rank's flight recorder writes when a file named `dump` appears."""
        Path("dump").touch()
        found = {}
        deadline = time.monotonic() + WAIT
        for rank in self.pids:
            file = Path(f"dump{rank}.json")
            while rank not in found:
                try:
                    found[rank] = json.loads(file.read_bytes())
                except (FileNotFoundError, json.JSONDecodeError):
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(0.05)
        return found

    def end(self) -> None:
        """End the ranks and their launcher; again and again does no harm."""
        self._guard.communicate()


def without_folders(text: str) -> str:
    """A stack without folders, without the numbers of torch's lines and what it logs with."""
    lines = []
    for line in text.splitlines():
        if AROUND in line:
            continue
        line = FOLDERS.sub('File "', line)
        lines.append(LINE_OF_TORCH.sub(r"\1, in", line))
    return "\n".join(lines) + "\n"
