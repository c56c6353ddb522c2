"""Hosts that cannot be used, arguments of srun and mpiexec, a host's report; without hosts."""

import subprocess
from dataclasses import replace
from types import SimpleNamespace

import pytest

from distlab.errors import HostError
from distlab.launch import fork_server, this_host
from distlab.notebook import hosts, mpiexec
from distlab.notebook.hosts import Host, Hosts
from distlab.notebook.start_methods import Slurm, Ssh
from distlab.wire.orders import Hello, HostPlan
from tests.refused import raised, refused

ONE = Hosts((Host("nodeA", 2),), Ssh(python="/opt/python"))
OURS = this_host.installed()
HELLO = Hello(0, "nodeA", 4, OURS, "127.0.0.1", "127.0.0.2")


def answers(folder, **differs):
    """What a host reports that differs from this machine in this way."""
    hello = replace(HELLO, **differs)
    servers = SimpleNamespace(
        to=lambda number: SimpleNamespace(hellos={0: hello}, lost={}, trouble="")
    )
    return hosts.answers(servers, ONE, [0], folder)


@pytest.mark.parametrize(
    ("differs", "words"),
    [
        ({"versions": OURS | {"torch": "1.0.0"}}, "it has torch 1.0.0; this machine has torch "),
        ({"versions": {}}, "it has Python not installed, distlab not installed"),
        (
            {"versions": OURS | {this_host.PROTOCOL: "0"}},
            f"it has distlab's messages 0; this machine has {this_host.PROTOCOL} ",
        ),
        (
            {"notebook": "203.0.113.5"},
            "it sees this machine as 203.0.113.5, which is not its address, so the ranks",
        ),
    ],
)
def test_a_host_that_differs(tmp_path, differs, words):
    """What ranks need, and is not there, is named."""
    assert answers(tmp_path) == {0: HELLO}
    error = raised(HostError, answers, tmp_path, **differs)
    assert str(error).startswith(f"1 of 1 host cannot be used:\n  nodeA: {words}")


def test_a_host_that_falls_silent_is_not_waited_for(tmp_path, monkeypatch):
    """The program that leads to it may live on: ssh does not see that a host has frozen."""
    monkeypatch.setattr(hosts, "HELLO_SECONDS", 0.1)
    (tmp_path / "host-0.log").touch()
    with subprocess.Popen(["sleep", "600"]) as ssh:
        silent = SimpleNamespace(
            hellos={}, lost={0: "which sent no heartbeat"}, trouble="", process=ssh, hosts=[0]
        )
        servers = SimpleNamespace(to=lambda number: silent)
        try:
            error = raised(HostError, hosts.answers, servers, ONE, [0], tmp_path)
        finally:
            ssh.kill()
    assert "\n  nodeA: no answer within 0.1 s.\n" in str(error)


def test_what_a_host_reports_of_itself(tmp_path, monkeypatch):
    """The notebook is where ssh or srun came from; its own address leads there."""
    monkeypatch.chdir(tmp_path)
    for name in ("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "SLURM_LAUNCH_NODE_IPADDR"):
        monkeypatch.setenv(name, "")
    monkeypatch.setenv("SSH_CONNECTION", "127.0.0.1 5 10.1.1.2 22")
    plan = HostPlan(3, 1, "/nowhere")
    hello = this_host.report_of_host([plan])
    assert (hello.host, hello.address, hello.notebook) == (3, "127.0.0.1", "127.0.0.1")
    monkeypatch.setenv("SLURM_NODEID", "1")
    hello = this_host.report_of_host(
        [plan, replace(plan, host=4, notebook="127.0.0.3", address="127.0.0.2")]
    )
    assert (hello.host, hello.address, hello.notebook) == (4, "127.0.0.2", "127.0.0.3")
    with pytest.raises(OSError, match="it has no interface 'eth77' with an IPv4 address, but "):
        this_host.report_of_host([replace(plan, interface="eth77")])
    assert str(refused(this_host.report_of_host, [replace(plan, ranks=10**6)])).startswith(
        "n must be at most "
    )


def test_a_python_in_a_folder_with_a_space(tmp_path):
    """The line for another host's shell names it as one word."""
    python = tmp_path / "a folder" / "python"
    python.parent.mkdir()
    python.write_text('#!/bin/sh\necho "$1"\n')
    python.chmod(0o755)
    for shell in (["sh", "-c"], ["sh", "-c", 'exec sh -c "$0"']):
        line = [*shell, fork_server.remote_command(str(python))]
        assert subprocess.run(line, capture_output=True, text=True).stdout == "-c\n", line


def test_the_arguments_of_srun(monkeypatch):
    """One task a node, with the CPUs that its ranks want; a learner's options come last."""
    monkeypatch.delenv("SLURM_JOB_NUM_NODES", raising=False)
    job = Slurm(
        nodes=2, partition="debug", time="10:00", options=["--account=me"], queue_timeout=2.5
    )
    words = hosts.srun(job, nodes=2, ranks=8)
    expected = [
        "--nodes=2",
        "--ntasks=2",
        "--ntasks-per-node=1",
        "--cpus-per-task=8",
        "--immediate=3",
    ]
    assert words[2:7] == expected
    assert words[-3:] == ["--partition=debug", "--time=10:00", "--account=me"]
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "3")
    assert "--overlap" in hosts.srun(Slurm(), nodes=3, ranks=1)
    assert hosts.nodes_of_allocation() == 3


@pytest.mark.parametrize(
    ("version", "words"),
    [
        ("HYDRA build details:", ["-localhost", "10.0.0.9", "-hosts", "nodeA:2,nodeB:1"]),
        (
            "mpiexec (OpenRTE) 4.1.4",
            ["--oversubscribe", "--host", "nodeA:2,nodeB:1", "-x", "A"],
        ),
    ],
)
def test_the_arguments_of_mpiexec(monkeypatch, version, words):
    """Each MPI has its own. Open MPI refuses more ranks than cores, and root."""
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setattr(
        mpiexec.subprocess, "run", lambda *_, **options: SimpleNamespace(stdout=version)
    )
    assert mpiexec.arguments({"nodeA": 2, "nodeB": 1}, "10.0.0.9", ["A"]) == words
    is_open_mpi = "--oversubscribe" in words
    assert mpiexec.arguments() == ["--oversubscribe"] * is_open_mpi
    monkeypatch.setattr("os.geteuid", lambda: 0)
    assert mpiexec.arguments() == ["--oversubscribe", "--allow-run-as-root"] * is_open_mpi
