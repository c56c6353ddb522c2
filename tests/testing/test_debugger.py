"""`breakpoint()` on ranks: what a person types in a terminal or a notebook, and its effect."""

import io
import sys
import time

import pexpect
import pytest

from distlab.launch import reaper
from tests.cluster.conftest import Notebook, plain
from tests.processes import marked, wait_until_gone
from tests.testing.inner import ROOT

pytestmark = pytest.mark.new_python  # a person at a terminal, or at a notebook, has new ones

STOPS = """
import time
import pytest
import torch
import torch.distributed as dist

def helper(x):
    doubled = x * 2
    return doubled

@pytest.mark.ranks(3)
def test_stops(rank, tmp_path):
    x = torch.ones(1) * rank
    while rank == 2 and not (tmp_path / "go").exists():
        time.sleep(0.01)
    if rank > 0:
        breakpoint()
    y = helper(x)
    dist.all_reduce(y)
    assert y == 6

@pytest.mark.ranks(2)
def test_fails(rank):
    values = {"of": rank}
    if rank == 1:
        assert values["of"] == 7
    dist.barrier()
"""


class Terminal:
    """pytest in a terminal: `says` waits for words and answers with a line."""

    def __init__(self, folder, *words):
        (folder / "test_stops.py").write_text(STOPS)
        command = ["-m", "pytest", "-p", "no:cacheprovider", "--color=no", "-s", *words]
        self.child = pexpect.spawn(
            sys.executable, command, cwd=folder, encoding="utf-8", timeout=90, env=None
        )
        self.shown = self.child.logfile_read = io.StringIO()

    def says(self, words, line=None):
        self.child.expect_exact(words)
        if line is not None:
            self.child.sendline(line)

    def ends(self):
        self.child.expect(pexpect.EOF)
        self.child.close()
        assert wait_until_gone(lambda: marked(reaper.TAG, f"{self.child.pid}-")) == []
        return self.child.before


def test_ranks_take_turns(tmp_path):
    terminal = Terminal(tmp_path, "-k", "test_stops")
    # 17, that of breakpoint(), since Python 3.13; the next one before
    terminal.says("test_stops.py, line 1")
    terminal.says("(rank 1) ", '(tmp_path / "go").touch()')
    terminal.says("(rank 1) ", "p rank, x")
    terminal.says("(1, tensor([1.]))")
    terminal.says("(rank 1) ", "tbreak helper")
    terminal.says("(rank 1) ", "c")
    terminal.says("test_stops.py, line 8 in helper")
    terminal.says("(rank 1) ", "up")
    terminal.says("test_stops.py, line 18 in test_stops")
    terminal.says("(rank 1) ", "u")
    terminal.says("*** Oldest frame")
    both = False
    while not both:  # the other one is on its way
        terminal.says("(rank 1) ", "rank 0")
        terminal.says("rank 0 is not at a breakpoint: ")
        both = terminal.child.expect_exact(["rank 1 can be chosen", "ranks 1-2 can be chosen"])
    terminal.says("(rank 1) ", "rank 2")
    terminal.says("(rank 2) ", "interact")
    assert (
        terminal.shown.getvalue().count("rank 2 has also stopped: type `rank 2` to go there") == 1
    )
    terminal.says(">>> ", "x + 40")
    terminal.says("tensor([42.])")
    terminal.says(">>> ", "exit()")
    terminal.says("(rank 2) ", "l")
    terminal.says("\t    y = helper(x)")
    terminal.says("(rank 2) ", "c")
    terminal.says("(rank 1) ", "c")
    assert "1 passed" in terminal.ends()


def test_who_leaves_frees_all_ranks(tmp_path):
    terminal = Terminal(tmp_path, "-k", "test_stops")
    terminal.says("(rank 1) ", "q")
    shown = terminal.ends()
    assert "Interrupted" in shown
    assert "no tests ran" in shown


