"""A cell becomes a part of a script: what is kept, what is shown, what is left out and said."""

import ast
import functools
import textwrap
from collections import Counter

import pytest
import torch

from distlab import history, rewriting
from distlab.errors import ArgumentError, ArgumentTypeError
from distlab.export import check_path, export

SCALE = 3


def helper(x):
    return SCALE * x + len(Counter())


def job(rank, world_size, k=1):
    """Uses a function, a constant and an import of its notebook."""
    return helper(rank) * k


def cell(source, ranks=(0, 1), **how):
    return history.Step("cell", ranks, source, **how)


def script(tmp_path, steps, n=2, **how):
    """The script of some steps, which is Python, and what was reported."""
    report = export(steps, tmp_path / "made.py", n, how.get("backend", "gloo"), how.get("threads", 1))
    text = (tmp_path / "made.py").read_text(encoding="utf-8")
    compile(text, "made.py", "exec")
    return text, report


def run(text, rank=0):
    """The values that a rank shows when it runs the script, but for its group, on its own."""
    body = text.partition("_atexit.register(_print_mine)")[2]
    body = body.replace("_end_of_cell()", "pass").replace("if _dist.is_initialized():", "if 0:")
    shown = []
    names = {"__name__": "__main__", "torch": torch, "_show_value": shown.append, "_RANK": rank, "_WORLD_SIZE": 2}
    exec(compile(body, "made.py", "exec", dont_inherit=True), names | {"rank": rank, "world_size": 2})
    return [value for value in shown if value is not None]


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("x = 1\nx + 1", "x = 1\n_show_value(x + 1)\n"),
        ("x = 'é'; x  # why", "x = 'é'; _show_value(x)  # why\n"),
        ("(1,\n 2)", "_show_value((1,\n 2))\n"),
        ("x, y", "_show_value((x, y))\n"),
        ("x,", "_show_value((x,))\n"),
        ("*x,", "_show_value((*x,))\n"),
        ("(x), (y)  # why", "_show_value(((x), (y)))  # why\n"),
        ("(x := 1)", "_show_value((x := 1))\n"),
        ("x;", "x;\n"),
        ("x ; # not shown", "x ; # not shown\n"),
        ("if x:\n    x", "if x:\n    x\n"),
        ("print(1)", "print(1)\n"),
    ],
)
def test_the_value_of_the_last_line_is_shown(source, text):
    """An expression in the last line is shown, unless a semicolon follows it; layout and comments stay."""
    assert rewriting.cell(source).text == text


def test_a_notebooks_own_lines_become_comments():
    """Magics and shell lines are comments with their own words, wherever they stand, and the rest runs."""
    made = rewriting.cell("!ls -l\nif x:\n    %time y = 1\nfiles = !ls\nx")
    assert made.own_lines == ("!ls -l", "%time y = 1", "files = !ls")
    assert made.text.count("pass  # only a notebook runs this line: ") == 3
    assert made.text.endswith("_show_value(x)\n")
    assert "get_ipython" not in made.text


@pytest.mark.parametrize(
    ("source", "why"), [("await thing()", rewriting.AWAITS), ("x = (", "it is not Python"), ("return 1", "of ")]
)
def test_a_cell_that_no_script_can_hold_is_refused(source, why):
    """What does not compile at the top of a file is told apart from what runs."""
    assert rewriting.cell(source).refused.startswith(why)


def test_imports_from_the_future_go_to_the_top(tmp_path):
    """Python wants them before anything else."""
    text, _ = script(tmp_path, [cell("x = 1"), cell("from __future__ import annotations\nx")])
    assert ast.parse(text).body[1].module == "__future__"


@pytest.mark.parametrize(
    ("first", "own"),
    [("from __future__ import annotations", ()), ("get_ipython().banner", ("get_ipython().banner",))],
)
def test_what_follows_on_the_line_of_a_statement_left_out_runs(first, own):
    """No comment hides it, and it is not told as left out."""
    made = rewriting.cell(f"{first}; x = 1  # why\nx")
    assert made.text == "pass; x = 1  # why\n_show_value(x)\n"
    assert made.own_lines == own


