"""Finding and ending processes by their tag, and the doctor's findings."""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator

import psutil

from distlab import __main__ as doctor
from distlab.launch import reaper


@contextlib.contextmanager
def sleeper(tag: str, before: str = "pass") -> Iterator[subprocess.Popen]:
    """A process that carries the tag, and is gone afterwards."""
    command = ["env", f"{reaper.TAG}={tag}", sys.executable, "-uc"]
    code = f"import signal, time; {before}; print(); time.sleep(60)"
    with subprocess.Popen([*command, code], stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        try:
            yield process
        finally:
            process.kill()


@contextlib.contextmanager
def guard(tag: str) -> Iterator[None]:
    """The tag's guard. Popen may return before the system shows the words of the new program."""
    with subprocess.Popen([sys.executable, reaper.__file__, str(os.getpid()), tag, "/no/folder"]) as process:
        try:
            while tag not in psutil.Process(process.pid).cmdline():
                time.sleep(0.01)
            yield
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


def test_the_doctor_prints_a_verdict_for_every_check(monkeypatch, capsys):
    """What a check raises gives status 1 and FAIL, not a traceback; advice is a note."""

    def fine():
        doctor.show("fine", "well")
        doctor.show("small", "low", "Do this.")

    def broken():
        raise OSError("no network")

    monkeypatch.setattr(sys, "argv", ["distlab", "doctor"])
    monkeypatch.setattr(doctor, "CHECKS", {"fine": fine})
    assert doctor.main() == 0
    monkeypatch.setattr(doctor, "CHECKS", {"broken": broken})
    assert doctor.main() == 1
    assert capsys.readouterr().out.splitlines() == [
        "OK    fine        well",
        "note  small       low",
        "                  Do this.",
        "Ranks work here.",
        "FAIL  broken      OSError: no network",
        "Ranks cannot work here yet.",
    ]


def test_the_doctor_cleans(capsys, monkeypatch):
    """--clean ends the leftovers, and only them: processes whose cluster has no guard."""
    monkeypatch.setattr(sys, "argv", ["distlab", "doctor", "--clean"])
    monkeypatch.setattr(doctor, "CHECKS", {})
    with sleeper("tag-with-a-guard") as mine, sleeper("tag-without") as orphan, guard("tag-with-a-guard"):
        assert doctor.main() == 0
        assert orphan.wait(timeout=5) == -15
        assert mine.poll() is None
    assert "processes of clusters whose notebook is gone" in capsys.readouterr().out
