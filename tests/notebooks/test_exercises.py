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
from test_labs import CORE_LABS

from distlab.checking import Exercise, all_exercises, title_of_lab
from tests.tool import ROOT

ANSWERS = ROOT / "notebooks" / "solutions"
# of each exercise and of each question, at least
WRONG_FUNCTIONS = 3
WRONG_VALUES = 2


def asked_in(path):
    """The exercises and questions of a lesson by name, in the order of the course."""
    asked = {}
    for name, exercise in all_exercises().items():
        if path.name.startswith(exercise.notebook):
            asked[name] = exercise
    return asked


def shown_by(cell):
    """All that a cell shows, as text."""
    texts = []
    for output in cell.outputs:
        text = output.get("text") or output.get("data", {}).get("text/plain", "")
        texts.append(text)
    return "\n".join(texts)


def checks(path):
    """(place among the code cells, name of the exercise, what is shown) of a notebook's checks."""
    found = []
    for place, cell in enumerate(code_cells(path)):
        names = re.findall(r'^distlab\.check\("(\w+)"', cell.source, re.MULTILINE)
        found += [(place, name, shown_by(cell)) for name in names]
    return found


def function_of(cell):
    """The name and arguments of the one function of a stub; None where the cell is none."""
    if "raise NotImplementedError(" not in cell.source:
        return None
    functions = [node for node in ast.parse(cell.source).body if isinstance(node, ast.FunctionDef)]
    if len(functions) != 1:
        return None
    (function,) = functions
    return function.name, ast.unparse(function.args)


@each_lesson
def test_a_lesson_asks_for_each_of_its_exercises(path):
    """In the order of the course, each with a stub of its signature, and not attempted."""
    cells = code_cells(path)
    asked = asked_in(path)
    found = checks(path)
    assert [name for _, name, _ in found] == list(asked)
    for place, name, shown in found:
        assert shown == f"{name}: not attempted", name
        if isinstance(asked[name], Exercise):
            signature = str(inspect.signature(asked[name].function))
            arguments = signature.removeprefix("(").removesuffix(")")
            assert function_of(cells[place - 1]) == (name, arguments), name


@each_lesson
def test_titles_are_those_of_the_exercises(path):
    """The page and `distlab.progress()` have the same titles, of the lab and of its exercises."""
    text = "\n".join(cell.source for cell in markdown_cells(path))
    titles = []
    for number, title in re.findall(r"^\*\*Exercise (\d[\d.]*): (.*)\*\* \(", text, re.MULTILINE):
        titles.append(f"{number} {title.replace('`', '')}")
    assert titles == [exercise.title for exercise in asked_in(path).values()]
    lab = path.name[:2]
    assert text.splitlines()[0] == f"# {lab} · {title_of_lab(lab)}"


@each_lesson
def test_half_of_the_exercises_of_a_further_lab_are_tried_on_ranks(path):
    """A formula and a question are tried in one process, and the others on two ranks or more."""
    if int(path.name[:2]) in CORE_LABS:
        return
    exercises = asked_in(path).values()
    on_ranks = [one for one in exercises if isinstance(one, Exercise) and max(one.worlds) > 1]
    assert 2 * len(on_ranks) >= len(exercises)


@each_lesson
def test_every_answer_passes_and_wrong_ones_do_not(path):
    """For each exercise the answers show a verdict that it passes, and then those of wrong ones."""
    asked = asked_in(path)
    verdict = re.compile(r"^(\w+): (passed|not yet|not attempted)", re.MULTILINE)
    found = {}
    for cell in code_cells(ANSWERS / path.name):
        for name, state in verdict.findall(shown_by(cell)):
            found.setdefault(name, []).append(state)
    assert list(found) == list(asked)
    for name, (first, *others) in found.items():
        assert first == "passed", name
        is_function = isinstance(asked[name], Exercise)
        wrong = WRONG_FUNCTIONS if is_function else WRONG_VALUES
        assert others.count("not yet") >= wrong, name
        assert "not attempted" not in others, name
