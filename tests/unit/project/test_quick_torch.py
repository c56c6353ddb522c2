"""tools/quick_torch.py imports torch without the collector, and leaves everything else alone."""

import subprocess
import sys

import pytest

from tests.tool import ROOT

SAYS = """
import gc
print("collects", gc.isenabled(), flush=True)
"""


@pytest.fixture
def printed(tmp_path):
    """What a new Python prints that runs a program where this is installed, and a small torch."""
    (tmp_path / "torch.py").write_text(SAYS)
    (tmp_path / "other.py").write_text(SAYS)
    (tmp_path / "quick_torch.py").write_text((ROOT / "tools/quick_torch.py").read_text())

    def run(program):
        command = [sys.executable, "-S", "-c", f"import gc, quick_torch\n{program}"]
        ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout.splitlines()

    return run


def test_torch_is_imported_without_the_collector_which_never_looks_at_it_again(printed):
    assert printed("import torch; print(gc.isenabled(), gc.get_freeze_count() > 0)") == [
        "collects False",
        "True True",
    ]


def test_a_collector_that_was_off_stays_off(printed):
    assert printed("gc.disable(); import torch; print(gc.isenabled())") == [
        "collects False",
        "False",
    ]


def test_other_modules_are_imported_as_always(printed):
    assert printed("import other; print(gc.get_freeze_count())") == ["collects True", "0"]


def test_the_collector_runs_again_after_an_import_that_fails(printed, tmp_path):
    (tmp_path / "torch.py").write_text("raise OSError('no library')")
    program = """
try:
    import torch
except OSError as error:
    print(error, gc.isenabled())
"""
    assert printed(program) == ["no library True"]


def test_without_torch_the_import_fails_as_always(printed, tmp_path):
    (tmp_path / "torch.py").unlink()
    program = """
try:
    import torch
except ModuleNotFoundError as error:
    print(error)
"""
    assert printed(program) == ["No module named 'torch'"]
