"""docs/explain.md: its program hangs, and `distlab explain` says what the page shows."""

import os
import re
import socket
import subprocess
import sys
import time

from tests.tool import ROOT

RANKS = 3
MOST_SECONDS = 240


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def parts_of_page():
    """The program, and the report on its dumps, as the page has them."""
    page = (ROOT / "docs/explain.md").read_text()
    (program,) = re.findall(r"```python\n(# train.py\n.*?)```", page, re.DOTALL)
    (report,) = re.findall(r"\$ distlab explain dumps\n(.*?)```", page, re.DOTALL)
    return program, report


def explained(folder):
    """What the command says of the dumps; it imports neither torch nor numpy."""
    code = (
        "import sys; from distlab.__main__ import main; status = main(); "
        "sys.exit(status + 10 * any(name in sys.modules for name in ('torch', 'numpy')))"
    )
    command = [sys.executable, "-c", code, "explain", "dumps"]
    found = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=MOST_SECONDS
    )
    return found.returncode, found.stdout


def test_the_program_of_the_page_is_explained(tmp_path):
    """Run as torchrun runs it; the dumps are written while the main threads are blocked."""
    program, report = parts_of_page()
    (tmp_path / "train.py").write_text(program)
    (tmp_path / "dumps").mkdir()
    environment = {
        **os.environ,
        "TORCH_FR_BUFFER_SIZE": "2000",
        "OMP_NUM_THREADS": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "WORLD_SIZE": str(RANKS),
        "PYTHONPATH": str(ROOT),
    }
    ranks = []
    for rank in range(RANKS):
        own = {**environment, "RANK": str(rank)}
        command = [sys.executable, "train.py"]
        ranks.append(subprocess.Popen(command, cwd=tmp_path, env=own, stderr=subprocess.DEVNULL))
    try:
        (tmp_path / "dump-now").touch()
        deadline = time.monotonic() + MOST_SECONDS
        found = (2, "")
        while found != (0, report) and time.monotonic() < deadline:
            time.sleep(1)
            if len(os.listdir(tmp_path / "dumps")) == RANKS:
                found = explained(tmp_path)
    finally:
        for one in ranks:
            one.kill()
            one.wait()
    assert found == (0, report)
