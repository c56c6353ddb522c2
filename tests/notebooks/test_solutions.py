"""The answers to the exercises: each stub has one, they pass the lesson's own checks, and neither drifts from the other.

A lesson's stub is a function that raises NotImplementedError("exercise 1.1: ..."); the check in the cell after it ends
with report("1.1", ...). That the answers still run is compared by pytest --nbval, like every other output.
"""

import ast
import re

import pytest
from test_exercises import EXERCISES
from test_hygiene import code_cells, markdown_cells

from tests.tool import ROOT

NOTEBOOKS = ROOT / "notebooks"
ANSWERED = sorted((NOTEBOOKS / "solutions").glob("[0-9]*.ipynb"))

each_answered = pytest.mark.parametrize("path", ANSWERED, ids=lambda path: path.stem)


def function_of(source):
    """The name, arguments and docstring of the first function of a cell; None where it has none."""
    tree = ast.parse(re.sub(r"^%.*$", "", source, flags=re.MULTILINE))
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    return (functions[0].name, ast.unparse(functions[0].args), ast.get_docstring(functions[0])) if functions else None


def is_stub(cell):
    return "raise NotImplementedError(" in cell.source


def exercises(path):
    """{exercise: (stub, check)} of a lesson."""
    cells = code_cells(path)
    found = {}
    for stub, check in zip(cells, cells[1:], strict=False):
        if is_stub(stub):
            (number,) = re.findall(r'raise NotImplementedError\("exercise (\d+\.\d+): \S', stub.source)
            found[number] = (stub, check)
    return found


def printed(cell):
    return "".join(output.get("text", "") for output in cell.outputs)


def lessons_with_stubs():
    return [path for path in sorted(NOTEBOOKS.glob("[0-9]*.ipynb")) if any(is_stub(cell) for cell in code_cells(path))]


def test_every_lesson_with_exercises_is_answered():
    """A lesson whose exercises are stubs has answers under the same name, or in test_exercises, and there are no others."""
    elsewhere = {f"{name}.ipynb" for name in EXERCISES}
    answered = [path.name for path in lessons_with_stubs() if path.name not in elsewhere]
    assert answered == [path.name for path in ANSWERED]


@each_answered
def test_an_unsolved_exercise_is_no_error(path):
    """In the lesson each stub is announced in the text, and its check says that it was not attempted."""
    lesson = NOTEBOOKS / path.name
    text = "\n".join(cell.source for cell in markdown_cells(lesson))
    for number, (_, check) in exercises(lesson).items():
        assert f"**Exercise {number}**" in text
        assert check.source.rstrip().splitlines()[-1].startswith(f'report("{number}", ')
        assert printed(check) == f"exercise {number}: not attempted\n"


@each_answered
def test_every_answer_passes_the_lessons_own_check(path):
    """For each stub the answers have its function, unchanged but for its body, and then its check, which passed.

    The cells around the answers are cells of the lesson, word for word.
    """
    answers, stubs = code_cells(path), exercises(NOTEBOOKS / path.name)
    known = {cell.source for cell in code_cells(NOTEBOOKS / path.name)}
    functions = [function_of(stub.source) for stub, _ in stubs.values()]
    for cell in answers:
        assert cell.source in known or function_of(cell.source) in functions, cell.source
    for number, (stub, check) in stubs.items():
        (place,) = [i for i, cell in enumerate(answers) if function_of(cell.source) == function_of(stub.source)]
        assert not is_stub(answers[place])
        assert answers[place + 1].source == check.source, f"the check of {number} is not the lesson's"
        assert printed(answers[place + 1]) == f"exercise {number}: passed\n"
