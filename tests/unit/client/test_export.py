"""A cell becomes a part of a script: what is kept, what is shown, what is left out and said."""

import functools
import gc
import signal
import subprocess
import weakref
from types import SimpleNamespace

import pytest
import torch

from distlab.client import export
from distlab.errors import ArgumentError, ArgumentTypeError
from distlab.launch.slurm import Job

SCALE = 2


def twice(function):
    @functools.wraps(function)
    def twice_over(*args):
        return 2 * function(*args)

    return twice_over


def double(rank, world_size, tail="end"):
    return SCALE * rank, tail


@twice
def decorated(rank, world_size):
    return rank


@pytest.fixture(autouse=True)
def as_in_a_notebook(monkeypatch):
    """The functions of this file are a notebook's, which no script can import."""
    for function in (double, decorated):
        monkeypatch.setattr(function, "__module__", "__main__")


def cell(source, ranks=(0, 1), **how):
    return export.Step("cell", ranks, source, **how)


def call(fn, *args, **kwargs):
    return export.call(fn, args, kwargs, (0, 1))


def script(tmp_path, steps, n=2, backend="gloo", threads=1):
    """The script of some steps, which is Python, and what was reported."""
    plan = SimpleNamespace(n=n, backend=backend, threads=threads)
    report = export.write(steps, tmp_path / "made.py", plan)
    text = (tmp_path / "made.py").read_text(encoding="utf-8")
    compile(text, "made.py", "exec")
    return text, report


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("x = 1\nx + 1", "x = 1\nSHOWN x + 1\n"),
        ("\nx = 'é'; x  # why", "x = 'é'; SHOWN x  # why\n"),
        ("x, y", "SHOWN x, y\n"),
        ("(x), (y)  # why", "SHOWN (x), (y)  # why\n"),
        ("x ; # not shown", "x ; # not shown\n"),
        ("if x:\n    x", "if x:\n    x\n"),
        ("print(1)", "print(1)\n"),
        ("x = (5\n  % 3)\nx", "x = (5\n  % 3)\nSHOWN x\n"),
        ("# nothing", "# nothing\n"),
    ],
)
def test_the_value_of_the_last_line_is_shown(source, text):
    """An expression in the last line is shown, unless a semicolon follows it; layout and comments stay."""
    assert export.as_script(source) == (text.replace("SHOWN ", export.VALUE), "")


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("await thing()", "no script can hold it: 'await' outside function"),
        ("from __future__ import annotations", "no script can hold it: from __future__ imports must occur at the"),
        ("1 / 0\nx = 1", "it failed with RankError): 1 / 0"),
        ("%time y = 1", "no script can hold it: invalid syntax): %time y = 1"),
    ],
)
def test_a_cell_that_no_script_can_hold_is_left_out(tmp_path, source, why):
    """What failed, and what does not run in the middle of a file, is a comment, and the report says why."""
    text, report = script(tmp_path, [cell(source, failed="RankError" if "/ 0" in source else ""), cell("y = 2")])
    assert report.notes[0].startswith(f"left out: cell 1 ({why}")
    assert report.cells == 1
    assert f"# {source.splitlines()[0]}\n" in text


def test_a_cell_of_some_ranks_runs_on_these_only(tmp_path):
    """Only they run it, and at its end all ranks meet."""
    steps = [cell("x = 1", (1,)), cell("# no", (1,)), cell("y = 1", (2, 0)), cell("z = 1", (0, 1, 2))]
    text, _ = script(tmp_path, steps, 3)
    assert "if _RANK in [1]:\n    x = 1\n_end_of_cell()" in text
    assert "if _RANK in [1]:\n    # no\n    pass\n_end_of_cell()" in text
    assert "on ranks 0 and 2 only ---\nif _RANK in [0, 2]:\n    y = 1\n_end_of_cell()" in text
    assert "# --- cell 4 ---\nz = 1\n_end_of_cell()" in text


def test_what_was_pushed_is_written_or_asked_for(tmp_path):
    """Numbers and text stand in the script, for their ranks; for a tensor it stops and says what is missing."""
    steps = [export.push({"n": [1, (2,), {"a": None}], "w": torch.ones(2)}, (0, 1)), export.push({"x": "a"}, (1,))]
    text, report = script(tmp_path, steps)
    assert "n = [1, (2,), {'a': None}]\n" in text
    assert "if _RANK in [1]:\n    x = 'a'\n" in text
    told = "define w here (Tensor): only the notebook has it, and a script cannot hold it"
    assert f'raise NotImplementedError("{told}")' in text
    assert "define by hand, where the script says so: w\n" in repr(report)


def test_a_function_comes_as_its_source_with_the_call(tmp_path):
    """Arguments stand in the call; the names that the function takes from the notebook are told, not followed."""
    text, report = script(tmp_path, [call(double, "end"), call(decorated), call(torch.zeros, tail=torch.ones(1))])
    assert "# --- call 1 ---\n# uses these names of the notebook: SCALE\ndef double(rank, world_size, tail=" in text
    assert export.VALUE + "double(_RANK, _WORLD_SIZE, 'end')\n_end_of_cell()" in text
    assert "@twice\ndef decorated(rank, world_size):" in text
    assert export.VALUE + "zeros(_RANK, _WORLD_SIZE, tail=_tail)\n" in text
    assert [note.rpartition(": ")[2] for note in report.notes] == ["SCALE", "_tail"]


