"""The exercises of the lessons and their answers, as they are committed.

pytest --nbval runs them again.

A lesson asks for each of its exercises in the order of `distlab.exercises()`, and nothing in it is
solved. The answers under the same name, in notebooks/solutions, pass every check, and show for each
exercise what its check says of wrong answers.
"""

import ast
import inspect
import re

from test_hygiene import code_cells, each_lesson, markdown_cells

from distlab.checking import Exercise, all_exercises, title_of_lab
from tests.tool import ROOT

ANSWERS = ROOT / "notebooks" / "solutions"
# of each exercise and of each question, at least
WRONG_FUNCTIONS = 3
WRONG_VALUES = 2


def asked_in(path):
    """The exercises and questions of a lesson by name, in the order of the course."""
    return {
        name: one for name, one in all_exercises().items() if path.name.startswith(one.notebook)
    }


def shown_by(cell):
    """All that a cell shows, as text."""
    return "\n".join(
        output.get("text") or output.get("data", {}).get("text/plain", "")
        for output in cell.outputs
    )


def checks(path):
    """(place among the code cells, name of the exercise, what is shown) of a notebook's checks."""
    found = []
    for place, cell in enumerate(code_cells(path)):
        names = re.findall(r'^distlab\.check\("(\w+)"', cell.source, re.MULTILINE)
        found += [(place, name, shown_by(cell)) for name in names]
    return found


def function_of(cell):
    """The name and arguments of the one function of a stub; None where the cell is none."""
    functions = [node for node in ast.parse(cell.source).body if isinstance(node, ast.FunctionDef)]
    is_stub = "raise NotImplementedError(" in cell.source
    return (
        (functions[0].name, ast.unparse(functions[0].args))
        if is_stub and len(functions) == 1
        else None
    )


@each_lesson
def test_a_lesson_asks_for_each_of_its_exercises(path):
    """It does so in the order of the course, each under its title.

    Each has a stub of its signature, and is not attempted.
    """
    cells = code_cells(path)
    asked = asked_in(path)
    found = checks(path)
    assert [name for _, name, _ in found] == list(asked)
    for place, name, shown in found:
        assert shown == f"{name}: not attempted", name
        if isinstance(asked[name], Exercise):
            arguments = str(inspect.signature(asked[name].function))[1:-1]
            assert function_of(cells[place - 1]) == (name, arguments), name
    text = "\n".join(cell.source for cell in markdown_cells(path))
    announced = re.findall(r"^\*\*Exercise (\d[\d.]*): (.*)\*\* \(", text, re.MULTILINE)
    assert [f"{number} {title.replace('`', '')}" for number, title in announced] == [
        one.title for one in asked.values()
    ]
    assert title_of_lab(path.name[:2]) == text.splitlines()[0].removeprefix(f"# {path.name[:2]} · ")


@each_lesson
def test_every_answer_passes_and_wrong_ones_do_not(path):
    """For each exercise the answers show a verdict that it passes, and then those of wrong ones."""
    asked = asked_in(path)
    found = {}
    for cell in code_cells(ANSWERS / path.name):
        for name, state in re.findall(
            r"^(\w+): (passed|not yet|not attempted)", shown_by(cell), re.MULTILINE
        ):
            found.setdefault(name, []).append(state)
    assert list(found) == list(asked)
    for name, (first, *others) in found.items():
        assert first == "passed", name
        wrong = WRONG_FUNCTIONS if isinstance(asked[name], Exercise) else WRONG_VALUES
        assert others.count("not yet") >= wrong, name
        assert "not attempted" not in others, name
