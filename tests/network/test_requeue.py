"""The batch file of lab 34 on a real Slurm: a job that is asked to stop is queued again."""

import json
import shlex
import subprocess
import sys

from tests.processes import until, wait_until_gone
from tests.tool import ROOT

PROGRAM = """\
import os, signal, time
import torch.distributed as dist

asked = []
signal.signal(signal.SIGTERM, lambda *_: asked.append(True))
dist.init_process_group("gloo")
open(f"begun_{dist.get_rank()}", "w").close()
while not asked:
    time.sleep(0.05)
dist.barrier()
if dist.get_rank() == 0:
    open("checkpoint", "w").close()
dist.barrier()
"""


def batch_file():
    """The file that the lab writes."""
    notebook = json.loads((ROOT / "notebooks/34_preempted.ipynb").read_text())
    for cell in notebook["cells"]:
        first, _, rest = "".join(cell["source"]).partition("\n")
        if first == "%%writefile train.sbatch":
            return rest
    raise LookupError("lab 34 writes no train.sbatch")


def said_by(*words):
    """What one of Slurm's programs says."""
    found = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert found.returncode == 0, found.stderr
    return found.stdout


def test_a_job_that_is_asked_to_stop_is_queued_again(slurm, tmp_path, monkeypatch):
    """The batch file's shell gets the signal, and its ranks on two nodes stop and save together.

    Slurm would start it again after two minutes.
    """
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(PROGRAM)
    text = batch_file().replace("--nproc-per-node 4", "--nproc-per-node 1")
    python = shlex.quote(sys.executable)
    text = text.replace("torchrun", f"{python} -m torch.distributed.run", 1)
    (tmp_path / "train.sbatch").write_text(text)
    job = said_by("sbatch", "train.sbatch").split()[-1]
    begun = tmp_path / "begun_1"
    assert not wait_until_gone(lambda: not begun.exists(), patience=150), "no rank has begun"
    said_by("scancel", "--batch", "--signal=TERM", job)
    until(lambda: "State=PENDING" in said_by("scontrol", "show", "job", job))
    assert (tmp_path / "checkpoint").exists()
    assert "Restarts=1" in said_by("scontrol", "show", "job", job)
    said_by("scancel", job)
    assert wait_until_gone(lambda: said_by("squeue", "-h")) == ""
