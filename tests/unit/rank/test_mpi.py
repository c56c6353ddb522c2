"""What is said where MPI is missing or does not fit; no process is started."""

import pytest

import distlab
from distlab.notebook import mpiexec
from tests.refused import refused

LOG = """\
2026-01-01 10:00:00.100 [KernelNanny.0] Nanny watching parent pid 100.
2026-01-01 10:00:09.110 [KernelNanny.1] Pipe closed, parent 101 has status: gone
2026-01-01 10:00:09.100 [KernelNanny.2] Pipe closed, parent 102 has status: zombie
2026-01-01 10:00:09.101 [KernelNanny.2] Notifying Hub that our parent has shut down
2026-01-01 10:00:09.120 [KernelNanny.0] Parent 100 exited with status None.
=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES
"""


@pytest.mark.parametrize(
    ("found", "module", "missing"),
    [
        (None, None, "mpiexec and mpi4py"),
        ("/usr/bin/mpiexec", None, "mpi4py"),
    ],
)
def test_without_mpi_the_error_says_what_to_install(monkeypatch, found, module, missing):
    """The message names what is not there and the command that brings it; nothing was started."""
    monkeypatch.setattr(mpiexec, "find_mpiexec", lambda: found)
    monkeypatch.setattr(mpiexec, "find_spec", lambda name: module)
    assert str(refused(distlab.Cluster, 2, engines="mpi")) == (
        f'engines="mpi" needs {missing}: pip install mpich mpi4py. Or call Cluster(n).'
    )


def test_mpiexec_beside_python_comes_first(monkeypatch, tmp_path):
    """An environment that is not activated still finds its own mpiexec first."""
    other = tmp_path / "elsewhere"
    for folder in (tmp_path, other):
        folder.mkdir(exist_ok=True)
        (folder / "mpiexec").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(other))
    monkeypatch.setattr(mpiexec.sys, "executable", str(tmp_path / "python"))
    assert mpiexec.find_mpiexec() == str(tmp_path / "mpiexec")
    (tmp_path / "mpiexec").unlink()
    assert mpiexec.find_mpiexec() == str(other / "mpiexec")


def test_who_ended_first_is_read_from_the_log():
    """The nanny that misses its engine first names it, wherever mpiexec has put its line."""
    assert mpiexec.first_to_end(LOG) == 2
    assert mpiexec.first_to_end("=   PID 100 RUNNING AT vm") is None
