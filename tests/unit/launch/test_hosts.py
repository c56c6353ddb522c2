"""Hosts that cannot be used, srun's arguments, and what a host reports of itself; without any host."""

import subprocess
from dataclasses import replace
from types import SimpleNamespace

import pytest

from distlab.errors import HostError
from distlab.launch import fork_server, hosts, local, mpiexec, slurm
from distlab.launch.hosts import Host, Hosts
from distlab.wire.orders import Hello, HostPlan
from tests.refused import raised

TWO = Hosts((Host("nodeA", 2), Host("nodeB", 1)), python="/opt/python")


class Connection:
    """One that has received these reports; the program that led to the hosts has ended with this status, or runs."""

    def __init__(self, numbers, hellos=(), status=None):
        self.hosts, self.hellos = numbers, dict(hellos)
        self.lost = dict.fromkeys(numbers, "whose connection has ended") if status is not None else {}
        self.process = SimpleNamespace(poll=lambda: status, wait=lambda: status)


def test_a_host_that_reports_nothing(tmp_path):
    """What a program there has written is shown; tests/network/test_ssh.py has what ssh and the shell write."""
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "host-1.log").write_text("ImportError: psutil")
    hellos, troubles = hosts.answers(TWO, [Connection([1], status=1)], str(tmp_path))
    assert (hellos, list(troubles)) == ({}, [1])
    assert str(raised(HostError, hosts.check, TWO, troubles)).startswith(
        "1 of 2 hosts cannot be used:\n  nodeB: the process that leads to it ended with status 1: ImportError: psutil"
    )


OURS = local.installed()
HELLO = Hello(0, "nodeA", 4, OURS, "127.0.0.1", max_ranks=5)


@pytest.mark.parametrize(
    ("differs", "words"),
    [
        ({}, None),
        ({"versions": OURS | {"torch": "1.0.0"}}, "it has torch 1.0.0; here is torch "),
        ({"versions": {}}, "it has Python not installed, distlab not installed"),
        ({"notebook": "203.0.113.5"}, "it sees this machine as 203.0.113.5, which is no address here (127.0.0.1"),
    ],
)
def test_a_host_that_reports_what_it_is(tmp_path, differs, words):
    """Everything that ranks need is there, or what is not."""
    hello = replace(HELLO, **differs)
    found, troubles = hosts.answers(TWO, [Connection([0], {0: hello})], str(tmp_path))
    assert found == {0: hello}
    assert (troubles == {}) if words is None else troubles[0].words.startswith(words)


def test_what_a_host_reports_of_itself(tmp_path, monkeypatch):
    """Its address for the others is the one from which it reaches the notebook; the interface is that address's."""
    monkeypatch.chdir(tmp_path)
    for name in ("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME"):
        monkeypatch.setenv(name, "")
    plan = HostPlan(3, ("127.0.0.1",), "/nowhere")
    hello = local.report_of_host([plan])
    assert (hello.host, hello.address, hello.interface, hello.notebook) == (3, "127.0.0.1", "lo", "127.0.0.1")
    assert hello.max_ranks > 1
    monkeypatch.setenv("SLURM_NODEID", "1")
    hello = local.report_of_host([plan, replace(plan, host=4, address="127.0.0.2")])
    assert (hello.host, hello.address) == (4, "127.0.0.2")
    hello = local.report_of_host([plan, replace(plan, interface="eth77")])
    assert hello.trouble.startswith("it has no interface 'eth77' with an IPv4 address, but ")


@pytest.mark.parametrize(
    ("plan", "seen"),
    [
        (HostPlan(0, ("10.9.9.9", "10.1.1.1"), ""), "10.1.1.1"),
        (HostPlan(0, ("10.9.9.9", "10.8.8.8"), ""), "10.1.1.1"),  # hosts.py says that this is none of them
        (HostPlan(0, ("10.9.9.9",), ""), "10.9.9.9"),
        (HostPlan(0, ("10.9.9.9", "127.0.0.1"), "", address="127.0.0.3"), "127.0.0.1"),
    ],
)
def test_where_the_notebook_is_seen_from(monkeypatch, plan, seen):
    """From where ssh or srun came, if that is an address of the notebook's machine; else by the network."""
    monkeypatch.setenv("SSH_CONNECTION", "10.1.1.1 5 10.1.1.2 22")
    assert local.notebook_address(plan) == seen


def test_a_python_in_a_folder_with_a_space(tmp_path):
    """The line for another host's shell names it as one word; where there is none, the shell's status says it."""
    python = tmp_path / "a folder" / "python"
    python.parent.mkdir()
    python.write_text('#!/bin/sh\necho "$1"\n')
    python.chmod(0o755)
    for shell in (["sh", "-c"], ["sh", "-c", 'exec sh -c "$0"']):
        line = [*shell, fork_server.remote_command(str(python))]
        assert subprocess.run(line, capture_output=True, text=True).stdout == "-c\n", line
    gone = subprocess.run(["sh", "-c", fork_server.remote_command("/no/python")], stderr=subprocess.DEVNULL)
    assert gone.returncode == fork_server.NO_PYTHON


def test_the_arguments_of_srun(monkeypatch):
    """One task a node, with the CPUs that its ranks want and the partition has; a learner's options come last."""
    monkeypatch.delenv("SLURM_JOB_NUM_NODES", raising=False)
    monkeypatch.setattr(slurm, "_ask", lambda *words: "4\n16+")
    words = slurm.command(slurm.Job(2, 8, "debug", "10:00", ("--account=me",)))
    assert words[:5] == ["srun", "--job-name=distlab", "--nodes=2", "--ntasks=2", "--ntasks-per-node=1"]
    assert words[5] == "--cpus-per-task=4"
    assert words[-3:] == ["--partition=debug", "--time=10:00", "--account=me"]
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "3")
    assert "--overlap" in slurm.command(slurm.Job(3, 1))
    assert slurm.nodes_of_allocation() == 3


def test_what_srun_refuses():
    """In its own words, with where to look."""
    words = "srun ended: Requested node configuration is not available. `sinfo` shows the partitions"
    refusal = "srun: error: Requested node configuration is not available\n"
    assert slurm.trouble(slurm.Job(2, 4, "x"), refusal, waits=False).startswith(words)


def test_a_hostfile(tmp_path):
    """As MPICH and Open MPI write them; a host that is named twice has both numbers."""
    (tmp_path / "hosts").write_text("# here\n\nnodeA:2\nnodeB slots=3 # fast\nnodeC\nnodeA:1\n")
    assert mpiexec.read_hostfile(str(tmp_path / "hosts")) == {"nodeA": 3, "nodeB": 3, "nodeC": 1}


@pytest.mark.parametrize(
    ("version", "words"),
    [
        ("HYDRA build details:", ["-localhost", "10.0.0.9", "-hosts", "nodeA:2,nodeB:1"]),
        (
            "mpiexec (OpenRTE) 4.1.4",
            ["--oversubscribe", "--host", "nodeA:2,nodeB:1", "-x", "A", "-x", "IPP_CONNECTION_INFO"],
        ),
    ],
)
def test_the_arguments_of_mpiexec(monkeypatch, version, words):
    """Each MPI has its own; no host for this machine alone."""
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setattr(mpiexec.subprocess, "run", lambda *_, **options: SimpleNamespace(stdout=version))
    assert mpiexec.arguments({"nodeA": 2, "nodeB": 1}, "10.0.0.9", ["A"]) == words
    assert mpiexec.arguments() == words[: int("--oversubscribe" in words)]
