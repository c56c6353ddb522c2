"""README.md and docs/ say nothing that does not hold."""

import json
import re
from collections import Counter
from typing import NamedTuple

from distlab.checking import all_exercises
from tests.processes import python
from tests.tool import ROOT

README = (ROOT / "README.md").read_text()
COURSE = (ROOT / "docs/course.md").read_text()
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]
EXERCISES = [one for one in all_exercises().values() if one.notebook.isdigit()]


def test_the_example_prints_what_it_says():
    """The README's example runs as a plain script, and prints the comment beside its print."""
    (example,) = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    said = re.findall(r"print\(.*\)  # (.*)", example)
    done = python("-c", example)
    assert done.returncode == 0, done.stderr
    printed = done.stdout.splitlines()
    assert [line for line in printed if line in said] == said, printed


def test_the_report_is_a_real_one():
    """docs/package.md shows the report that lab 00 has saved, but for the time that it took."""
    page = (ROOT / "docs/package.md").read_text()
    (report,) = re.findall(r"```text\n(DeadlockError: .*?)\n```", page, flags=re.DOTALL)
    cells = json.loads((ROOT / "notebooks/00_start_here.ipynb").read_text())["cells"]
    outputs = [
        output for cell in cells for output in cell.get("outputs", []) if "traceback" in output
    ]
    saved = ["\n".join(output["traceback"]) for output in outputs]
    assert re.sub(r"after \d+\.\d s", "", report) in [
        re.sub(r"after \d+\.\d s", "", text) for text in saved
    ]


def anchors(page):
    """The headings of a page, as links write them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", one).strip().lower().replace(" ", "-") for one in headings}


def test_links_exist():
    """Every file that a page links to is there, with the heading that is named."""
    for page in PAGES:
        for target in re.findall(r"\]\(([^)]+)\)", page.read_text()):
            if re.match(r"https?:", target):
                continue
            name, _, heading = target.partition("#")
            file = page.parent / name if name else page
            assert file.is_file(), (page.name, target)
            assert not heading or heading in anchors(file), (page.name, target)


def test_the_table_counts_the_exercises():
    """The table of the course lists the notebooks that there are, with their exercises' number.

    README's table is its beginning.
    """
    listed = set(re.findall(r"\(../notebooks/(\d\d_\w+\.ipynb)\)", COURSE))
    assert listed == {path.name for path in (ROOT / "notebooks").glob("[0-9]*.ipynb")}
    rows = re.findall(r"\(../notebooks/(\d\d)_\w+\.ipynb\) \| \d+ \| (\d+) \|", COURSE)
    assert dict(rows) == {
        number: str(count) for number, count in Counter(one.notebook for one in EXERCISES).items()
    }
    core = [line for line in COURSE.splitlines() if line.startswith("| [0")]
    own = [line for line in README.splitlines() if re.match(r"\| \[0[^|]*\| \d+ \| \d+ \|", line)]
    assert own == [line.replace("../notebooks", "notebooks") for line in core]


def test_the_afternoon_is_one():
    """README's path names sections and exercises that exist, with their minutes and their sum.

    A section takes what it states, without those of its exercises that the path leaves out.
    """
    row = re.compile(
        r"^\| \[.*\]\((notebooks/.*\.ipynb)\) \| ([\d, ]+) \| ([\d.,\s]*) \| (\d+) \|", re.M
    )
    rows = row.findall(README)
    assert len(rows) >= 5
    total = 0
    for path, numbers, exercises, minutes in rows:
        needed = 0
        taken = exercises.split(", ") if exercises.strip() else []
        known = {}
        for section in sections_of(ROOT / path):
            known[section.number] = section
        for number in numbers.split(", "):
            section = known[number]
            assert section.kind == "Core", (path, number)
            needed += section.minutes
            for exercise, its_minutes in section.exercises.items():
                if exercise not in taken:
                    needed -= its_minutes
        assert int(minutes) == needed, (path, needed)
        offered = [name for number in numbers.split(", ") for name in known[number].exercises]
        assert set(taken) <= set(offered), path
        total += needed
    assert f"That is {total} minutes in all." in README
    assert 150 <= total <= 240


class Section(NamedTuple):
    """A section of a lab: its number, "Core" or "Optional", its minutes, and those of its core
    exercises by number.
    """

    number: str
    kind: str
    minutes: int
    exercises: dict[str, int]


def sections_of(path):
    """The sections of a lab, as their headings state them."""
    found = []
    for cell in json.loads(path.read_text())["cells"]:
        text = "".join(cell["source"])
        heading = re.search(r"^## (\d+) .*\n+\*(Core|Optional), (\d+) minutes?", text, re.MULTILINE)
        if heading:
            found.append(Section(heading[1], heading[2], int(heading[3]), {}))
        for exercise in re.finditer(r"^\*\*Exercise ([\d.]+): .*\(core, (\d+)", text, re.MULTILINE):
            found[-1].exercises[exercise[1]] = int(exercise[2])
    return found
