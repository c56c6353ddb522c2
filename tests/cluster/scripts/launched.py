"""A launcher in a process of its own: what tests of `distlab run` start, look at and end."""

import os
import signal
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

from distlab.launch import reaper
from tests.processes import marked, wait_until_gone

HEADER = """
import os, signal, sys, time
import torch, torch.distributed as dist
rank = int(os.environ["RANK"])
"""


def hear_signals():
    """Have a new process end by these signals, also where nohup or a shell's & has them ignored."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Folder:
    """A folder with a script; the launcher's temporary files are in a folder of their own.

    Each run checks that nothing is left: no process, and no file.
    """

    def __init__(self, path: Path):
        self.path = path
        # a short name, because sockets have one in it
        self.temporary = Path(tempfile.mkdtemp(prefix="run-", dir="/tmp"))
        self.environment = {
            **os.environ,
            "TMPDIR": str(self.temporary),
            "PYTHONPATH": str(Path(__file__).parents[3]),
            "NO_COLOR": "1",
        }
        self.environment.pop("OMP_NUM_THREADS", None)

    def write(self, code: str, name: str = "train.py", header: str = HEADER) -> None:
        (self.path / name).parent.mkdir(exist_ok=True)
        (self.path / name).write_text(header + textwrap.dedent(code))

    def command(self, *words: str, ranks: int = 2) -> list[str]:
        return [sys.executable, "-m", "distlab", "run", f"--nproc-per-node={ranks}", *words]

    def start(self, *words: str, ranks: int = 2, **options) -> subprocess.Popen:
        given = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen(
            self.command(*words, ranks=ranks),
            cwd=self.path,
            env=self.environment,
            text=True,
            preexec_fn=hear_signals,
            **{**given, **options},
        )

    def ended(
        self, launcher: subprocess.Popen, typed: str | None = None
    ) -> subprocess.CompletedProcess:
        out, err = launcher.communicate(typed, timeout=60)
        self.assert_nothing_left(launcher.pid)
        return subprocess.CompletedProcess(launcher.args, launcher.returncode, out, err)

    def run(
        self, *words: str, ranks: int = 2, typed: str | None = None
    ) -> subprocess.CompletedProcess:
        stdin = subprocess.DEVNULL if typed is None else subprocess.PIPE
        launcher = self.start(*(words or ("train.py",)), ranks=ranks, stdin=stdin)
        return self.ended(launcher, typed)

    def assert_nothing_left(self, pid: int) -> None:
        assert wait_until_gone(lambda: marked(reaper.TAG, f"{pid}-"), patience=10) == []
        assert wait_until_gone(lambda: list(self.temporary.iterdir()), patience=10) == []
