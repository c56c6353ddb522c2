"""Processes are noted while they are there."""

import subprocess
import sys
import time

from distlab_course.lives import Lives


def test_a_rank_and_its_lines_are_noted(tmp_path):
    """A process with a RANK is a rank; what goes to the file is noted with its time."""
    file = tmp_path / "out.txt"
    lives = Lives(file)
    process = subprocess.Popen(
        [sys.executable, "-c", "input()"], env={"RANK": "3"}, stdin=subprocess.PIPE
    )
    deadline = time.monotonic() + 60
    while not lives.seen() and time.monotonic() < deadline:
        time.sleep(0.01)
    file.write_text("epoch 0\n")
    while not lives.lines and time.monotonic() < deadline:
        time.sleep(0.01)
    process.communicate(b"\n")
    found, lines = lives.stop()
    (life,) = [life for life in found if life.rank == 3]
    assert life.begin <= life.end
    assert [text for _, text in lines] == ["epoch 0"]
