"""The process that records: one for all predictions, or another one when it is gone."""

import os
import pickle
import signal
import subprocess
import sys
from multiprocessing import Pipe
from types import FunctionType

import pytest
import torch
from torch import nn

import distlab
from tests.refused import raised

MACHINES = distlab.Network("5 us", "1 GB/s"), distlab.Device("1 TFLOP/s")


def step(width, act=None):
    def program(rank, world_size):
        model = nn.Linear(width, width)
        model(torch.ones(2, width)).sum().backward()
        torch.optim.SGD(model.parameters()).step()
        if act:
            act()

    return program


def running():
    """The process that records, as long as there is one."""
    return distlab.predict._recorder._running


def recording_process(width):
    distlab.predict(step(width), 2, *MACHINES)
    return running().process


def test_it_is_started_again_when_it_was_killed():
    first = recording_process(6)
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    assert recording_process(7).pid != first.pid


IMPORTING = """
import distlab
print(distlab.predict._recorder._running is not None)
"""


NOTEBOOK = """
from IPython.core.interactiveshell import InteractiveShell
InteractiveShell.instance().kernel = None
"""


def printed(program, **environment):
    """What a program prints in a new Python."""
    ended = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return ended.stdout.splitlines()[-1]


@pytest.mark.parametrize("shell", ["", NOTEBOOK])
@pytest.mark.parametrize(
    ("of_a_rank", "begins"), [({}, True), ({"DISTLAB_CLUSTER": "1"}, False), ({"RANK": "0"}, False)]
)
def test_a_script_or_a_notebook_starts_it_before_the_first_prediction(shell, of_a_rank, begins):
    """And no rank does, which finds `predict` in a function that it is sent."""
    assert printed(shell + IMPORTING, **of_a_rank) == str(begins)


def test_a_module_that_a_script_imports_does_not_start_it(tmp_path):
    (tmp_path / "beside_the_script.py").write_text("from distlab import predict")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    assert printed("import beside_the_script" + IMPORTING, PYTHONPATH=path) == "False"


def test_a_program_that_is_recorded_starts_none(capsys):
    """A function of a script, which is sent by value, belongs to a script there as well."""
    looks = FunctionType(compile(IMPORTING, "<script>", "exec"), {"__name__": "__main__"})
    distlab.predict(step(16, looks), 2, *MACHINES)
    assert capsys.readouterr().out == "False\n"


def test_what_is_kept_of_a_program_is_small():
    """Asked about another machine, it does not run again, and its data is not in the kernel."""
    data = torch.rand(1_000_000)
    program = step(5, lambda: data.sum())
    process = recording_process(10)
    before = len(pickle.dumps(distlab.predict._kept))
    distlab.predict(program, 2, *MACHINES)
    os.kill(process.pid, signal.SIGSTOP)  # it would hang now if it had to run again
    try:
        distlab.predict(program, 2, MACHINES[0], distlab.Device("2 TFLOP/s"))
    finally:
        os.kill(process.pid, signal.SIGCONT)
    assert len(pickle.dumps(distlab.predict._kept)) - before < data.nbytes / 2


def of_the_notebook():
    import beside_the_notebook

    print(os.environ["LEARNING_RATE"], os.getcwd(), beside_the_notebook.WIDTH)


def test_the_program_finds_what_the_notebook_finds(monkeypatch, capsys, tmp_path):
    """The environment, the working folder, and modules."""
    process = recording_process(8)
    (tmp_path / "beside_the_notebook.py").write_text("WIDTH = 16")
    monkeypatch.setenv("LEARNING_RATE", "0.25")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    distlab.predict(step(9, of_the_notebook), 2, *MACHINES)
    assert capsys.readouterr().out == f"0.25 {tmp_path} 16\n"
    assert running().process is process


def ends_its_process():
    print("the last words", file=sys.stderr)
    os._exit(3)


def killed():
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize(
    ("end", "words"),
    [
        (ends_its_process, "(exit status 3). Its last lines:\nthe last words"),
        (killed, "(exit status -9)."),
    ],
)
def test_a_program_that_ends_its_process_is_reported_and_the_next_one_runs(end, words):
    process = recording_process(10)
    error = raised(distlab.RankError, distlab.predict, step(11, end), 2, *MACHINES)
    said = "rank 0 raised RuntimeError: The recording process ended "
    assert str(error).startswith(said + words)
    assert recording_process(12) is process


def test_an_interrupt_ends_what_is_recorded(monkeypatch, python_handles_sigint):
    process = recording_process(13)
    interrupt = lambda: signal.raise_signal(signal.SIGINT)  # noqa: E731
    monkeypatch.setattr(running().connection, "recv", interrupt)
    with pytest.raises(KeyboardInterrupt):
        distlab.predict(step(14), 2, *MACHINES)
    monkeypatch.undo()
    assert process.poll() is not None
    assert running() is None
    recording_process(15)


def test_it_ends_when_nobody_asks():
    code = "from distlab_predict import recordings as r; r.IDLE_SECONDS = 0.1; r.main()"
    here, there = Pipe()
    with here, there:
        command = [sys.executable, "-c", code, str(there.fileno()), str(os.getpid())]
        assert subprocess.run(command, pass_fds=[there.fileno()], timeout=120).returncode == 0