@pytest.mark.parametrize(
    "source",
    [
        's = """a\n  b\n"""\nprint(s)\n',
        "s = f'''a\n{\n1}\n  b'''\n",
        "x = [\n1,\n  2]\n\n\ndef f():\n    '''doc\n    more'''\n    return 1\n",
        "s = 'a\\\nb'\n",
    ],
)
def test_indenting_changes_no_text_in_strings(source):
    """Code under an if is the code that it was."""
    inner = ast.parse("if True:\n" + rewriting.indented(source)).body[0].body
    assert [ast.dump(node) for node in inner] == [ast.dump(node) for node in ast.parse(source).body]


def test_a_cell_of_some_ranks_runs_on_these_only(tmp_path):
    """Only they run it; at its end all ranks meet, unless the notebook did not wait for it."""
    text, _ = script(tmp_path, [cell("x = 1", (1,)), cell("y = 1", (2, 0), waited=False), cell("z = 1", (0, 1, 2))], 3)
    assert "if _RANK == 1:\n    x = 1\n_end_of_cell()" in text
    assert "on ranks 0 and 2 only ---\nif _RANK in (0, 2):\n    y = 1\n\n\n" in text
    assert "# --- cell 3 ---\nz = 1\n_end_of_cell()" in text


def test_a_failed_cell_is_a_comment(tmp_path):
    """It is left out, and both the script and the report say so."""
    text, report = script(tmp_path, [cell("1 / 0\nx = 1", failed="RankError"), cell("y = 2")])
    assert "# 1 / 0\n# x = 1\n" in text
    assert report.left_out == ("cell 1 (it failed with RankError): 1 / 0",)
    assert report.cells == 1


def test_what_was_pushed_is_written_or_asked_for(tmp_path):
    """Numbers and text stand in the script; for a tensor that a cell uses it stops and says what is missing."""
    pushed = history.push({"n": [1, (2,), {"a": None}], "w": torch.ones(2), "unused": torch.ones(2)}, (0, 1))
    text, report = script(tmp_path, [pushed, cell("print(n, w)")])
    assert "n = [1, (2,), {'a': None}]\n" in text
    assert 'raise NotImplementedError("define w here (Tensor): the notebook pushed it' in text
    assert "# unused (Tensor) is not here: no cell uses it" in text
    assert report.missing == ("w (Tensor)",)
    assert "define by hand, where the script says so: w (Tensor)" in repr(report)


def factorial(rank, world_size, n=3):
    LOG.append(n)
    return n * factorial(rank, world_size, n - 1) if n > ZERO else 1


LOG, ZERO = [], 0


def test_a_name_that_changed_between_two_calls_is_written_again(tmp_path, monkeypatch):
    """What a function uses is looked at for each call, also when the function is the same, and lists are made anew."""
    steps = [history.call(factorial, (), {}, (0, 1))]
    monkeypatch.setitem(globals(), "ZERO", 1)
    steps += [history.call(factorial, (), {}, (0, 1)), history.call(lambda r, n: factorial(r, n), (), {}, (0, 1))]
    text, _ = script(tmp_path, steps)
    assert [text.count(line) for line in ("ZERO = 0\n", "ZERO = 1\n", "LOG = []\n", "def factorial(")] == [1, 1, 3, 1]
    assert text.index("ZERO = 0\n") < text.index("show_value(factorial(") < text.index("ZERO = 1\n")


