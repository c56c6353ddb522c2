"""What `check`, `hint` and `progress` do without ranks."""

import pytest

import distlab
import distlab_course.exercises  # noqa: F401  registers them, also without an installation
from distlab.checking import Question, all_exercises
from distlab.simulated import trial
from tests.refused import refused

CORE = 5


@pytest.fixture(autouse=True)
def progress_file(tmp_path, monkeypatch):
    """Where this test's progress is kept."""
    monkeypatch.setenv("DISTLAB_PROGRESS", str(tmp_path / "progress.json"))
    return tmp_path / "progress.json"


def test_the_course_has_its_exercises():
    """At least five in each notebook, in the order of the course, each with a statement and a hint."""
    assert distlab.exercises() == list(all_exercises())
    notebooks = [one.notebook for one in all_exercises().values()]
    assert notebooks == sorted(notebooks)
    assert all(notebooks.count(f"{number:02}") >= CORE for number in range(10))
    for one in all_exercises().values():
        assert one.statement, one.name
        assert one.hints, one.name
        assert not isinstance(one, Question) or one.why, one.name


def test_an_unknown_name_gets_the_nearest_ones():
    """The error names them, and where all names are."""
    near = "Perhaps 'my_square' or 'my_role'? distlab.exercises() lists them."
    words = f"name must be that of an exercise, got 'my_sqare'. {near}"
    assert str(refused(distlab.check, "my_sqare", None)) == words
    words = "name must be that of an exercise, got 3. distlab.exercises() lists them."
    assert str(refused(distlab.hint, 3, kind=distlab.ArgumentTypeError)) == words


@pytest.mark.parametrize(
    ("answer", "got"),
    [(3, "callable, got 3."), (lambda: None, "a function fn(tensor), got '<lambda>()'.")],
)
def test_what_cannot_be_called_as_asked_is_refused(answer, got):
    """Before any rank is started."""
    words = f'fn must be {got} Call distlab.check("ring_all_reduce", fn) with a function fn(tensor).'
    assert str(refused(distlab.check, "ring_all_reduce", answer, kind=distlab.ArgumentTypeError)) == words


def test_hints_come_in_stages():
    """Each says how to get the next one; one that is not there is refused."""
    first, last = repr(distlab.hint("ring_all_reduce")), repr(distlab.hint("ring_all_reduce", 3))
    assert first.endswith('\n(Hint 1 of 3. The next one: distlab.hint("ring_all_reduce", 2))')
    assert last.endswith("\n(Hint 3 of 3.)")
    words = 'number must be from 1 to 3 for ring_all_reduce, got 4. Call distlab.hint("ring_all_reduce").'
    assert str(refused(distlab.hint, "ring_all_reduce", 4)) == words


def test_a_question_is_judged_at_once():
    """Not attempted, wrong, of a wrong type, or right with the reason, which is remembered."""
    assert repr(distlab.check("bus_factor", ...)) == "bus_factor: not attempted"
    assert repr(distlab.check("bus_factor", 2)) == "bus_factor: not yet. 2 is not it."
    assert repr(distlab.check("bus_factor", [2])) == "bus_factor: not yet. [2] is not it."
    assert repr(distlab.check("bus_factor", 1.75)).startswith("bus_factor: passed. 2 (n - 1) / n is 1.75")
    assert next(row for row in distlab.progress().rows if row[0] == "02")[1].startswith("1 of ")


@pytest.mark.parametrize("content", ["", "{", "[]", '{"passed": 3}', '{"passed": [1, "no_such_exercise"]}'])
def test_a_damaged_file_counts_as_empty(progress_file, content):
    """Progress is no reason for a check to fail."""
    progress_file.write_text(content)
    assert all(row[1].startswith("0 of ") for row in distlab.progress().rows)
    assert distlab.check("bus_factor", 1.75).passed


def test_a_file_that_cannot_be_written_is_no_error(monkeypatch, tmp_path):
    """The verdict is the same."""
    monkeypatch.setenv("DISTLAB_PROGRESS", str(tmp_path / "missing" / "progress.json"))
    assert distlab.check("bus_factor", 1.75).passed


def torch_of(*values, dtype=None):
    import torch

    return torch.tensor(values, dtype=dtype)


@pytest.mark.parametrize(
    ("expected", "actual", "why"),
    [
        (
            torch_of(1, 2),
            None,
            "Nothing is returned: is a `return` missing? (`dist.all_reduce` and its like return nothing themselves.)",
        ),
        (torch_of(1, 2), torch_of(1), "The shape is (1,) where (2,) is right."),
        (torch_of(1, 2), torch_of(1.0, 2.0), "The dtype is float32 where int64 is right."),
        (torch_of(1, 2), torch_of(7, 7), "The tensor is still as it was given: the result has to be in it."),
        (torch_of(1, 2), torch_of(3, 6), "Every value is 3 times too large, and there are 3 ranks."),
        (torch_of(3.0, 6.0), torch_of(1.0, 2.0), "Every value is 3 times too small, and there are 3 ranks."),
        (torch_of(1, 2), torch_of(1, 3), "1 of 2 values are wrong, the first at index 1."),
        (torch_of(1, 2), torch_of(9, 8), ""),
        ([1, 2], "text", "It is of type str where list is right."),
        (2.0, 3, ""),
    ],
)
def test_what_a_wrong_value_looks_like(expected, actual, why):
    """A sentence that holds for any exercise, where there is one."""
    assert not trial._alike(expected, actual)
    assert trial._why(expected, actual, (torch_of(7, 7),), 3) == why


@pytest.mark.parametrize(
    ("expected", "actual"),
    [
        (torch_of(1.0, 2.0), torch_of(1.0, 2.0000001)),
        (2.0, 2),
        ([1.0, "a"], [1, "a"]),
        (torch_of(float("nan")), torch_of(float("nan"))),
    ],
)
def test_what_rounding_changes_is_alike(expected, actual):
    """A last digit, or an int for a float."""
    assert trial._alike(expected, actual)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ((torch_of(1.0, 2.5),), "[1, 2.5]"),
        ((), ""),
        (list(range(20)), "[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, ...]"),
        (torch_of([1, 2], [3, 4]), "(2, 2): [1, 2, 3, 4]"),
        ("x" * 100, "'" + "x" * 56 + "..."),
    ],
)
def test_values_are_told_in_few_characters(value, words):
    """Whole numbers without a point, and long ones cut."""
    assert trial._words(value) == words
