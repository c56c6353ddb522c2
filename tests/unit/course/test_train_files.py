"""Lab 08's files of the exercise "Your own train.py" are the same in all places."""

import nbformat

from distlab_course.train_files import DIGITS, OUR_TRAIN
from tests.tool import ROOT


def written_by(path):
    """What the %%writefile cells of a notebook write, by name."""
    files = {}
    for cell in nbformat.read(ROOT / "notebooks" / path, as_version=4).cells:
        if cell.source.startswith("%%writefile "):
            first, _, text = cell.source.partition("\n")
            files[first.split()[1]] = text.rstrip("\n")
    return files


def test_the_lesson_gives_what_the_check_puts_there():
    """digits.py is the lesson's, which a train.py imports where it is tried."""
    assert written_by("08_launching.ipynb")["digits.py"] == DIGITS.rstrip("\n")


def test_our_script_is_the_answer():
    """Where a learner has none, the lab runs the script of the answers."""
    assert written_by("solutions/08_launching.ipynb")["train.py"] == OUR_TRAIN.rstrip("\n")