def test_a_failed_test_is_looked_at_on_its_rank(tmp_path):
    terminal = Terminal(tmp_path, "--pdb", "-k", "test_fails")
    terminal.says("test_stops.py, line 26 in test_fails")
    terminal.says("(rank 1) ", "p values")
    terminal.says("{'of': 1}")
    terminal.says("(rank 1) ", "c")
    terminal.says("rank 0 waited in communication")
    assert "1 failed" in terminal.ends()


# --- a notebook's kernel ---


@pytest.fixture(scope="module")
def kernel():
    kernel = Notebook()
    kernel.run(f"import sys; sys.path.insert(0, {str(ROOT)!r})")
    assert (
        kernel.text("import distlab; distlab.Cluster(2, timeout=2); kept = 1")
        == "2 ranks are ready (gloo)."
    )
    assert kernel.text("%%px\nkept = rank") == ""
    yield kernel
    assert "ranks 0-1: 1" in kernel.text(
        "%%px\nt = torch.ones(1) * rank\ndist.all_reduce(t)\nprint(int(t))"
    )
    kernel.close()


@pytest.fixture
def run(kernel):
    """Run a cell in a front end that types `lines` when asked, or never; what it shows."""

    def run(code, lines=None, pause=0.0):
        typed = iter(lines or ())

        def type_line(message):
            time.sleep(pause)
            kernel.client.input(next(typed))

        shown = kernel.run(code, lines is not None, type_line)
        assert next(typed, None) is None
        return "\n".join(map(plain, shown))

    return run


STOP = (
    "%%px\n"
    "x = rank + 1\n"
    "if rank == 1:\n"
    "    breakpoint()\n"
    "t = torch.ones(1)\n"
    "dist.all_reduce(t)\n"
    "print(int(t) + x)"
)


def test_a_cell_stops_and_goes_on(run):
    shown = run(STOP, ["p x", "n", "p t", "x = 40", "w", "c"])
    assert "line 4\n-> breakpoint()" in shown
    assert "line 5\n-> t = torch.ones(1)" in shown
    assert "NameError" in shown
    assert "rank 0: 3\nrank 1: 42" in shown


def test_no_timeout_counts_meanwhile(run):
    assert "ranks 0-1: " not in (shown := run(STOP, ["c"], pause=4))
    assert "rank 0: 3\nrank 1: 4" in shown


def test_timeouts_count_afterwards(run):
    shown = run("%%px\nimport time\nif rank == 1:\n    time.sleep(5)\ndist.barrier()")
    assert "Timed out" in shown


def test_who_leaves_is_told_where_the_ranks_were(run):
    shown = run(STOP, ["q"])
    assert "Interrupted: Ranks 0-1 had not finished." in shown
    assert "rank 1  at a breakpoint" in shown
    assert "Variables are kept" in shown
    assert "rank 1: 4" in run(STOP, ["c"])


def test_a_front_end_without_input_is_told_at_once(run):
    began = time.monotonic()
    shown = run(STOP)
    assert time.monotonic() - began < 60
    assert "breakpoint() needs somebody who types" in shown
    assert "rank 1   line 4   breakpoint()" in shown


def test_a_cell_that_raises_is_looked_at(run):
    code = "%%px --pdb\ndef f(a):\n    return 1 / a\nf(rank)\ndist.barrier()"
    shown = run(code, ["p a", "u", "p rank", "c"])
    assert "> line 3 in f\n-> return 1 / a\n" in shown
    assert "> line 4\n-> f(rank)\n" in shown
    assert shown.splitlines().count("0") == 2
    assert "rank 0 raised ZeroDivisionError" in shown


def test_a_function_of_the_notebook_has_its_source(run):
    code = "def g(rank, n):\n    y = rank\n    breakpoint()\n    return y\ndistlab.run(g)"
    shown = run(code, ["y = 7", "c", "c"])
    assert "-> return y" in shown or "-> breakpoint()" in shown
    assert "[7, 1]" in shown
