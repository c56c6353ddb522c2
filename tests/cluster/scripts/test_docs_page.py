"""docs/scripts.md: its programs print what it shows, under `distlab run`, with the same status.

Runs in pytest's process; each program in a process of its own, with its ranks.
"""

import re
import signal
import subprocess
import sys
import time

import pytest

from tests.cluster.scripts.launched import hear_signals
from tests.tool import ROOT

PAGE = (ROOT / "docs/scripts.md").read_text()
README = (ROOT / "README.md").read_text()
PROGRAMS = dict(re.findall(r"```python\n# (\w+\.py)\n(.*?)```", PAGE, re.DOTALL))
SESSIONS = re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL)
(INTERRUPTED,) = re.findall(r"```text\nevaluating\n\^C\n(.*?)```", PAGE, re.DOTALL)
(TRACE,) = re.findall(r"```text\n(Trace: .*?)```", PAGE, re.DOTALL)
COMMAND = re.compile(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", re.MULTILINE)
SECONDS = re.compile(r"\b\d+\.\d s\b")
MEASURED = re.compile(r"[\d.,]*\d( ?(ms|µs|s|[KM]iB))?\b")


def start(words, folder):
    """A command of the page, whose two streams are one."""
    command = [sys.executable, "-m", *words] if words[0] == "distlab" else words
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "HOME": str(folder)}
    return subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=hear_signals,
    )


def ran(words, folder):
    """The exit status of a command, and what it wrote."""
    with start(words, folder) as process:
        written, _ = process.communicate(timeout=100)
    return process.returncode, written.replace(str(folder), "/home/me")


def plain(words):
    """Words without durations, and without the marks that newer Pythons set below a line."""
    kept = [line for line in words.splitlines() if line.strip(" ~^") and line]
    return SECONDS.sub("#", "\n".join(kept))


@pytest.fixture
def folder(tmp_path, nothing_left):
    """A folder with the page's programs, whose first line is their name, as on the page."""
    for name, program in PROGRAMS.items():
        (tmp_path / name).write_text(f"# {name}\n{program}")
    return tmp_path


@pytest.mark.parametrize("session", SESSIONS, ids=[one.splitlines()[0][2:] for one in SESSIONS])
def test_a_program_prints_what_the_page_shows(session, folder):
    status = None
    for command, shown in COMMAND.findall(session):
        if command == "echo $?":
            assert f"{status}\n" == shown
            continue
        status, written = ran(command.split(), folder)
        assert plain(written) == plain(shown)


def test_ctrl_c_says_where_every_rank_is(folder):
    """Pressed once all ranks are where they stay."""
    words = ["distlab", "run", "--nproc-per-node", "4", "wait.py"]
    with start(words, folder) as process:
        assert process.stdout.readline() == "evaluating\n"
        time.sleep(1)
        process.send_signal(signal.SIGINT)
        written, _ = process.communicate(timeout=100)
    assert process.returncode == 130
    assert plain(written) == plain(INTERRUPTED)


def test_a_trace_ends_with_what_took_longest(folder):
    words = ["distlab", "run", "--nproc-per-node", "4", "--trace", "out.json", "mean.py"]
    status, written = ran(words, folder)
    assert status == 0
    assert sorted(masked(written[written.index("Trace: ") :])) == sorted(masked(TRACE))
    assert (folder / "out.json").exists()


def masked(words):
    """Lines without what was measured, and without their order."""
    return [" ".join(MEASURED.sub("#", line).split()) for line in words.splitlines()]


def test_readme_shows_a_session_of_the_page():
    (shown,) = re.findall(r"```console\n(\$ distlab run.*?)```", README, re.DOTALL)
    assert shown in SESSIONS
