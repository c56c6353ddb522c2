"""Finding and ending processes by their tag, and the doctor's findings."""

import os
import shutil
import subprocess
import sys
import time

import psutil
import pytest

from distlab import doctor, guard


def sleeper(tag: str, ignore_term: bool = False) -> subprocess.Popen:
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(); time.sleep(60)"
    code = code if ignore_term else "import time; print(); time.sleep(60)"
    environment = {**os.environ, guard.TAG: tag}
    process = subprocess.Popen([sys.executable, "-uc", code], env=environment, stdout=subprocess.PIPE)
    process.stdout.readline()
    return process


def test_processes_are_found_by_their_tag_and_ended_even_when_they_ignore_it():
    """Only processes with the tag are found; one that ignores SIGTERM is killed."""
    stubborn, other = sleeper("tag-a", ignore_term=True), sleeper("tag-b")
    try:
        assert [process.pid for process in guard.find("tag-a")] == [stubborn.pid]
        guard.end(guard.find("tag-a"), patience=0.2)
        assert stubborn.wait(timeout=5) == -9
        assert other.poll() is None
    finally:
        for process in (stubborn, other):
            process.kill()
            process.wait()
            process.stdout.close()


def test_leftovers_are_those_whose_owner_is_gone():
    """A tag names its owner by pid and start time: a living owner's processes are no leftovers, others are."""
    mine = sleeper(f"{guard.owner_of_this_process()}-abc")
    orphan = sleeper(f"{os.getpid()}-1.00-abc")  # a process of our pid, but of another start time
    try:
        left = [process.pid for process in guard.leftovers()]
        assert orphan.pid in left
        assert mine.pid not in left
    finally:
        for process in (mine, orphan):
            process.kill()
            process.wait()
            process.stdout.close()


def test_processes_of_a_container_are_no_leftovers():
    """Seen from outside of its container, a live cluster's owner has another number: its processes are let alone."""
    unshare = ["unshare", "--pid", "--fork", "--kill-child"]
    if not shutil.which("unshare") or subprocess.call([*unshare, "true"], stderr=subprocess.DEVNULL):
        pytest.skip("this user may not make a pid namespace")
    tag = f"{os.getpid()}-1.00-in-a-container"
    code = "import time; print(); time.sleep(60)"
    command = [*unshare, "env", f"{guard.TAG}={tag}", sys.executable, "-uc", code]
    container = subprocess.Popen(command, stdout=subprocess.PIPE)
    try:
        container.stdout.readline()
        (inside,) = guard.find(tag)
        assert inside.pid not in [process.pid for process in guard.leftovers()]
    finally:
        container.kill()
        container.wait()
        container.stdout.close()


def test_the_guard_ends_a_cluster_when_its_owner_dies(tmp_path):
    """The guard notices the end of its parent, ends the tagged processes, removes the folder, and is gone."""
    folder = tmp_path / "folder"
    folder.mkdir()
    code = (
        "import os, subprocess, sys\n"
        "p = subprocess.Popen([sys.executable, sys.argv[1], str(os.getpid()), 'tag-c', sys.argv[2]])\n"
        "print(p.pid, flush=True)\n"
        "sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", code, guard.__file__, str(folder)]
    owner = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    watcher = psutil.Process(int(owner.stdout.readline()))
    orphan = sleeper("tag-c")
    time.sleep(0.3)
    owner.kill()
    owner.communicate()
    try:
        assert orphan.wait(timeout=10) == -15
        psutil.wait_procs([watcher], timeout=5)
        assert not watcher.is_running()
        assert not folder.exists()
    finally:
        orphan.kill()
        orphan.stdout.close()


def test_the_doctor_prints_a_verdict_for_every_check(monkeypatch, capsys):
    """A vital finding that is not OK gives status 1 and FAIL; a crash of a check is a finding, not a traceback."""

    def check_fine():
        yield doctor.Finding("fine", "well")

    def check_small():
        yield doctor.Finding("small", "low", ok=False, advice="Do this.")

    def check_broken():
        raise OSError("no network")
        yield

    monkeypatch.setattr(doctor, "CHECKS", (check_fine, check_small))
    assert doctor.main() == 0
    monkeypatch.setattr(doctor, "CHECKS", (check_fine, check_broken))
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


def test_the_quick_checks_are_well_here():
    """Python, packages, disk and network are fine on a machine where these tests run."""
    for check in (doctor.check_python, doctor.check_packages, doctor.check_disk, doctor.check_network):
        assert all(finding.ok for finding in check() if finding.vital), check.__name__


def test_the_doctor_cleans(capsys, monkeypatch):
    """--clean ends the leftovers, and only them."""
    monkeypatch.setattr(doctor, "CHECKS", ())
    orphan = sleeper(f"{os.getpid()}-1.00-abc")
    try:
        assert doctor.main(clean=True) == 0
        assert orphan.wait(timeout=5) == -15
    finally:
        orphan.kill()
        orphan.stdout.close()
    assert "processes of clusters whose notebook is gone" in capsys.readouterr().out
