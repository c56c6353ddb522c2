"""What is read from faulthandler's file when a fault in compiled code ends a rank."""

import faulthandler
import os
import subprocess
import sys
import threading

import pytest

from distlab.wire import faults
from distlab.wire.source import Line

C10D = "/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"
CELL = "/tmp/ipykernel_7/12.py"


def written(folder, *rows):
    """The part of a rank's file that is reported; a fault has written these rows."""
    os.makedirs(folder / "log", exist_ok=True)
    (folder / "log" / "fault-3.txt").write_text("\n".join(rows))
    return faults.learners_part(str(folder), 3)


def frame(file, line, function):
    return f'  File "{file}", line {line} in {function}'


GLOO = [
    "main 0x00007f0000000001",
    "Fatal Python error: Aborted",
    "",
    "Thread 0x00007f0000000002 (most recent call first):",
    frame("/home/me/train.py", 90, "load"),
    frame(threading.__file__, 982, "run"),
    "",
    "Thread 0x00007f0000000001 (most recent call first):",
    frame(C10D, 3252, "all_reduce"),
    frame("/venv/lib/python3.11/site-packages/torch/distributed/c10d_logger.py", 83, "wrapper"),
    frame(r"/home/me/mod\xe8les/train.py", 7, "step"),
    frame(CELL, 3, "<module>"),
    frame("/venv/lib/python3.11/site-packages/ipykernel/zmqshell.py", 549, "run_cell"),
    "",
    "Extension modules: numpy, torch._C (total: 2)",
]


def test_a_fault_in_a_thread_of_gloos_is_where_the_main_thread_waits(tmp_path):
    """The learner's lines, a cell's counted with its %%px; and the function called last."""
    lines = Line(3, "", file=CELL), Line(7, "", "step", "/home/me/modèles/train.py")
    fault = faults.parse_fault(written(tmp_path, *GLOO))
    assert fault == faults.Fault(lines, "all_reduce", in_python=False, aborted=True)
    assert [line.file for line in fault.lines] == [CELL, "/home/me/modèles/train.py"]


def test_a_fault_in_a_thread_of_pythons_is_where_that_thread_is(tmp_path):
    rows = [
        row.replace("Thread 0x00007f0000000002", "Current thread 0x00007f0000000002")
        for row in GLOO
    ]
    assert faults.parse_fault(written(tmp_path, *rows)) == faults.Fault(
        (Line(90, "", "load"),), in_python=True, aborted=True
    )


def test_what_torch_calls_is_no_call_of_the_learners(tmp_path):
    """A learner's function that torch has called: its line did not call the barrier."""
    rows = [*GLOO[:8], frame("/home/me/train.py", 5, "hook"), frame(C10D, 1, "barrier"), *GLOO[-5:]]
    assert faults.parse_fault(written(tmp_path, *rows)).op == ""


@pytest.mark.parametrize("rows", [(), GLOO[:1]], ids=["empty", "no fault"])
def test_without_a_fault_nothing_is_known(tmp_path, rows):
    assert faults.parse_fault(written(tmp_path, *rows)) == faults.Fault()
    assert faults.learners_part(str(tmp_path / "nowhere"), 3) == ""


FAULT = """
import os, sys
from distlab.wire import faults
def ends():
    os.abort()
faults.enable_log(3)
ends()
"""


def test_a_process_that_aborts_leaves_its_lines(tmp_path):
    """Python's own words are read, of whatever version it is."""
    (tmp_path / "log").mkdir()
    program = tmp_path / "program.py"
    program.write_text(FAULT)
    environment = os.environ | {"IPP_PROFILE_DIR": str(tmp_path), "DISTLAB_CLUSTER": "x"}
    subprocess.run([sys.executable, program], env=environment, stderr=subprocess.PIPE)
    fault = faults.parse_fault(faults.learners_part(str(tmp_path), 3))
    assert fault == faults.Fault(
        (Line(7, "", ""), Line(5, "", "ends")), in_python=True, aborted=True
    )


def test_the_next_process_of_a_rank_does_not_inherit_a_fault(tmp_path):
    """It may be killed before it empties the file: it did not abort."""
    assert faults.parse_fault(
        written(tmp_path, *GLOO) and faults.pop_learners_part(str(tmp_path), 3)
    ).aborted
    assert faults.parse_fault(faults.pop_learners_part(str(tmp_path), 3)) == faults.Fault()


def test_engines_of_others_get_no_file(tmp_path, monkeypatch):
    """Their folder is not the cluster's, and nothing would remove the file."""
    (tmp_path / "log").mkdir()
    monkeypatch.setenv("IPP_PROFILE_DIR", str(tmp_path))
    monkeypatch.delenv("DISTLAB_CLUSTER", raising=False)
    was = faulthandler.is_enabled()
    faults.enable_log(3)
    assert os.listdir(tmp_path / "log") == []
    assert faulthandler.is_enabled() == was
