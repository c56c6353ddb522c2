"""The daemons that other tests use do their work, fail where they are to fail, and leave nothing behind."""

import subprocess
import sys

import pytest

from distlab.launch import mpiexec
from tests.network.conftest import networks_left
from tests.processes import until


def run(*words, **options):
    return subprocess.run(words, capture_output=True, text=True, timeout=60, **options)


def test_ssh_reaches_both_hosts(ssh_hosts):
    """With the configuration's file, and without it; scp too."""
    for name in ssh_hosts.hosts:
        assert run("ssh", "-F", ssh_hosts.config, "-o", "BatchMode=yes", name, "hostname").stdout == f"{name}\n"
        assert run("ssh", name, "hostname", stdin=subprocess.DEVNULL).stdout == f"{name}\n"
    assert run("scp", ssh_hosts.config, f"nodeA:{ssh_hosts.folder}/copy").returncode == 0
    assert (ssh_hosts.folder / "copy").read_text() == ssh_hosts.config.read_text()


@pytest.mark.parametrize(
    ("host", "words"),
    [
        ("locked", "Permission denied (publickey,password"),
        ("stranger", "Host key verification failed"),
        ("closed", "Connection refused"),
        ("silent", "Connection timed out"),
        ("nowhere", "Could not resolve hostname"),
    ],
)
def test_hosts_that_cannot_be_used(ssh_hosts, host, words):
    """Each fails in the way that it is there for."""
    done = run("ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=1", host, "hostname")
    assert done.returncode == 255
    assert words in done.stderr


def test_a_host_dies_and_comes_back(ssh_hosts):
    """What ran there is gone, and ssh is refused until the host is booted again."""
    session = subprocess.Popen(["ssh", "nodeB", "sleep 100"], stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    assert run("ssh", "nodeB", "until pgrep -x sleep; do :; done").returncode == 0
    ssh_hosts.kill("nodeB")
    assert session.wait(20) == 255
    assert "Connection refused" in run("ssh", "nodeB", "true").stderr
    ssh_hosts.boot("nodeB")
    assert run("ssh", "nodeB", "hostname").stdout == "nodeB\n"


def test_mpiexec_starts_processes_on_both_hosts(mpi_hosts):
    """And they are of one MPI_COMM_WORLD."""
    code = "from mpi4py.MPI import COMM_WORLD as w; import socket; print(w.gather((w.rank, socket.gethostname())))"
    done = run(mpiexec.find(), "-hosts", "nodeA:2,nodeB:2", "-n", "4", sys.executable, "-c", code)
    assert "[(0, 'nodeA'), (1, 'nodeA'), (2, 'nodeB'), (3, 'nodeB')]" in done.stdout, done.stderr


def test_slurm_runs_on_both_nodes(slurm):
    """Of the partition debug; a job of the partition down waits."""
    done = run("srun", "-N2", "--ntasks-per-node=2", "hostname")
    assert sorted(done.stdout.split()) == ["nodeA", "nodeA", "nodeB", "nodeB"], done.stderr
    job = run("sbatch", "--parsable", "-p", "down", "--wrap=true", "-o", "/dev/null").stdout.strip()
    until(lambda: run("squeue", "-h", "-j", job, "-o", "%T %r").stdout == "PENDING PartitionDown\n")
    assert run("scancel", job).returncode == 0


def test_nothing_is_left_of_them(ssh_hosts, slurm):
    """Once their hosts are closed, no process, namespace, link or mount."""
    ran = [*ssh_hosts.processes("nodeA")]
    assert ran
    ssh_hosts.hosts.close()
    slurm.close()
    assert networks_left() == []
    assert not [process for process in ran if process.is_running()]
