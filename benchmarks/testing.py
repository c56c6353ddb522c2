"""Small tests on ranks, and one whose ranks wait for each other, run in three ways.

They run beside torch's own way and a helper around mp.spawn.

`python -m benchmarks.testing` runs all of them, which takes minutes, and writes a table into
benchmarks/README.md.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.harness import write

# the limit in seconds is that of a test of torch's and of the helper's
TESTS = 50
RANKS = 4
LIMIT = 60
BODY = """
    tensor = torch.ones(8) * rank
    dist.all_reduce(tensor)
    assert tensor[0] == 6
"""
HANG = """
    dist.recv(torch.ones(1), src=(rank + 1) % dist.get_world_size())
"""
BY_MARK = """
import pytest
import torch
import torch.distributed as dist

@pytest.mark.ranks({ranks})
@pytest.mark.parametrize("number", range({tests}))
def test_sum(number, rank):{body}
@pytest.mark.ranks({ranks})
def test_hang(rank):{hang}"""
HELPER = """
import time
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

def on_rank(rank, body, folder):
    url = f"file://{{folder}}/store"
    dist.init_process_group("gloo", init_method=url, rank=rank, world_size={ranks})
    body(rank)
    dist.destroy_process_group()

def spawned(body, folder, limit={limit}):
    context = mp.spawn(on_rank, (body, folder), nprocs={ranks}, join=False)
    deadline = time.monotonic() + limit
    # it returns when one process has ended
    while not context.join(max(0.0, deadline - time.monotonic())):
        if time.monotonic() > deadline:
            for process in context.processes:
                process.kill()
            raise TimeoutError(f"{{limit}} s")

def total(rank):{body}
def hang(rank):{hang}
@pytest.mark.parametrize("number", range({tests}))
def test_sum(number, tmp_path):
    spawned(total, tmp_path)

def test_hang(tmp_path):
    spawned(hang, tmp_path)
"""
TORCHS_OWN = """
import torch
import torch.distributed as dist
from torch.testing._internal import common_distributed
from torch.testing._internal.common_distributed import MultiProcessTestCase

common_distributed.TIMEOUT_DEFAULT = {limit}
common_distributed.TIMEOUT_OVERRIDE["test_hang"] = {limit}

class TestSums(MultiProcessTestCase):
    world_size = {ranks}

    def setUp(self):
        super().setUp()
        self._spawn_processes()

    def begin(self):
        store = dist.FileStore(self.file_name, self.world_size)
        dist.init_process_group("gloo", store=store, rank=self.rank, world_size=self.world_size)
        return self.rank

    def test_hang(self):
        hang(self.begin())

def hang(rank):{hang}
def method(self):
    rank = self.begin(){body}
for number in range({tests}):
    setattr(TestSums, f"test_sum_{{number}}", method)
"""
FILES = {
    "@pytest.mark.ranks": BY_MARK,
    "torch's MultiProcessTestCase": TORCHS_OWN,
    "a helper around mp.spawn": HELPER,
}


def seconds(name: str, chosen: str, tests: int) -> float:
    """How long pytest takes for the chosen tests of one kind, from its start to its end."""
    words = {"ranks": RANKS, "tests": tests, "limit": LIMIT, "body": BODY, "hang": HANG}
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "test_peer.py").write_text(FILES[name].format(**words))
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "-p",
            "no:timeout",
            "-k",
            chosen,
        ]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        began = time.perf_counter()
        ended = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
        took = time.perf_counter() - began
    passed = f"{tests} passed" in ended.stdout
    expected = chosen == "test_sum"
    if passed != expected:
        raise RuntimeError(
            f"{name}: pytest ended with {ended.returncode}\n{(ended.stdout + ended.stderr)[-3000:]}"
        )
    return took


def main() -> None:
    tests = int(sys.argv[1]) if len(sys.argv) > 1 else TESTS
    rows = []
    first = None
    for name in FILES:
        sums = seconds(name, "test_sum", tests)
        hang = seconds(name, "test_hang", tests)
        first = first or sums
        rows.append(f"| {name} | {sums:.1f} s | {sums / first:.1f} | {hang:.1f} s |")
        print(rows[-1], flush=True)
    heads = (
        f"| {tests} tests on {RANKS} ranks | pytest, as a whole | times the first "
        "| a test that hangs, as a whole |"
    )
    note = (
        f"The limit of the last two is {LIMIT} s; torch's own is 300 s. On {os.cpu_count()} cores."
    )
    write("testing", "\n".join([heads, "|---|---:|---:|---:|", *rows, "", note]))


if __name__ == "__main__":
    main()
