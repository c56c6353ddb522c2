"""A test that hangs is named: pytest-timeout itself shows only what each thread is doing."""

import subprocess
import sys

HANGS = """
import time
import pytest

@pytest.mark.parametrize("program", ["quick", "hung"])
def test_a_program(program):
    if program == "hung":
        time.sleep(60)
"""


def test_a_test_that_hangs_is_named(tmp_path):
    """The line is one of those that `make test` shows for a part that failed."""
    (tmp_path / "test_hangs.py").write_text(HANGS)
    options = [
        "-q",
        "-p",
        "tests.conftest",
        "--timeout=3",
        "--timeout-method=thread",
        "-c",
        "/dev/null",
    ]
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", *options, str(tmp_path / "test_hangs.py")],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.returncode == 1
    (line,) = [one for one in ended.stdout.splitlines() if one.startswith("FAILED")]
    assert line.endswith("test_hangs.py::test_a_program[hung] - it still runs after 3 s")
