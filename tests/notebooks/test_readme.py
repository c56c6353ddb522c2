"""README.md says nothing that does not hold."""

import json
import re
from collections import Counter

from distlab.checking import all_exercises
from tests.processes import python
from tests.tool import ROOT

README = (ROOT / "README.md").read_text()
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
    """The README shows the report that lab 00 has saved, but for the time that it took."""
    (report,) = re.findall(r"```\n(DeadlockError: .*?)\n```", README, flags=re.DOTALL)
    cells = json.loads((ROOT / "notebooks/00_start_here.ipynb").read_text())["cells"]
    outputs = [output for cell in cells for output in cell.get("outputs", []) if "evalue" in output]
    saved = [f"{output['ename']}: {output['evalue']}" for output in outputs]
    assert re.sub(r"after \d+\.\d s", "", report) in [re.sub(r"after \d+\.\d s", "", text) for text in saved]


def test_links_exist():
    """Every file that the README links to is there."""
    for target in re.findall(r"\]\(([^)]+)\)", README):
        assert re.match(r"https?:", target) or (ROOT / target).is_file(), target


def test_the_table_counts_the_exercises():
    """The table of the course lists the notebooks that there are, each with the number of its exercises."""
    listed = set(re.findall(r"\(notebooks/(\d\d_\w+\.ipynb)\)", README))
    assert listed == {path.name for path in (ROOT / "notebooks").glob("[0-9]*.ipynb")}
    rows = re.findall(r"\(notebooks/(\d\d)_\w+\.ipynb\) \| \d+ \| (\d+) \|", README)
    assert dict(rows) == {number: str(count) for number, count in Counter(one.notebook for one in EXERCISES).items()}
