"""Processes are noted while they are there."""

import subprocess
import sys
import time

from distlab_course.lives import Lives


def start(rank):
    """A process that looks like this rank and waits to be told to end."""
    command = [sys.executable, "-c", "input()"]
    return subprocess.Popen(command, env={"RANK": str(rank)}, stdin=subprocess.PIPE)


def wait_for(is_there):
    """Wait until this is true, for a minute at most."""
    deadline = time.monotonic() + 60
    while not is_there() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert is_there()


def test_a_rank_and_its_lines_are_noted(tmp_path):
    """A process with a RANK is a rank; what goes to the file is noted with its time."""
    file = tmp_path / "out.txt"
    lives = Lives(file)
    process = start(3)
    wait_for(lives.seen)
    file.write_text("epoch 0\n")
    wait_for(lambda: lives.lines)
    process.communicate(b"\n")
    found, lines = lives.stop()
    (life,) = [life for life in found if life.rank == 3]
    assert life.begin <= life.end
    assert [text for _, text in lines] == ["epoch 0"]


def test_a_rank_that_is_started_again_begins_after_the_end_of_the_first(tmp_path):
    """All times are of one clock, so that a picture can tell one attempt from the next."""
    lives = Lives(tmp_path / "out.txt")
    for attempt in (1, 2):
        process = start(3)
        wait_for(lambda expected=attempt: len(lives.seen()) == expected)
        process.communicate(b"\n")
    first, second = lives.stop()[0]
    assert first.end <= second.begin
