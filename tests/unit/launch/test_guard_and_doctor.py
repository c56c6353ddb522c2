"""Finding and ending processes by their tag, and the doctor's findings."""

import contextlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator

import psutil
import pytest

from distlab import __main__ as commands
from distlab import doctor, machine
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
    with subprocess.Popen(
        [sys.executable, reaper.__file__, str(os.getpid()), tag, "/no/folder"]
    ) as process:
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
        assert [process.pid for process in reaper.processes_of("tag-a")] == [stubborn.pid]
        reaper.end_processes(reaper.processes_of("tag-a"), patience=0.2)
        assert stubborn.wait(timeout=5) == -9
        assert other.poll() is None


def test_the_doctor_prints_a_verdict_for_every_check(monkeypatch, capsys):
    """What a check raises gives status 1 and FAIL, not a traceback; advice is a note."""

    def fine():
        doctor.print_finding("fine", "well")
        doctor.print_finding("small", "low", "Do this.")

    def broken():
        raise OSError("no network")

    monkeypatch.setattr(sys, "argv", ["distlab", "doctor"])
    monkeypatch.setattr(doctor, "CHECKS", {"fine": fine})
    assert commands.main() == 0
    monkeypatch.setattr(doctor, "CHECKS", {"broken": broken})
    assert commands.main() == 1
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
    with (
        sleeper("tag-with-a-guard") as mine,
        sleeper("tag-without") as orphan,
        guard("tag-with-a-guard"),
    ):
        assert commands.main() == 0
        assert orphan.wait(timeout=5) == -15
        assert mine.poll() is None
    assert "processes of clusters whose notebook is gone" in capsys.readouterr().out


def test_the_doctor_cleans_before_it_looks_at_hosts(capsys, monkeypatch):
    asked = []
    monkeypatch.setattr(sys, "argv", ["distlab", "doctor", "--clean", "--hosts", "a, b"])
    monkeypatch.setattr(reaper, "leftovers", list)
    monkeypatch.setattr(doctor, "check_hosts", lambda names, engines: asked.append(names))
    assert commands.main() == 0
    assert capsys.readouterr().out.splitlines() == [
        "ended 0 processes of clusters whose notebook is gone",
        "Ranks work on these hosts together.",
    ]
    assert asked == [["a", "b"]]


def test_the_doctor_looks_at_memory_disk_and_limits(capsys, monkeypatch):
    """A line each, in units that a person knows."""
    monkeypatch.setattr(machine, "free_memory", lambda: 7_500_000_000)
    monkeypatch.setattr(machine, "open_files", lambda: 1024)
    monkeypatch.setattr(machine, "tasks", lambda: machine.TaskLimit(500, 120, is_users=True))
    doctor.check_machine()
    said = dict(line[6:].split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert said["memory"] == "7.5 GB free; a rank takes about 60 MB, plus what it loads"
    assert re.fullmatch(
        r"[\d.]+ GB free in this folder, [\d.]+ GB for temporary files", said["disk"]
    )
    assert said["limits"] == "1024 open files, 500 processes and threads, of which 380 are free"


HELP = {
    ("--help",): "usage: distlab [-h] COMMAND",
    ("--help", "doctor"): "usage: distlab [-h] COMMAND",
    ("doctor", "--help"): "usage: python -m distlab doctor ",
    ("lab", "--help"): "usage: python -m distlab lab ",
    ("lab", "mine", "-h"): "usage: python -m distlab lab ",
    ("course", "--help"): "usage: python -m distlab course ",
    ("class", "--help"): "usage: python -m distlab class ",
}


@pytest.mark.parametrize("given", HELP)
def test_each_command_has_its_own_help(capsys, monkeypatch, given):
    monkeypatch.setattr(sys, "argv", ["distlab", *given])
    with pytest.raises(SystemExit, match=r"^0$"):
        commands.main()
    assert capsys.readouterr().out.startswith(HELP[given])


def test_the_general_help_says_what_each_command_does(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["distlab", "--help"])
    with pytest.raises(SystemExit):
        commands.main()
    said = capsys.readouterr().out
    assert "  doctor   check what this machine can do, and say what to change\n" in said
    assert "  lab      write missing lessons, and open JupyterLab on them\n" in said
    assert "  course   write the lessons into a folder\n" in said
    assert "--clean" not in said


def test_a_command_and_its_options_come_in_any_order(capsys, monkeypatch):
    monkeypatch.setattr(doctor, "CHECKS", {})
    monkeypatch.setattr(reaper, "leftovers", list)
    for given in (["doctor", "--clean"], ["--clean", "doctor"]):
        monkeypatch.setattr(sys, "argv", ["distlab", *given])
        assert commands.main() == 0
        assert "ended 0 processes" in capsys.readouterr().out
