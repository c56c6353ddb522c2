"""The commands of `distlab`, each as a person starts it."""

import os
import subprocess
import sys

from tests.unit.scripts import recorded_stacks


def test_a_command_whose_output_nobody_reads_ends_quietly(tmp_path):
    (tmp_path / "stack0.txt").write_text(recorded_stacks.BARRIER)
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "wb") as nobody:
        ended = subprocess.run(
            [sys.executable, "-m", "distlab", "explain", str(tmp_path)],
            stdout=nobody,
            stderr=subprocess.PIPE,
            check=False,
        )
    assert (ended.returncode, ended.stderr) == (141, b"")
