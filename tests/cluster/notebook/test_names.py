"""A cell may take away what the engine needs: the rank works on. Runs real ranks."""

import os

import pytest

CLUSTER = {"n": 3, "timeout": 60}
IMPORTS = "import os, signal, sys, warnings\n"
IN_A_CELL = [
    "sys.stdout = None",
    "sys.stdout.close(), sys.stderr.close()",
    "sys.stdout = sys.stderr = object()",
    "sys.stdout = sys.stderr = None\n1 / 0",
    "os.environ.clear()",
    "warnings.simplefilter('error')",
    "torch.set_default_device('meta')\ntorch.set_default_dtype(torch.float64)",
    "list = dict = len = dist = torch = rank = world_size = 5",
    "signal.signal(signal.SIGALRM, lambda *_: None)\nsignal.alarm(1)",
]
IN_A_RUN = ["sys.stdout.close(), sys.stderr.close()", "os.environ.clear()"]
PUT_BACK = """
import torch, warnings
warnings.resetwarnings()
torch.set_default_device("cpu")
torch.set_default_dtype(torch.float32)
for name in ("list", "dict", "len"):
    globals().pop(name, None)
"""


def in_a_cell(ranks, code):
    ranks.client[:].execute(IMPORTS + code, block=False).get(return_exceptions=True)


def in_a_run(ranks, code):
    ranks.run(lambda rank, world_size: exec(IMPORTS + code))


@pytest.mark.parametrize(
    ("way", "code"),
    [(in_a_cell, code) for code in IN_A_CELL] + [(in_a_run, code) for code in IN_A_RUN],
)
def test_the_rank_works_on_after_a_cell_that_took_something_away(capsys, usable, way, code):
    """The next calls print, communicate, know their rank, and the group is rebuilt."""
    pids = [row["pid"] for row in usable.describe()]
    way(usable, code)
    capsys.readouterr()

    def report(rank, world_size):
        print("written by", rank)
        return rank, os.environ["RANK"], os.environ["WORLD_SIZE"]

    assert usable.run(report) == [(rank, str(rank), "3") for rank in range(3)]
    assert capsys.readouterr().out == "".join(
        f"rank {rank}: written by {rank}\n" for rank in range(3)
    )
    usable.heal()
    usable.client[:].execute(PUT_BACK, block=True)
    assert [row["pid"] for row in usable.describe()] == pids
