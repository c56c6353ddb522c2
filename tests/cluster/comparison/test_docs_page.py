"""docs/silent_mistakes.md: its programs get the verdicts that it shows, and its fixes hold.

Runs in pytest's process; `printed_by_hand` and the functions that it calls run on every rank.
"""

import contextlib
import importlib.util
import io
import re

import pytest
import torch
import torch.distributed as dist

import distlab
from tests.tool import ROOT, load

RANKS_OF_NOTEBOOK = 4
PAGE = (ROOT / "docs/silent_mistakes.md").read_text()
README = (ROOT / "README.md").read_text()
EXAMPLE = re.compile(
    r"```python\n# (?P<name>\w+)\.py\n(?P<program>.*?)```\n\n"
    r"```text\n(?P<verdict>.*?)```\n\n"
    r"```diff\n(?P<fix>.*?)```",
    re.DOTALL,
)
EXAMPLES = {found["name"]: found for found in EXAMPLE.finditer(PAGE)}
CELL = re.search(r"```python\n(%%px.*?)```\n\n```text\n(.*?)```", PAGE, re.DOTALL)
CHECKS = "".join(re.findall(r"```python\n(def print_.*?)```", PAGE, re.DOTALL))


def fixed(program: str, fix: str) -> str:
    """A program with the lines of a diff of one hunk, which begins with a line that is kept."""
    lines = fix.splitlines(keepends=True)
    before = "".join(line[1:] for line in lines if line[0] in " -")
    after = "".join(line[1:] for line in lines if line[0] in " +")
    assert program.count(before) == 1
    return program.replace(before, after)


def train_of(program: str, path):
    """The function `train` of a program, which is imported as a file of its own."""
    path.write_text(program)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.train


def plain(verdict: str) -> str:
    """A verdict without sizes of differences, which another machine rounds otherwise."""
    return " ".join(re.sub(r"\d+(\.\d+)?e-\d+", "#", verdict).split())


def test_the_page_has_an_example_for_each_family():
    families = re.findall(r"^## (.*)", PAGE, re.MULTILINE)
    assert len(EXAMPLES) == PAGE.count("```diff") == 8
    assert len(families) > len(EXAMPLES)


def test_readme_shows_one_of_these_verdicts():
    """README has no program beside it, so its verdict is one of the page's."""
    (shown,) = re.findall(r"```text\n(.*?)```", README, re.DOTALL)
    assert shown in [example["verdict"] for example in EXAMPLES.values()]


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_program_gets_the_verdict_that_the_page_shows(name, usable, tmp_path):
    program = "# the name of the file\n" + EXAMPLES[name]["program"]
    verdict = distlab.compare(train_of(program, tmp_path / f"{name}.py"), worlds=(1, 4))
    assert not verdict.same
    assert plain(str(verdict)) == plain(EXAMPLES[name]["verdict"])


def test_the_picture_shows_what_is_found(usable, tmp_path):
    """figs/comparison.svg is drawn from plain numbers, which are those of the last example."""
    diagrams = load("diagrams")
    train = train_of(EXAMPLES["schedule"]["program"], tmp_path / "schedule.py")
    drawn = distlab.compare(train, worlds=(1, 4)).plot()
    assert drawn.alt.startswith(diagrams.VERDICT)
    (line,) = drawn.axes[0].lines
    assert line.get_ydata()[1:] == pytest.approx([diagrams.FOUND[1], diagrams.FOUND[2]], rel=0.05)


@pytest.mark.parametrize("name", EXAMPLES)
def test_with_its_fix_a_program_is_the_same(name, usable, tmp_path):
    program = fixed(EXAMPLES[name]["program"], EXAMPLES[name]["fix"])
    verdict = distlab.compare(train_of(program, tmp_path / f"{name}.py"), worlds=(1, 4))
    assert verdict.same, str(verdict)


def test_a_cell_gets_the_verdict_that_the_page_shows(notebook):
    cell, verdict = CELL.groups()
    assert plain(notebook.text(cell)) == plain(verdict)


def test_the_table_has_a_report_for_every_mistake():
    """At least 25 mistakes, each with its factor, its cause, its fix and a public report."""
    rows = [line for line in PAGE.splitlines() if line.count(" | ") == 4 and "](https://" in line]
    assert len(rows) >= 25
    assert [row for row in rows if not row.startswith("| ") or not row.endswith(") |")] == []


def printed_by_hand(rank, world_size, checks, call):
    """What a check of the page prints on this rank."""
    names = {"torch": torch, "dist": dist, "rank": rank, "world_size": world_size}
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        exec(f"import collections\n{checks}", names)
        call(rank, names)
    return output.getvalue()


def drifted(rank, names):
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.constant_(model.weight, float(rank))
    names["print_drift"](model)


def too_small(rank, names):
    alone = torch.nn.Linear(2, 1, bias=False)
    model = torch.nn.Linear(2, 1, bias=False)
    alone.weight.grad = torch.tensor([[1.0, 2.0]])
    model.weight.grad = torch.tensor([[0.25, 0.5]])
    names["print_factors"](model, alone)


def unequal(rank, names):
    names["print_counts"](torch.tensor([1, 2, -100 if rank else 3]))


def repeated(rank, names):
    names["print_counted_rows"]([0, rank], total=5)


def alike(rank, names):
    torch.manual_seed(0)
    names["print_masks"]()


def motionless(rank, names):
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model.bias.grad = torch.ones(1)
    names["print_what_moves"](optimizer)


def test_the_checks_by_hand_find_what_they_look_for(usable):
    def printed(call):
        return usable.run(printed_by_hand, CHECKS, call)

    assert printed(drifted) == [f"weight {float(rank)}\n" for rank in range(4)]
    assert printed(too_small) == ["weight 0.25 0.0\n"] * 4
    assert printed(unequal) == ["[3, 2, 2, 2] are not equal\n"] * 4
    assert printed(repeated) == ["repeated: [0]\nnever: [4]\n"] * 4
    assert printed(motionless) == ["1 of 2 parameters have a gradient\n"] * 4
    for masks in printed(alike):
        rows = re.findall(r"\[([01, ]+)\]", masks)
        assert len(rows) == 4
        assert len(set(rows)) == 1