NOTEBOOK = """
import functools
import math
from collections import OrderedDict as Base
from typing import Optional

from torch import nn

STEPS, DEPTH, WIDTH, SIZE = 2, 3, 4, 5
WEIGHTS = torch.ones(2)


def loud(function):
    @functools.wraps(function)
    def louder(*args):
        print("loud")
        return function(*args)

    return louder


class Net(Base):
    @staticmethod
    def depth():
        return DEPTH

    @property
    def width(self):
        return WIDTH

    @classmethod
    @loud
    def size(cls):
        return SIZE


class Still:
    @staticmethod
    def depth():
        return DEPTH


@loud
def train(rank, world_size, steps=STEPS, x: Optional[int] = None):
    net = Net(a=1)
    display(rank)
    return steps, net.depth(), net.width, Net.size(), Still.depth(), len(net)


@torch.no_grad()
def quiet(rank, world_size):
    return torch.is_grad_enabled(), __name__


def lost(rank, world_size):
    return WEIGHTS, nowhere, rank, get_ipython


def plain(rank, world_size):
    return 1


wrapped = torch.no_grad()(plain)


def fact(rank, world_size, n=3):
    return math.prod([n, fact(rank, world_size, n - 1)]) if n else 1


class Layer(nn.Module):
    def __init__(self):
        super(Layer, self).__init__()


def width(net):
    return math.prod([WIDTH, len(list(net.parameters())) + 1])


rank = 7


def outer(r, n):
    return WIDTH, rank


def measure(rank, world_size, by):
    return by(Layer()), width(Layer())
"""


@pytest.fixture
def notebook():
    """The names of a notebook in which NOTEBOOK has run."""
    import linecache

    linecache.cache["/notebook/cell.py"] = (len(NOTEBOOK), None, NOTEBOOK.splitlines(keepends=True), "cell.py")
    names = {"__name__": "__main__", "torch": torch}
    exec(compile(NOTEBOOK, "/notebook/cell.py", "exec", dont_inherit=True), names)
    yield names
    del linecache.cache["/notebook/cell.py"]


def test_a_function_comes_with_all_that_its_source_names(notebook, tmp_path, capsys):
    """Defaults, annotations, decorators, base classes, and what static methods, class methods and properties use."""
    steps = [history.call(notebook[name], (), {}, (0, 1)) for name in ("train", "quiet")]
    text, report = script(tmp_path, steps)
    assert report.missing == ()
    # the definitions alone, without the group that the top of the script builds, define all that the calls need
    assert run(text, 1) == [(2, 3, 4, 5, 3, 1), (False, "__main__")]
    assert capsys.readouterr().out.splitlines() == ["loud", "1", "loud"]


@pytest.mark.parametrize(("name", "args", "shown"), [("fact", (), 6), ("measure", ("width",), (4, 4))])
def test_what_values_of_a_call_share_is_defined_once(notebook, tmp_path, name, args, shown):
    """Also where a function or a class names itself, and where an argument is what the function uses too."""
    step = history.call(notebook[name], tuple(notebook[arg] for arg in args), {}, (0, 1))
    text, report = script(tmp_path, [step])
    assert report.missing == ()
    assert text.count("import math\n") == 1
    assert run(text) == [shown]


def test_what_no_script_can_have_of_a_function_is_told(notebook, tmp_path):
    """A tensor, a name that nobody defines, what IPython gives, and a function that was wrapped later."""
    lost, wrapped = notebook["lost"], notebook["wrapped"]
    text, report = script(tmp_path, [history.call(lost, args, {}, (0, 1)) for args in ((), (wrapped,))])
    asked = ("WEIGHTS (Tensor)", "get_ipython, which lost uses", "nowhere, which lost uses")
    assert report.missing == (*asked, "argument 0 of lost (function)")
    assert text.count("# define nowhere here, which lost uses: the notebook does not have it\n") == 1
    steps = [cell("nowhere = WEIGHTS = 1"), history.call(lost, (), {}, (0, 1)), cell("WEIGHTS")]
    text, report = script(tmp_path, steps)
    assert report.missing == ("WEIGHTS (Tensor)", "get_ipython, which lost uses")
    by_hand = text.replace("raise NotImplementedError(", "get_ipython, WEIGHTS = str(").replace(
        'cannot hold it")', '")[:2]'
    )
    assert run(by_hand, 1) == [("e", 1, 1, "d"), 1]


def test_a_push_is_written_for_its_ranks_each_time(tmp_path):
    """The same value for another rank, and one for the same ranks, which cells may have changed since."""
    pushes = [history.push({"x": [1]}, ranks) for ranks in ((0,), (1,), (1,), (0, 1))]
    text, _ = script(tmp_path, pushes)
    assert text.count("if _RANK == 0:\n    x = [1]\n") == 1
    assert text.count("if _RANK == 1:\n    x = [1]\n") == 2
    assert text.count("\nx = [1]\n") == 1


