"""Runs pytest as a program of its own, and reads what it found.

Where tests/warm_process.py is loaded, that program is forked, unless the test is of a new Python.
"""

import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
LONGEST = 280  # seconds


@dataclass(frozen=True)
class Outcome:
    """How a test has ended, the line about it, and all that was shown."""

    how: str
    line: str
    text: str


class Inner:
    """A run of pytest: `outcomes` by the test's name, `output`, `code`."""

    def __init__(self, folder, *words):
        report = folder / "report.xml"
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider"]
        command += ["-p", "tests.testing.quick_watch"]
        # of plugins that were imported before pytest began, as they are in a forked process
        command += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
        command += [f"--junitxml={report}", "-o", "junit_logging=all", *map(str, words)]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "120"}
        self.code, self.output = _run(command, folder, environment)
        cases = ElementTree.parse(report).iter("testcase") if report.exists() else ()
        self.outcomes = {case.get("name"): _outcome(case) for case in cases}


def _run(command, folder, environment):
    """The exit status of a program, and what it wrote, with stderr after stdout."""
    with tempfile.TemporaryFile("w+") as stdout, tempfile.TemporaryFile("w+") as stderr:
        ends = {"stdout": stdout, "stderr": stderr}
        program = subprocess.Popen(command, cwd=folder, env=environment, **ends)
        try:
            code = program.wait(timeout=LONGEST)
        finally:
            program.kill()  # if it has not ended
        text = ""
        for written in (stdout, stderr):
            written.seek(0)
            text += written.read()
    assert code is not None, f"pytest still runs after {LONGEST} s:\n{text}"
    return code, text


def _outcome(case):
    shown = "\n".join(part.text or "" for part in case if part.tag in ("system-out", "system-err"))
    for part in case:
        if part.tag in ("failure", "error", "skipped"):
            how = {"failure": "failed"}.get(part.tag, part.tag)
            return Outcome(how, part.get("message", ""), f"{part.text}\n{shown}")
    return Outcome("passed", "", shown)
