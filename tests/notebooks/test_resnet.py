"""The script of labs 07 and 08: a residual network that trains on photographs.

It is stopped, and continues.
"""

import os
import re
import runpy
import subprocess
import sys

import pytest

from tests.data_files import md5, write_cifar
from tests.tool import ROOT

SCRIPT = ROOT / "notebooks" / "resnet_ddp.py"
TRUSTING = """
import runpy, sys
from distlab_course import data
data.FILES["cifar10"][{!r}] = {!r}
runpy.run_path({!r}, run_name="__main__")
"""
EPOCH = re.compile(r"^epoch (\d): loss \d\.\d{3}, accuracy \d+\.\d %$", re.MULTILINE)


@pytest.mark.timeout(900)  # two runs of torchrun
def test_it_trains_on_photographs_and_continues(tmp_path):
    """With files of CIFAR-10, two ranks train one epoch, and one rank alone continues.

    It begins with the checkpoint of the two.

    The network has as many parameters as that of He et al. (2015), table 6.
    """
    network = runpy.run_path(str(SCRIPT))["resnet"](3, 3, 10)
    assert round(sum(one.numel() for one in network.parameters()) / 1e6, 2) == 0.27
    cache = tmp_path / "distlab"
    cache.mkdir()
    write_cifar(cache, per_batch=64)
    (archive,) = cache.iterdir()
    trusting = tmp_path / "trusting.py"
    checkpoint = tmp_path / "runs" / "run.pt"
    trusting.write_text(TRUSTING.format(archive.name, md5(archive), str(SCRIPT)))
    environment = {
        **os.environ,
        "XDG_CACHE_HOME": str(tmp_path),
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    script = [trusting, "--data", "cifar10", "--checkpoint", checkpoint]
    for ranks, more, epochs in (
        (2, ["--epochs", "1"], ["0"]),
        (1, ["--epochs", "2", "--resume"], ["1"]),
    ):
        line = [*command, f"--nproc-per-node={ranks}", *script, *more]
        done = subprocess.run(line, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert EPOCH.findall(done.stdout) == epochs
        assert ("resumed: epoch 1 is next" in done.stdout) == ("--resume" in more)
    assert [path.name for path in checkpoint.parent.iterdir()] == ["run.pt"]


def test_it_says_how_it_is_started():
    """Without torchrun it ends with its usage."""
    done = subprocess.run(
        [sys.executable, SCRIPT], env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert "start it with torchrun" in done.stderr
