"""A cluster on two hosts that ssh reaches, used and broken as on one machine."""

import contextlib
import re
import threading
import time

import psutil
import pytest
import torch
import zmq

import distlab
from distlab import machine
from distlab.launch import reaper
from distlab.notebook import hosts
from tests.cluster.conftest import pid_on_rank, stop_what_runs, stuck, sum_of_ranks
from tests.network.programs import place
from tests.processes import (
    controller_of,
    marked,
    python,
    python_that_goes_on,
    until,
    wait_until_gone,
)
from tests.refused import raised

TWO_EACH = {"nodeA": 2, "nodeB": 2}


def servers(hosts):
    """The processes of fork servers, and of ranks, that are left on both hosts."""
    found = []
    for process in [*hosts.processes("nodeA"), *hosts.processes("nodeB")]:
        with contextlib.suppress(psutil.Error):
            if any("distlab" in word for word in process.cmdline()):
                found.append(process)
    return found


@pytest.fixture(scope="module")
def cluster(ssh_hosts):
    with distlab.Cluster(hosts=TWO_EACH, timeout=20) as ranks:
        yield ranks
    assert wait_until_gone(lambda: servers(ssh_hosts)) == []


@pytest.fixture
def usable(cluster):
    """The cluster, which must still add up its ranks after the test."""
    yield cluster
    assert cluster.run(sum_of_ranks) == [6.0] * 4


def test_ranks_are_numbered_host_by_host(usable):
    """As torchrun numbers them, on the interface that leads to the notebook, which is named."""
    assert usable.run(place) == [
        ("nodeA", "0", "4", "0", "2", "0", "eth0"),
        ("nodeA", "1", "4", "1", "2", "0", "eth0"),
        ("nodeB", "2", "4", "0", "2", "1", "eth0"),
        ("nodeB", "3", "4", "1", "2", "1", "eth0"),
    ]
    assert [row["host"] for row in usable.describe()] == ["nodeA", "nodeA", "nodeB", "nodeB"]
    assert repr(usable).startswith(
        "Cluster(4) on nodeA and nodeB: backend gloo, engines ssh\nrank 0: idle"
    )
    assert usable.threads == max(1, machine.cores() // 2)


def test_a_deadlock_over_both_hosts(usable):
    """Who waits for whom, whatever the host."""
    words = str(raised(distlab.DeadlockError, usable.run, stuck))
    assert words.startswith("4 of 4 ranks wait for each other")
    assert "rank 3  recv(src=0)" in words


def test_a_rank_that_cannot_be_freed_is_replaced_on_its_host(usable):
    """By a signal that its fork server sends."""

    def stubborn(rank, world_size):
        while rank == 3:
            with contextlib.suppress(KeyboardInterrupt):
                time.sleep(1)

    before = usable.run(pid_on_rank)
    words = str(raised(distlab.RankTimeout, usable.run, stubborn, timeout=0.5))
    assert "Rank 3 could not be freed: a new process took its place" in words
    after = usable.run(pid_on_rank)
    assert (after[:3], after[3] == before[3]) == (before[:3], False)
    assert usable.run(place)[3][0] == "nodeB"


def test_what_is_known_of_ranks_with_other_clocks_and_process_numbers(usable, monkeypatch):
    """They are asked for their memory; and for their clocks, which here are this machine's."""
    for module in ("ranks", "tracing"):
        monkeypatch.setattr(f"distlab.notebook.{module}.this_machine", lambda: ("elsewhere", ""))
    assert all(row["megabytes"] > 10 for row in usable.describe())
    with usable.trace() as trace:
        usable.run(sum_of_ranks)
    assert [
        abs(trace.offsets[rank].seconds) <= trace.offsets[rank].error < 1 for rank in range(4)
    ] == [True] * 4
    assert "The clocks of ranks 0-3 are estimated, to within " in "\n".join(trace.notes())


def test_only_one_interface_is_listened_on_and_nothing_without_a_key(usable, ssh_hosts):
    """The controller listens on the chosen address, encrypted; no key on a command line."""
    processes = usable.ranks._processes
    controller = controller_of(usable)
    listening = {c.laddr.ip for c in controller.net_connections() if c.status == psutil.CONN_LISTEN}
    assert {ssh_hosts.hosts.here} <= listening <= {ssh_hosts.hosts.here, "127.0.0.1"}
    session, keys = usable.client.session, usable.client.curve_serverkey
    secrets = [session.key.decode(), keys.decode(), processes.channel.address[2]]
    lines = [" ".join(p.info["cmdline"] or []) for p in psutil.process_iter(["cmdline"])]
    assert not [line for line in lines for secret in secrets if secret in line]
    # without the controller's key
    with zmq.Context() as context, context.socket(zmq.DEALER) as stranger:
        stranger.linger, stranger.sndtimeo = 0, 1000
        stranger.connect(usable.client._query_socket.last_endpoint.decode())
        with contextlib.suppress(zmq.Again):  # it is refused before it has sent anything
            session.send(stranger, "connection_request")
        assert not stranger.poll(1000)


def test_a_host_that_dies_is_reported_and_comes_back(cluster, ssh_hosts, monkeypatch):
    """Ranks of the others keep their variables and can be used meanwhile."""
    cluster.push({"kept": 1})
    threading.Timer(0.5, ssh_hosts.kill, ["nodeB"]).start()
    words = str(raised(distlab.RankDied, cluster.run, lambda rank, n: time.sleep(1.0)))
    first, *_, last = words.splitlines()
    assert first == "ranks 2-3 were lost with host nodeB, whose connection has ended."
    assert last.startswith("cluster.heal() and the")
    assert cluster.pull("kept", ranks=[0, 1]) == [1, 1]
    monkeypatch.setattr(hosts, "RETURN_SECONDS", 1.0)
    words = str(raised(distlab.errors.HostError, cluster.heal))
    assert words.startswith("1 of 2 hosts cannot be used:\n  nodeB: ssh: connect to host ")
    advice = "heal() tries again, for up to 1 s, and restart() starts new ranks."
    assert words.endswith(f"pull and run with ranks=[0, 1] work. {advice}")
    monkeypatch.undo()
    threading.Timer(1.0, ssh_hosts.boot, ["nodeB"]).start()
    cluster.heal()  # which waits for it
    assert cluster.run(sum_of_ranks) == [6.0] * 4
    assert cluster.pull("kept", ranks=[0, 1]) == [1, 1]


def test_the_host_of_the_store_comes_back_too(cluster, ssh_hosts):
    """All ranks met at a store there, and meet at another one."""
    cluster.push({"kept": 1})
    ssh_hosts.kill("nodeA")
    until(lambda: cluster.ranks.dead.newly_dead() == [0, 1])
    ssh_hosts.boot("nodeA")
    cluster.heal()
    assert cluster.run(sum_of_ranks) == [6.0] * 4
    assert cluster.pull("kept", ranks=[2, 3]) == [1, 1]


def test_restart_and_another_cluster(cluster, ssh_hosts):
    """On the same hosts the fork servers are used again."""
    before = {p.pid for p in servers(ssh_hosts)}
    cluster.restart()
    assert cluster.run(sum_of_ranks) == [6.0] * 4
    with distlab.Cluster(hosts=TWO_EACH, threads=3) as other:
        assert other.run(lambda rank, n: torch.get_num_threads()) == [3] * 4
        assert len(before & {p.pid for p in servers(ssh_hosts)}) >= 2


REACHED = {
    "locked": "Permission denied",
    "closed": "Connection refused",
    "nowhere": "Could not resolve hostname",
}


def test_hosts_that_cannot_be_reached(ssh_hosts):
    """They are named with ssh's own words and what must work; the other one is let go."""
    stop_what_runs()
    error = str(
        raised(
            distlab.errors.HostError, distlab.Cluster, hosts=dict.fromkeys(["nodeA", *REACHED], 1)
        )
    )
    first, *lines, last = error.splitlines()
    assert first == "3 of 4 hosts cannot be used:"
    for line, (name, words) in zip(lines, REACHED.items(), strict=True):
        assert re.fullmatch(
            f"  {name}: .*{words}.*`ssh {name} .* -V` must work without a prompt.", line
        ), line
    assert last == f"`python -m distlab doctor --hosts {','.join(REACHED)}` checks again."
    assert wait_until_gone(lambda: servers(ssh_hosts)) == []


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"engines": distlab.Ssh(python="/no/python")}, "/no/python: not found"),
        ({"engines": distlab.Ssh(python="/usr/bin/python3")}, "distlab"),
        ({"hosts": {"nodeB": 10**6}}, "nodeB: distlab.errors.ArgumentError: n must be at most "),
    ],
)
def test_a_host_that_cannot_be_used(ssh_hosts, options, words):
    """It is reached, and lacks something."""
    stop_what_runs()
    assert words in str(
        raised(distlab.errors.HostError, distlab.Cluster, **{"hosts": {"nodeB": 1}, **options})
    )
    assert wait_until_gone(lambda: servers(ssh_hosts)) == []