def test_what_a_call_uses_is_defined_where_no_cell_did(tmp_path):
    """A cell of one rank keeps its own value of a name; a push of one rank leaves the others without."""
    text, _ = script(tmp_path, [cell("SCALE = 9", (0,)), history.call(job, (), {}, (0, 1)), cell("SCALE", (0,))])
    assert "needs ---\nif _RANK == 0:\n    _KEPT = {name: _NAMES[name] for name in ('SCALE',)" in text
    assert "\nSCALE = 3\n\n\ndef helper(x):" in text
    assert "_show_value(job(_RANK, _WORLD_SIZE))\nif _RANK == 0:\n    _NAMES.update(_KEPT)\n_end_of_cell()" in text
    assert [run(text, rank) for rank in (0, 1)] == [[0, 9], [3]]
    text, _ = script(tmp_path, [history.push({"SCALE": 3}, (0,)), history.call(job, (), {}, (0, 1))])
    assert text.count("SCALE = 3\n") == 2
    text, _ = script(tmp_path, [history.call(job, (), {}, ranks) for ranks in ((2,), (0, 1, 2))], 3)
    assert [text.count(line) for line in ("if _RANK == 2:\n    from", "if _RANK in (0, 1):\n    from")] == [1, 1]
    assert text.count("    SCALE = 3\n") == 2


def test_a_called_function_comes_with_what_it_uses(tmp_path):
    """Its source, the functions, constants and imports of its notebook, once; and its arguments."""
    steps = [history.call(job, (5,), {}, (0, 1)), history.call(functools.partial(job, k=2), (), {}, (0, 1))]
    text, report = script(tmp_path, steps)
    assert text.count("SCALE = 3\n") == text.count("def helper(x):") == text.count("def job(") == 1
    assert "from collections import Counter\n" in text
    assert "_show_value(job(_RANK, _WORLD_SIZE, 5))\n" in text
    assert "_show_value(job(_RANK, _WORLD_SIZE, k=2))\n" in text
    assert report.missing == ()


def test_arguments_of_a_partial_keep_their_places(tmp_path):
    """Its positional ones come before the rank, those of cluster.run after it, as in the call itself."""
    step = history.call(functools.partial(helper, 10, k=2), (5,), {"k": 3}, (0, 1))
    assert "_show_value(helper(10, _RANK, _WORLD_SIZE, 5, k=3))\n" in script(tmp_path, [step])[0]


def test_lambdas_are_told_apart(tmp_path):
    """Two on one line are both written, each in its call."""
    both = [lambda rank, world_size: rank * 2, lambda rank, world_size: rank * 3]
    text, _ = script(tmp_path, [history.call(fn, (), {}, (0, 1)) for fn in both])
    assert "_show_value((lambda rank, world_size: rank * 2)(_RANK, _WORLD_SIZE))" in text
    assert "_show_value((lambda rank, world_size: rank * 3)(_RANK, _WORLD_SIZE))" in text


def test_names_of_the_ranks_are_not_overwritten(notebook, tmp_path):
    """A cell's own value is back after the call, and a `rank` of the notebook never takes the place of the rank."""
    steps = [cell("WIDTH = 2"), history.call(notebook["outer"], (), {}, (0, 1)), cell("WIDTH")]
    text, _ = script(tmp_path, steps)
    assert "rank = 7" not in text
    assert run(text, 1) == [(4, 1), 2]


@pytest.mark.parametrize(
    "source",
    [
        "SCALE = 9",
        "if world_size == 2:\n    SCALE = 9",
        "def change():\n    global SCALE\n    SCALE = 9\n\n\nchange()",
        "SCALE = 3\nSCALE += 6",
        "def helper(x): return 0\n\n\nSCALE = 9",
        "def job(rank, world_size): return 0\n\n\nCounter, SCALE = None, 9",
    ],
)
def test_a_call_has_the_notebooks_values_and_a_cell_its_own(tmp_path, source):
    """As on the ranks: a function brings the notebook's names along and touches none of theirs, call after call."""
    steps = [cell(source), history.call(job, (), {}, (0, 1)), cell("SCALE")]
    text, report = script(tmp_path, [*steps, *steps[1:]])
    assert run(text, 1) == [3, 9, 3, 9]
    assert report.missing == ()


