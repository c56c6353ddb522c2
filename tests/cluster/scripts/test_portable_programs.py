"""`distlab run --check` and `--fresh`: what passes on forked ranks, and not on a cluster."""

import sys

import pytest

from tests.processes import python

GOES_THROUGH_A_SET = """
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
for name in {f"loss {number}" for number in range(26)}:
    if int(name.split()[1]) % 2:
        dist.all_reduce(torch.ones(1))
    else:
        dist.broadcast(torch.ones(1), 0)
dist.destroy_process_group()
"""
NAMES_NCCL = """
import torch
import torch.distributed as dist

dist.init_process_group("nccl")
tensor = torch.ones(1)
if dist.get_rank():
    dist.send(tensor, 0)
else:
    dist.recv(tensor)
print("received", flush=True)
dist.destroy_process_group()
"""
RIGHT = NAMES_NCCL.replace('"nccl"', '"gloo"').replace("recv(tensor)", "recv(tensor, 1)")


@pytest.fixture
def run(tmp_path):
    """Runs a program on two ranks."""

    def run_program(text, *options):
        (tmp_path / "train.py").write_text(text)
        command = ["-m", "distlab", "run", "--nproc-per-node", "2", *options, "train.py"]
        return python(*command, cwd=tmp_path)

    return run_program


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux forks ranks")
def test_a_loop_over_a_set_passes_on_forked_ranks_only(run):
    assert run(GOES_THROUGH_A_SET).returncode == 0
    fresh = run(GOES_THROUGH_A_SET, "--fresh")
    assert fresh.returncode == 1
    assert "DeadlockError: The ranks do not call the same collective" in fresh.stderr


def test_a_checked_program_ends_with_a_report(run):
    """On fresh ranks; on stderr, and the exit status is the program's."""
    done = run(NAMES_NCCL, "--check", "--backend", "gloo")
    assert (done.returncode, done.stdout) == (0, "received\nreceived\n")
    certain, _, may = done.stderr.partition("May not work on NCCL:\n")
    assert "Does not work on NCCL:\n- recv from any source." in certain
    assert "\n  rank 0   train.py:10   dist.recv(tensor)\n" in certain
    assert "- tensors on the CPU in a group for which the program names NCCL." in may
    assert "\n  rank 1   train.py:8   dist.send(tensor, 0)\n" in may
    right = run(RIGHT, "--check")
    assert right.returncode == 0
    assert right.stderr.strip() == "Nothing that NCCL lacks was seen: 2 calls of 2 kinds."
