"""What a person gets from the wheel, in an environment of its own and away from the repository.

The packages that pip would download are those of this environment; distlab itself comes from the
wheel alone.
"""

import os
import subprocess
import sys
import sysconfig

import pytest

from tests.tool import ROOT

MOST_BYTES = 12e6
RUN_FIRST_LAB = """\
import nbclient, nbformat
notebook = nbformat.read("00_start_here.ipynb", as_version=4)
nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
"""
CHECK_AN_EXERCISE = """\
import distlab, distlab_course, torch.distributed as dist
def largest_on(tensor, dst):
    largest = tensor.clone()
    dist.reduce(largest, dst, op=dist.ReduceOp.MAX)
    return largest if dist.get_rank() == dst else None
with distlab.Cluster(4):
    verdict = distlab.check("largest_on", largest_on)
    print(distlab.__file__, distlab_course.__file__, verdict, sep="\\n")
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel, built from the source distribution, as for a release."""
    folder = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    done = subprocess.run(build, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert sum(path.suffix == ".gz" for path in folder.iterdir()) == 1
    (wheel,) = folder.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def python(wheel, tmp_path_factory):
    """The interpreter of an environment with the wheel, in which nothing knows the repository."""
    environment = tmp_path_factory.mktemp("a new environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    (packages,) = environment.glob("lib/python*/site-packages")
    (packages / "others.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    python = str(environment / "bin/python")
    pip = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        python,
        "install",
        "-q",
        "--no-deps",
        "--no-index",
        str(wheel),
    ]
    subprocess.run(pip, check=True)
    return python


def run(python, folder, *arguments):
    """What a program of that environment prints, run in a folder; it must end well."""
    variables = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTHON", "VIRTUAL_ENV"))
    }
    done = subprocess.run(
        [python, *arguments], cwd=folder, env=variables, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.timeout(400)
def test_a_person_with_the_wheel_has_the_course(wheel, python, tmp_path):
    """`course` writes every lesson, the first one runs, and an exercise is checked."""
    assert wheel.stat().st_size < MOST_BYTES
    assert "distlab-course: files written: " in run(python, tmp_path, "-m", "distlab", "course")
    wanted = {
        path.relative_to(ROOT)
        for part in ("notebooks", "figs")
        for path in (ROOT / part).rglob("*.*")
    }
    folder = tmp_path / "distlab-course"
    written = {path.relative_to(folder) for path in folder.rglob("*.*") if path.parent != folder}
    assert written == {
        path for path in wanted if not any(part.startswith((".", "__")) for part in path.parts)
    }
    run(python, folder / "notebooks", "-c", RUN_FIRST_LAB)
    *places, verdict = run(python, folder / "notebooks", "-c", CHECK_AN_EXERCISE).splitlines()[:3]
    assert all(place.startswith(str(tmp_path.parent)) for place in places), places
    assert "passed" in verdict
