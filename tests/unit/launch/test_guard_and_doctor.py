"""Finding and ending processes by their tag, and the doctor's findings."""

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator

import pytest

from distlab import __main__ as doctor
from distlab.launch import reaper


@contextlib.contextmanager
def sleeper(tag: str, *around: str, before: str = "pass") -> Iterator[subprocess.Popen]:
    """A process that carries the tag, and is gone afterwards; `around`: words before its command."""
    command = [*around, "env", f"{reaper.TAG}={tag}", sys.executable, "-uc"]
    code = f"import signal, time; {before}; print(); time.sleep(60)"
    with subprocess.Popen([*command, code], stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        try:
            yield process
        finally:
            process.kill()


def test_processes_are_found_by_their_tag_and_ended_even_when_they_ignore_it():
    """Only processes with the tag are found; one that ignores SIGTERM is killed."""
    ignores = "signal.signal(signal.SIGTERM, signal.SIG_IGN)"
    with sleeper("tag-a", before=ignores) as stubborn, sleeper("tag-b") as other:
        assert [process.pid for process in reaper.find("tag-a")] == [stubborn.pid]
        reaper.end(reaper.find("tag-a"), patience=0.2)
        assert stubborn.wait(timeout=5) == -9
        assert other.poll() is None


def test_processes_of_a_container_are_no_leftovers():
    """Seen from outside of its container, a live cluster's owner has another number: its processes are let alone."""
    unshare = ["unshare", "--pid", "--fork", "--kill-child"]
    if not shutil.which("unshare") or subprocess.call([*unshare, "true"], stderr=subprocess.DEVNULL):
        pytest.skip("this user may not make a pid namespace")
    tag = f"{os.getpid()}-1.00-in-a-container"
    with sleeper(tag, *unshare):
        found, left = reaper.find(tag), reaper.leftovers()
    assert len(found) == 1
    assert found[0] not in left


def test_the_doctor_prints_a_verdict_for_every_check(monkeypatch, capsys):
    """A vital finding that is not OK gives status 1 and FAIL; a crash of a check is a finding, not a traceback."""

    def check_fine():
        yield doctor.Finding("fine", "well")

    def check_small():
        yield doctor.Finding("small", "low", ok=False, advice="Do this.")

    def check_broken():
        raise OSError("no network")
        yield

    monkeypatch.setattr(sys, "argv", ["distlab", "doctor"])
    monkeypatch.setattr(doctor, "CHECKS", {"fine": check_fine, "small": check_small})
    assert doctor.main() == 0
    monkeypatch.setattr(doctor, "CHECKS", {"fine": check_fine, "broken": check_broken})
    assert doctor.main() == 1
    assert capsys.readouterr().out.splitlines() == [
        "OK    fine        well",
        "note  small       low",
        "                  Do this.",
        "Ranks work here.",
        "OK    fine        well",
        "FAIL  broken      OSError: no network",
        "Ranks cannot work here yet.",
    ]


def test_the_doctor_cleans(capsys, monkeypatch):
    """--clean ends the leftovers, and only them: a tag names its owner, who may live, by pid and start time."""
    monkeypatch.setattr(sys, "argv", ["distlab", "doctor", "--clean"])
    monkeypatch.setattr(doctor, "CHECKS", {})
    another = f"{os.getpid()}-1.00-abc"  # a process of our pid, but of another start time
    with sleeper(f"{reaper.owner_of_this_process()}-abc") as mine, sleeper(another) as orphan:
        assert doctor.main() == 0
        assert orphan.wait(timeout=5) == -15
        assert mine.poll() is None
    assert "processes of clusters whose notebook is gone" in capsys.readouterr().out