@pytest.mark.parametrize("fn", [lambda rank, world_size: 1, torch.nn.Linear(1, 1).forward, weakref.ref(double)])
def test_a_function_without_a_source_of_its_own_is_asked_for(fn):
    """A lambda, a method of an object, and an object that can be called."""
    assert call(fn).missing == ("_function",)


@pytest.mark.parametrize("value", [1.5, (1,), {}, {1: ["a", None]}, -1, True])
def test_short_values_are_written_as_they_are(value):
    """What is short and plain has an expression that makes it."""
    assert eval(export.literal(value)) == value


def test_long_values_and_objects_have_no_literal():
    """The rest has none."""
    rest = [[torch.ones(1)], "x" * 300, list(range(100)), [10**5000], float("nan"), b"x", signal.SIGINT]
    assert [export.literal(value) for value in rest] == [""] * 7


def test_a_note_keeps_no_tensor_alive():
    """What is remembered of a push or a call holds neither tensors nor closures."""

    def noted(tensor):
        steps = [export.push({"t": tensor}, (0,)), call(lambda rank, world_size: tensor, tensor)]
        return steps, weakref.ref(tensor)

    steps, seen = noted(torch.ones(3))
    gc.collect()
    assert seen() is None
    assert len(steps) == 2


@pytest.mark.parametrize(
    ("path", "error", "told"),
    [
        ("script", ArgumentError, r"path must be the name of a \.py file in a directory that is there"),
        ("not_there/script.py", ArgumentError, r"path must be the name of a \.py file in a directory that is there"),
        (5, ArgumentTypeError, "path must be a file's name, got 5"),
    ],
)
def test_a_path_that_cannot_be_a_script_is_refused(path, error, told):
    """A script ends in .py, in a directory that is there."""
    with pytest.raises(error, match=told):
        export.check_path(path, False)


def test_the_command_gives_the_ranks_their_threads(tmp_path):
    """torchrun gives one thread to each; a cluster whose ranks have more says so."""
    assert script(tmp_path, [], 4)[1].command == "torchrun --standalone --nproc-per-node 4 made.py"
    assert script(tmp_path, [], threads=2)[1].command.startswith("OMP_NUM_THREADS=2 torchrun ")


def test_the_backend_is_one_that_torchrun_can_start(tmp_path):
    """gloo in place of mpi4py, which the report tells; with nccl each rank takes its GPU before the group is built."""
    text, report = script(tmp_path, [], backend="mpi4py")
    assert 'dist.init_process_group("gloo")' in text
    told = "  left out: the backend mpi4py, which needs mpiexec: under torchrun the script uses gloo"
    assert told in repr(report).splitlines()
    device = 'torch.cuda.set_device(int(_os.environ["LOCAL_RANK"]))'
    assert f'\n{device}\ndist.init_process_group("nccl")' in script(tmp_path, [], backend="nccl")[0]


def test_a_script_for_several_hosts(tmp_path):
    """The command is for each of them; how many ranks each starts, and where they meet."""
    plan = SimpleNamespace(n=4, backend="gloo", threads=1)
    path = tmp_path / "made.py"
    report = export.write([cell("x = 1")], path, plan, ["nodeA", "nodeA", "nodeB", "nodeB"])
    meet = "--nnodes 2 --rdzv-backend c10d --rdzv-endpoint FIRST_HOST:29500"
    assert report.command == f"torchrun {meet} --nproc-per-node 2 made.py"
    assert report.notes == ("to fill in: FIRST_HOST, the name of the first host; the command is for each host",)
    report = export.write([cell("x = 1")], path, plan, ["nodeA", "nodeA", "nodeA", "nodeB"])
    assert report.notes[0] == "to change: the hosts have 3, 1 ranks, and here all 3"


def test_a_file_for_sbatch(tmp_path):
    """Nodes, CPUs, and what was asked of Slurm before; bash can read it."""
    plan, job = SimpleNamespace(n=4, backend="gloo", threads=3), Job(2, 2, "debug", "10:00", ("--account=me",))
    report = export.write([cell("x = 1")], tmp_path / "made.py", plan, ["nodeA", "nodeA", "nodeB", "nodeB"], job)
    assert (report.command, report.notes) == ("sbatch made.sbatch", ())
    text = (tmp_path / "made.sbatch").read_text()
    for line in ("--nodes=2", "--ntasks-per-node=1", "--cpus-per-task=6", "--partition=debug", "--account=me"):
        assert f"#SBATCH {line}\n" in text
    assert "--nnodes 2 --nproc-per-node 2 \\\n" in text
    assert subprocess.run(["bash", "-n", tmp_path / "made.sbatch"], capture_output=True).stderr == b""