def test_a_name_that_only_some_ranks_came_to_define_is_kept_there(tmp_path):
    """A cell that all ran defined it under a condition."""
    steps = [cell("if rank: SCALE = 9"), history.call(job, (), {}, (0, 1)), cell("if rank: print(SCALE)")]
    text, _ = script(tmp_path, steps)
    assert [run(text, rank) for rank in (0, 1)] == [[0], [3]]


@pytest.mark.parametrize(
    "source",
    [
        "SCALE = 3  # as there",
        "from collections import Counter, OrderedDict",
        "import collections as Counter\nfrom collections import Counter",
        "def helper(x):\n    # as there\n    return (SCALE * x + len(Counter()))",
        "other = 3",
        "@torch.no_grad()\ndef other(): return 3",
    ],
)
def test_what_notebook_and_cell_define_alike_is_not_kept(tmp_path, source):
    """The same number, the same import however it is written, the same function but for comments and layout."""
    text, _ = script(tmp_path, [cell(source), history.call(job, (), {}, (0, 1))])
    assert ("_KEPT" in text) == ("as Counter" in source)
    assert run(text, 1) == [3]


def test_a_module_is_the_same_however_it_is_imported():
    """By what this process has under the names; a name that it does not have is another."""
    notebook = history.value_of(torch.nn.functional).line + " as F"
    assert rewriting.is_same("F", "import torch.nn.functional as F", notebook)
    assert not rewriting.is_same("F", "import torch.nn as F", notebook)
    assert not rewriting.is_same("F", "import not_there as F", notebook)
    assert not rewriting.is_same("F", "F = 1", notebook)
    loader = history.value_of(torch.utils.data.DataLoader).line
    assert rewriting.is_same("DataLoader", "from torch.utils.data import Dataset, DataLoader", loader)


def test_a_list_of_the_notebook_is_another_than_that_of_a_cell(tmp_path, monkeypatch):
    """Also where both began alike: what a call appends, the cell's own does not get."""
    monkeypatch.setitem(globals(), "ZERO", 0)
    steps = [cell("LOG = []\nLOG.append(7)"), history.call(factorial, (), {}, (0, 1)), cell("LOG")]
    text, _ = script(tmp_path, steps)
    assert run(text) == [6, [7]]


@pytest.mark.parametrize("before", [True, False])
def test_a_pushed_function_has_the_notebooks_values_for_good(tmp_path, before):
    """As on the ranks, where it has names of its own: cells that define the same, before or later, do not change it."""
    own, pushed = cell("SCALE = 9"), history.push({"helper": helper, "again": helper}, (0, 1))
    steps = [*([own, pushed] if before else [pushed, own]), cell("helper(1), again(1), SCALE")]
    text, report = script(tmp_path, steps)
    assert run(text) == [(3, 3, 9)]
    assert report.missing == ()
    assert "_KEPT" not in text


def test_a_pushed_function_is_written_plainly_where_no_name_is_in_its_way(tmp_path, monkeypatch):
    """A later call that has another value leaves the pushed function its own."""
    steps = [history.push({"helper": helper}, (0, 1))]
    monkeypatch.setitem(globals(), "SCALE", 5)
    steps += [history.call(job, (), {}, (0, 1)), cell("helper(1)")]
    text, _ = script(tmp_path, steps)
    assert "\nSCALE = 3\n\n\ndef helper(x):" in text
    assert "def _pushed" not in text
    assert run(text, 1) == [5, 3]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1.5, "1.5"),
        (float("inf"), "float('inf')"),
        ((1,), "(1,)"),
        ({}, "{}"),
        ([torch.ones(1)], ""),
        ("x" * 300, ""),
        (list(range(100)), ""),
        ([[[[[1]]]]], ""),
    ],
)
def test_short_values_are_written_as_they_are(value, text):
    """What is short and plain has an expression that makes it; the rest has none."""
    assert history.literal(value) == text


