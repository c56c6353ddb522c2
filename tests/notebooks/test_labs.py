"""A lab fits into a lesson: its cells are few, and its minutes are what a learner needs."""

import re

from test_hygiene import LESSONS, each_lesson, read, without_code

WORDS_A_MINUTE = 150  # that a learner reads
MINUTES_A_CELL = 0.4  # to run it and look at what it shows
CORE_LABS = range(9)
EXERCISE = re.compile(r"^\*\*Exercise .*\*\* \((core|optional), (\d+) minutes?\)", re.MULTILINE)


def sections(path):
    """(heading, kind, stated minutes, estimated minutes) of sections that state their minutes."""
    found = []
    for cell in read(path).cells:
        if cell.cell_type == "code":
            cost = MINUTES_A_CELL
        else:
            if heading := re.match(r"## (.+)", cell.source):
                stated = re.search(
                    r"^\*(Core|Optional), (\d+) minutes?\.\*$", cell.source, re.MULTILINE
                )
                kind, minutes = (stated[1], int(stated[2])) if stated else ("", 0)
                found.append([heading[1], kind, minutes, 0.0])
            reading = len(" ".join(without_code(cell.source)).split()) / WORDS_A_MINUTE
            exercises = EXERCISE.findall(cell.source)
            cost = reading + sum(int(minutes) for kind, minutes in exercises if kind == "core")
        if found:
            found[-1][3] += cost
    return found


@each_lesson
def test_a_lab_is_short(path):
    """At most 90 core minutes; at most 90 cells in the core course, and 100 in a further lab."""
    cells = len(read(path).cells)
    core = int(path.name[:2]) in CORE_LABS
    assert cells <= (90 if core else 100)
    assert sum(minutes for _, kind, minutes, _ in sections(path) if kind == "Core") <= 90


@each_lesson
def test_the_minutes_are_honest_and_add_up(path):
    """Every section but the summary states its minutes, not fewer than it takes.

    The first cell states their sum.
    """
    found = sections(path)
    total = 0
    for heading, kind, minutes, estimate in found:
        if heading != "Summary":
            assert kind, f"{heading}: *Core, {round(estimate) or 1} minutes.*"
            assert minutes >= estimate - 1, (
                f"{heading}: {minutes} minutes are stated, {estimate:.1f} are needed"
            )
            total += minutes if kind == "Core" else 0
    assert re.search(rf"^Needs: .*\b{total} minutes\b", read(path).cells[0].source, re.MULTILINE), (
        total
    )


def test_the_core_course_is_there():
    """Nine labs, 00 to 08, and the further ones in parts."""
    numbers = [int(path.name[:2]) for path in LESSONS]
    assert [number for number in numbers if number in CORE_LABS] == list(CORE_LABS)
    assert len(set(numbers)) == len(numbers)
