"""What exercises say of themselves, and what `check`, `hint` and `progress` do without ranks."""

import errno
import html
import json
import os
import re
import stat
import threading
from collections import Counter
from pathlib import Path

import numpy
import pytest
import torch

import distlab
from distlab.checking import Exercise, Question, all_exercises, check, formula, progress, question
from tests.refused import refused
from tests.tool import ROOT

pytestmark = pytest.mark.usefixtures("progress_file")


def test_the_course_has_its_exercises():
    """At least three in each lab, in the order of the course, each with a statement and a hint."""
    course = {name: one for name, one in all_exercises().items() if one.notebook.isdigit()}
    notebooks = [one.notebook for one in course.values()]
    assert notebooks == sorted(notebooks)
    assert min(Counter(notebooks).values()) >= 3
    assert {f"{number:02}" for number in range(10)} <= {*notebooks}
    for name, one in course.items():
        assert one.name == name in distlab.exercises()
        assert one.texts(""), name
        assert one.texts("Hint"), name
        assert not isinstance(one, Question) or one.texts("Why"), name


def test_an_unknown_name_is_refused():
    """The error says which name was meant, if one is alike, and where all names are."""
    lists = "distlab.exercises() lists them."
    said = {
        "my_sqare": f'Did you mean "my_square"? {lists}',
        "ring all reduce": f'Did you mean "ring_all_reduce"? {lists}',
    }
    for name, advice in {**said, "": lists, "something else": lists, 3: lists}.items():
        for function in (distlab.check, distlab.hint):
            assert (
                str(refused(function, name, 1))
                == f"name must be that of an exercise, got {name!r}. {advice}"
            )


def test_hints_come_in_stages():
    """Each says how to get the next one; one that is not there is refused."""
    first = repr(distlab.hint("ring_all_reduce"))
    last = repr(distlab.hint("ring_all_reduce", 3))
    assert first.endswith(
        "\n(Hint 1 of 3 for 3.2 Ring all-reduce. "
        'For the next, call distlab.hint("ring_all_reduce", 2))'
    )
    assert last.endswith("\n(Hint 3 of 3 for 3.2 Ring all-reduce.)")
    words = (
        'number must be a whole number from 1 to 3, got 4. Call distlab.hint("ring_all_reduce").'
    )
    assert str(refused(distlab.hint, "ring_all_reduce", 4)) == words


@question("a test", [1.75, 2])
def two_numbers(answer):
    """Which two?

    Hint: Not these.
    Not (2, 2): The first one
    is less.
    Otherwise: There are two.

    Why: They are.
    """
    if answer[0] > 5:
        return f"{answer[0]} is too much."


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (None, "not attempted"),
        ((1.76, 2.0), "passed. They are."),
        (torch.tensor([1.75, 2]), "passed. They are."),
        ([1.75, 2.01], "not yet. There are two."),
        ([2, 2], "not yet. The first one is less."),
        ([6, 2], "not yet. 6 is too much."),
        (3, "not yet. 3 is not the answer."),
    ],
)
def test_a_question_is_judged_at_once(answer, words):
    """Floats within 1 %, tuples and tensors as lists; known mistakes come first."""
    assert repr(distlab.check("two_numbers", answer)) == f"two_numbers: {words}"


@pytest.mark.parametrize("truth", [True, numpy.True_, torch.tensor(True)])
def test_a_function_may_judge_by_any_truth(truth):
    """A comparison of numpy's or torch's gives one of its own, which is not Python's True."""
    asked = Question("50", function=lambda value: truth)
    assert distlab.check(asked, 3).passed


def test_an_exercise_is_tried_with_something():
    """Without a case an answer could only pass."""
    words = "cases must be one case or more, got (). For example: (8, 3)."
    assert str(refused(Exercise, "50", cases=())) == words
    assert str(refused(formula, "50")) == words
    assert str(refused(Exercise, "50", worlds=())).startswith("worlds must be one number of ranks")


NOT_PROGRESS = [
    "{",
    '{"passed": 3}',
    '{"passed": [1, "no_such_exercise"]}',
    '{"passed": [], "best": {"swap": "fast"}}',
]


