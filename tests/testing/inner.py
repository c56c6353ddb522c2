"""Runs pytest as a program of its own, and reads what it found."""

import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]


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
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-p",
            "no:cacheprovider",
            "-p",
            "tests.testing.quick_watch",
        ]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "120"}
        options = {
            "cwd": folder,
            "env": environment,
            "capture_output": True,
            "text": True,
            "timeout": 280,
        }
        ended = subprocess.run(
            [*command, f"--junitxml={report}", "-o", "junit_logging=all", *words], **options
        )
        self.code, self.output = ended.returncode, ended.stdout + ended.stderr
        cases = ElementTree.parse(report).iter("testcase") if report.exists() else ()
        self.outcomes = {case.get("name"): _outcome(case) for case in cases}


def _outcome(case):
    shown = "\n".join(part.text or "" for part in case if part.tag in ("system-out", "system-err"))
    for part in case:
        if part.tag in ("failure", "error", "skipped"):
            how = {"failure": "failed"}.get(part.tag, part.tag)
            return Outcome(how, part.get("message", ""), f"{part.text}\n{shown}")
    return Outcome("passed", "", shown)