def test_a_cluster_that_runs_goes_on_when_hosts_are_refused(ssh_hosts):
    """It is replaced once they are there; this machine may be a host, without ssh."""
    stop_what_runs()
    with distlab.Cluster(2) as running:
        raised(distlab.errors.HostError, distlab.Cluster, hosts={"closed": 1})
        assert running.run(pid_on_rank) == [one.pid for one in running.ranks.joined]
        with distlab.Cluster(hosts={"localhost": 1, "nodeB": 1}) as other:
            assert other.run(sum_of_ranks) == [1.0, 1.0]
            assert other.run(place)[0][-1] != "lo"
        words = str(raised(distlab.ClusterError, running.run, pid_on_rank))
        assert words.startswith("This cluster was replaced by Cluster(2).")


def test_nothing_is_left_of_a_notebook_that_was_killed(ssh_hosts):
    """Not here, and not on the hosts."""
    program = (
        "import distlab; c = distlab.Cluster(hosts={'nodeA': 1, 'nodeB': 1}); "
        "print('up', flush=True); input()"
    )
    notebook = python_that_goes_on(program)
    assert notebook.stdout.readline() == "up\n"
    assert servers(ssh_hosts)
    notebook.kill()
    notebook.communicate()
    assert (
        wait_until_gone(lambda: servers(ssh_hosts) + marked(reaper.TAG, f"{notebook.pid}-")) == []
    )


def test_the_doctor_looks_at_hosts(ssh_hosts):
    """One line each: OK, or what to do."""
    stop_what_runs()

    def doctor(hosts):
        done = python("-m", "distlab", "doctor", "--hosts", hosts)
        return done.returncode, done.stdout

    status, text = doctor("nodeA,nodeB")
    assert "OK    clock       nodeB: the same as here\n" in text
    assert "OK    gloo group  a rank on each of 2 hosts, all_reduce gave 1;" in text
    assert (status, text.endswith("Ranks work on these hosts together.\n")) == (0, True)
    status, text = doctor("closed")
    assert text.startswith(
        "FAIL  hosts       HostError: 1 of 1 host cannot be used:\n  closed: ssh: connect to host "
    )
    assert (status, text.endswith("Ranks cannot work on these hosts together yet.\n")) == (1, True)