def test_a_note_keeps_no_tensor_alive():
    """What is remembered of a push or a call holds neither tensors nor closures."""
    import gc
    import weakref

    def noted(tensor):
        steps = [history.push({"t": tensor}, (0,)), history.call(lambda rank, world_size: tensor, (tensor,), {}, (0,))]
        return steps, weakref.ref(tensor)

    steps, seen = noted(torch.ones(3))
    gc.collect()
    assert seen() is None
    assert len(steps) == 2


def test_a_file_that_is_there_is_kept(tmp_path):
    """Nothing is overwritten without being told to, and the message says how."""
    there = tmp_path / "there.py"
    there.write_text("mine")
    with pytest.raises(ArgumentError) as caught:
        check_path(there, False)
    advice = "Choose another name, or replace the file: --force, in a call force=True."
    assert str(caught.value) == f"path must be the name of a file that is not there yet, got {str(there)!r}. {advice}"
    assert check_path(there, True) == there


@pytest.mark.parametrize("path", ["script", "script.txt", "not_there/script.py"])
def test_a_path_that_cannot_be_a_script_is_refused(path):
    """A script ends in .py, in a directory that is there."""
    with pytest.raises(ArgumentError, match=r"path must be the name of a \.py file in a directory that is there"):
        check_path(path, False)


def test_a_path_of_another_type_is_refused():
    """The type is wrong, not the value."""
    with pytest.raises(ArgumentTypeError, match="path must be a file's name, got 5"):
        check_path(5, False)


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
    text, report = script(tmp_path, [], backend="nccl")
    device = 'torch.cuda.set_device(int(_os.environ["LOCAL_RANK"]))'
    assert f'\n{device}\ndist.init_process_group("nccl")' in text
    assert report.left_out == ()
    assert "cuda" not in script(tmp_path, [])[0]


def test_display_is_defined_where_a_cell_uses_it(tmp_path):
    """A notebook's display is text in a script, and no script defines it without need."""
    assert "def display(" in script(tmp_path, [cell("display(1)")])[0]
    assert "def display(" not in script(tmp_path, [cell("print(1)")])[0]
    own = script(tmp_path, [cell("def display(x): pass\ndisplay(1)")])[0]
    assert own.count("def display(") == 1


def test_a_nested_function_is_written_without_its_indentation(tmp_path):
    """Its closure's values are written like those of its notebook."""
    k = 4

    def inner(rank, world_size):
        return k * rank

    text, _ = script(tmp_path, [history.call(inner, (), {}, (0, 1))])
    assert "k = 4\n" in text
    assert textwrap.dedent(text) == text
    assert "\ndef inner(rank, world_size):\n    return k * rank\n" in text


def test_strings_of_a_nested_function_keep_their_columns(tmp_path):
    """The margin that goes is that of the code, also where a line of a string, or of a list, begins left of it."""

    # fmt: off
    def inner(rank, world_size):
        return """
begin
        in between
""", [
    rank]

    steps = [history.call(fn, (), {}, (0, 1)) for fn in (inner, lambda rank, world_size:
        (rank, inner(rank, world_size)))]
    # fmt: on

    text, report = script(tmp_path, steps)
    assert run(text, 1) == [inner(1, 2), (1, inner(1, 2))]
    assert report.missing == ()


def test_a_nested_function_that_does_not_stand_alone_is_missing(tmp_path):
    """It changes a variable of the function around it; the script is Python and says so."""
    total = 0

    def count(rank, world_size):
        nonlocal total
        total += 1
        return total

    text, report = script(tmp_path, [history.call(count, (), {}, (0, 1))])
    assert report.missing == ("count (function)",)
    assert 'raise NotImplementedError("define count here (function): the notebook had it' in text


def test_a_variable_without_a_value_yet_is_no_error():
    """The function around has not come to it; noting a call must not fail where the call does not."""

    def around():
        def job(rank, world_size):
            return later

        return job
        later = 1

    assert history.call(around(), (), {}, [0]).fn.names == {}