@pytest.mark.parametrize("content", [*NOT_PROGRESS, None])
def test_progress_is_no_reason_to_fail(progress_file, content):
    """A damaged file counts as empty, and where none can be written the verdict is the same."""
    if content is None:
        progress_file.mkdir()
    else:
        progress_file.write_text(content)
    assert all(row[1].startswith("0 of ") for row in distlab.progress().rows)
    assert distlab.check("step_of_7b", 2.1).passed
    (row,) = [row for row in distlab.progress().rows if row[0] == "05"]
    assert row[1].startswith("0 of " if content is None else "1 of ")


@pytest.mark.skipif(not hasattr(os, "mknod") or os.geteuid() != 0, reason="only root makes devices")
def test_a_device_that_keeps_nothing_stays_a_device(progress_file):
    """DISTLAB_PROGRESS may be os.devnull, which root could replace."""
    os.mknod(progress_file, stat.S_IFCHR | 0o666, os.stat(os.devnull).st_rdev)
    assert distlab.check("step_of_7b", 2.1).passed
    assert stat.S_ISCHR(progress_file.stat().st_mode)
    assert list(progress_file.parent.iterdir()) == [progress_file]


def test_a_full_disk_leaves_no_half_of_a_file(progress_file, monkeypatch):
    """The verdict is the same, and nothing lies beside the notebook."""

    def write_a_half(path, text):
        path.touch()
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", write_a_half)
    assert distlab.check("step_of_7b", 2.1).passed
    assert list(progress_file.parent.iterdir()) == []


def remember_forty(kernel, both_are_there):
    both_are_there.wait()
    for number in range(40):
        progress.remember_passed(f"exercise {number} of {kernel}")


def test_two_notebooks_keep_each_others_exercises(progress_file):
    """Neither writes over what the other has just passed; no other file is left."""
    both_are_there = threading.Barrier(2)
    kernels = [
        threading.Thread(target=remember_forty, args=(name, both_are_there)) for name in "ab"
    ]
    for kernel in kernels:
        kernel.start()
    for kernel in kernels:
        kernel.join()
    passed = json.loads(progress_file.read_text())["passed"]
    assert sorted(passed) == sorted(
        f"exercise {number} of {kernel}" for number in range(40) for kernel in "ab"
    )
    assert list(progress_file.parent.iterdir()) == [progress_file]


def test_progress_names_the_labs_beside_it(monkeypatch):
    """The title of a lab in the folder is a link in HTML, and a text without files."""
    monkeypatch.chdir(ROOT / "notebooks")
    shown = distlab.progress()
    (row,) = [row for row in shown.rows if row[0] == "05"]
    assert row == ("05", "0 of 8", "1.1 Through rank 0", "Ring all-reduce", "░" * 10, "")
    assert '<a href="05_ring_all_reduce.ipynb">Ring all-reduce</a>' in shown._repr_html_()
    monkeypatch.chdir(ROOT)
    without = distlab.progress()
    assert without.rows == shown.rows
    assert "<a href" not in without._repr_html_()


VERDICTS = {
    check.Verdict(
        "my_square", True, words="4 cases."
    ): "1.1 A number of its own|passed|4 cases.\nNext: 2.1 In place",
    check.Verdict("my_square", False, words="Wrong."): "1.1 A number of its own|not yet|"
    'Wrong.\nStuck? distlab.hint("my_square")',
    check.Verdict(
        "product_of_five", True, words="It does."
    ): "7.1 A script of your own|passed|It does.",
    check.Verdict("my_own", False, words="Wrong."): "my_own|not yet|Wrong.",
}


@pytest.mark.parametrize("verdict", VERDICTS)
def test_a_verdict_says_what_to_do_next(verdict):
    """In a notebook: the exercise as its page calls it, then the next one, or a hint."""
    shown = html.unescape(re.sub("<[^>]+>", "", verdict._repr_html_()))
    title, state, words = re.fullmatch("(.*): \u00a0(.*)\u00a0 ((?s:.*))", shown).groups()
    assert f"{title}|{state}|{words}" == VERDICTS[verdict]
