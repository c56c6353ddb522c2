"""A lab fits into a lesson: its cells are few, and its minutes are what a learner needs."""

import re
from dataclasses import dataclass

from test_hygiene import LESSONS, each_lesson, read, without_code

from tests.tool import ROOT

WORDS_A_MINUTE = 150  # that a learner reads
LINES_A_MINUTE = 10  # of code
MINUTES_A_PICTURE = 1
MINUTES_A_RUN = 0.1  # until a cell has run
CORE_LABS = range(10)
EXERCISE = re.compile(r"^\*\*Exercise .*\*\* \((core|optional), (\d+) minutes?\)", re.MULTILINE)
OF_AN_EXERCISE = re.compile(r"distlab\.check\(|NotImplementedError\(.exercise")


@dataclass
class Section:
    """A section of a lab, with the minutes that it states and those that it takes.

    Args:
        heading: without its number of signs.
        kind: "Core", "Optional", or "" if the section does not say.
        stated: minutes.
        needed: minutes of reading, running and looking, and of its core exercises; of its optional
            ones, too, if it is optional itself.
    """

    heading: str
    kind: str
    stated: int
    needed: float


def sections(path):
    """The sections of a lab; what comes before the first one counts as part of it."""
    found = []
    before = 0.0
    for cell in read(path).cells:
        if heading := re.match(r"## (.+)", cell.source):
            stated = re.search(
                r"^\*(Core|Optional), (\d+) minutes?\.\*$", cell.source, re.MULTILINE
            )
            kind = stated[1] if stated else ""
            found.append(Section(heading[1], kind, int(stated[2]) if stated else 0, before))
            before = 0.0
        if found:
            found[-1].needed += minutes_of(cell)
            if found[-1].kind == "Optional":
                found[-1].needed += of_optional_exercises(cell)
        else:
            before += minutes_of(cell)
    return found


def minutes_of(cell):
    """How long a learner takes for a cell.

    A stub and a check are part of their exercise, whose minutes the text states.
    """
    if cell.cell_type == "markdown":
        exercises = EXERCISE.findall(cell.source)
        pictures = cell.source.count("![")
        minutes = len(" ".join(without_code(cell.source)).split()) / WORDS_A_MINUTE
        minutes += sum(int(minutes) for kind, minutes in exercises if kind == "core")
        for block in re.findall(r"```\w*\n(.*?)```", cell.source, re.DOTALL):
            minutes += lines(block) / LINES_A_MINUTE
    elif OF_AN_EXERCISE.search(cell.source):
        return MINUTES_A_RUN
    else:
        pictures = sum("image/png" in output.get("data", {}) for output in cell.outputs)
        minutes = MINUTES_A_RUN + lines(cell.source) / LINES_A_MINUTE
    return minutes + pictures * MINUTES_A_PICTURE


def of_optional_exercises(cell):
    """The minutes that the optional exercises of a cell state."""
    return sum(
        int(minutes) for kind, minutes in EXERCISE.findall(cell.source) if kind == "optional"
    )


def lines(code):
    """How many lines of a piece of code are not empty."""
    return sum(bool(line.strip()) for line in code.splitlines())


@each_lesson
def test_a_lab_is_short(path):
    """At most 90 core minutes; at most 90 cells in the core course, and 100 in a further lab.

    A core lab fills a class: it has 75 minutes or more.
    """
    cells = len(read(path).cells)
    core = int(path.name[:2]) in CORE_LABS
    minutes = sum(section.stated for section in sections(path) if section.kind == "Core")
    assert cells <= (90 if core else 100)
    assert (75 if core else 0) <= minutes <= 90


@each_lesson
def test_the_minutes_are_honest_and_add_up(path):
    """Every section but the summary states its minutes, neither too few nor too many.

    The first cell states the sum of the core sections, which is within ten percent of what they
    need, and the sum of the optional ones.
    """
    stated = 0
    optional = 0
    needed = 0.0
    for section in sections(path):
        if section.heading == "Summary":
            needed += section.needed
            continue
        words = f"{section.heading} states {section.stated} minutes and needs {section.needed:.1f}"
        assert section.kind, f"{section.heading}: *Core, {round(section.needed) or 1} minutes.*"
        assert section.needed - 1 <= section.stated <= 1.1 * section.needed + 2, words
        if section.kind == "Core":
            stated += section.stated
            needed += section.needed
        else:
            optional += section.stated
    assert abs(stated - needed) <= 0.1 * needed, f"{stated} are stated, {needed:.0f} are needed"
    words = f"{stated} minutes"
    if optional:
        words += f" (and {optional} more for the optional section"
    assert re.search(
        rf"^Needs: .*\b{re.escape(words)}", read(path).cells[0].source, re.MULTILINE
    ), words


@each_lesson
def test_a_lab_asks_before_it_shows(path):
    """Three outputs or more are folded in each lab, so that a learner predicts first."""
    folded = [
        cell for cell in read(path).cells if cell.metadata.get("jupyter", {}).get("outputs_hidden")
    ]
    assert len(folded) >= 3


@each_lesson
def test_outputs_are_numbers_and_not_true(path):
    """A line that ends with "True" serves the test and not the reader: the number teaches."""
    for cell in read(path).cells:
        for output in cell.get("outputs", []):
            assert not re.search(r"\w.*: True$", output.get("text", ""), re.MULTILINE), cell.source


def test_the_core_course_is_there():
    """Ten labs, 00 to 09, and the further ones in parts."""
    numbers = [int(path.name[:2]) for path in LESSONS]
    assert [number for number in numbers if number in CORE_LABS] == list(CORE_LABS)
    assert len(set(numbers)) == len(numbers)


def test_topics_are_taught_where_the_table_says():
    """Each section that docs/course.md names for a topic is one of the lab."""
    table = (ROOT / "docs/course.md").read_text().partition("## Where a topic is taught")[2]
    named = re.findall(r"\[(\d\d)\]\([^)]*/(\w+\.ipynb)\) (\d+(?: and \d+)*)", table)
    headings = {path.name: [section.heading for section in sections(path)] for path in LESSONS}
    assert len(named) > 50
    for lab, name, numbers in named:
        assert name.startswith(lab)
        for number in numbers.split(" and "):
            assert any(heading.startswith(f"{number} ") for heading in headings[name]), (
                lab,
                number,
            )
