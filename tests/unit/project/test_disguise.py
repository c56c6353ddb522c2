"""tools/disguise.py: a program that runs in it sees another machine."""

import json
import os
from pathlib import Path

import pytest

from tests.processes import python
from tests.tool import ROOT

SEEN = """
import json, os, shutil, subprocess, sys, tempfile
import distlab
said = {name: subprocess.run([name], capture_output=True, text=True).stdout for name in ("lscpu", "nvidia-smi")}
paths = {"cwd": os.getcwd(), "package": distlab.__file__}
paths |= {"home": os.path.expanduser("~"), "temp": tempfile.gettempdir()}
cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
print(json.dumps({"said": said, "paths": paths, "cores": cores, "width": shutil.get_terminal_size().columns,
                  "colours": os.environ["FORCE_COLOR"]}))
sys.exit(int(sys.argv[1]))
"""


@pytest.fixture(scope="module")
def disguised():
    """What a program of Python saw, and the exit status of the whole, which was to be 3."""
    done = python(ROOT / "tools" / "disguise.py", "-c", SEEN, "3")
    return json.loads(done.stdout), done.returncode


def test_every_path_is_another_one_with_a_space(disguised):
    """The project, the home and the temporary directory are elsewhere, and are gone afterwards."""
    paths = disguised[0]["paths"]
    assert len({Path(path).parent for path in (paths["cwd"], paths["home"], paths["temp"])}) == 1
    for path in paths.values():
        assert " " in path
        assert not Path(path).exists()
    assert Path(paths["package"]) == Path(paths["cwd"], "distlab", "__init__.py")


def test_the_hardware_and_the_terminal_are_others(disguised):
    """False programs come first on PATH, half of the cores, colours are asked for; the exit status is the program's."""
    seen, status = disguised
    assert status == 3
    assert "a disguise" in seen["said"]["lscpu"]
    assert "NV7" in seen["said"]["nvidia-smi"]
    assert (seen["width"], seen["colours"]) == (63, "1")
    if seen["cores"] is not None:
        assert seen["cores"] == max(1, len(os.sched_getaffinity(0)) // 2)
