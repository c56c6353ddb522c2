"""`Ssh`, `Slurm` and `Mpi`: rules of their fields and of what goes with them; nothing starts."""

import dataclasses
import inspect
import sys

import pytest

import distlab
from distlab.notebook import hosts, mpiexec
from distlab.notebook.hosts import Host
from tests.plans import plan_of
from tests.refused import refused

TWO_EACH = {"nodeA": 2, "nodeB": 2}
EXAMPLE = 'Call Cluster(hosts={"nodeA": 4, "nodeB": 4}).'
SLURM_EXAMPLE = "Call Cluster(8, engines=Slurm(nodes=2))."
WORDS = 'For example: options=["--account=me"].'


# --- fields ---


@pytest.mark.parametrize(
    ("kind", "field", "message"),
    [
        (
            distlab.Slurm,
            {"nodes": 0},
            "nodes must be a whole number of 1 or more, got 0. For example: nodes=2.",
        ),
        (
            distlab.Slurm,
            {"partition": 5},
            'partition must be a text, got 5. For example: partition="debug".',
        ),
        (distlab.Slurm, {"time": 10}, 'time must be a text, got 10. For example: time="10:00".'),
        (
            distlab.Slurm,
            {"options": "-x"},
            f"options must be a list of words for srun, got '-x'. {WORDS}",
        ),
        (
            distlab.Slurm,
            {"options": ["-n", 4]},
            f"options must be a list of words for srun, got ['-n', 4]. {WORDS}",
        ),
        (
            distlab.Slurm,
            {"queue_timeout": 0},
            "queue_timeout must be above 0, got 0. For example: queue_timeout=5.",
        ),
        (
            distlab.Ssh,
            {"python": 3},
            'python must be a text, got 3. For example: python="/opt/python/bin/python".',
        ),
        (
            distlab.Mpi,
            {"interface": 0},
            'interface must be a text, got 0. For example: interface="ib0".',
        ),
    ],
)
def test_bad_fields(kind, field, message):
    """They are refused where the object is made, before anything asks for a cluster."""
    assert str(refused(kind, **field)) == message


def test_seconds_may_be_a_text():
    """As everywhere else; it is a number once the object is made."""
    assert distlab.Slurm(queue_timeout="2.5").queue_timeout == 2.5


@pytest.mark.parametrize("kind", [distlab.Ssh, distlab.Slurm, distlab.Mpi])
def test_fields_are_given_by_name_and_stay_as_they_are(kind):
    """As Python says it."""
    with pytest.raises(TypeError, match="positional argument"):
        kind("python")
    with pytest.raises(TypeError, match="unexpected keyword argument 'hosts'"):
        kind(hosts=TWO_EACH)
    with pytest.raises(dataclasses.FrozenInstanceError):
        kind().python = "/usr/bin/python3"


def test_two_jobs_with_the_same_fields_are_equal():
    """A list of options is as good as a tuple; a cluster with an equal plan uses the same nodes."""
    assert distlab.Slurm(options=["-x"]) == distlab.Slurm(options=("-x",))
    assert len({distlab.Slurm(options=["-x"]), distlab.Slurm(options=("-x",))}) == 1


def test_the_front_door_fits_on_a_screen():
    assert list(inspect.signature(distlab.Cluster).parameters) == [
        "n",
        "backend",
        "init_method",
        "engines",
        "timeout",
        "threads",
        "network",
        "preload",
        "hosts",
        "fresh",
    ]


@pytest.mark.parametrize("name", ["partition", "nodes", "python", "interface"])
def test_cluster_has_no_fields_of_start_methods(name):
    with pytest.raises(TypeError, match=f"unexpected keyword argument '{name}'"):
        distlab.Cluster(2, **{name: "x"})


# --- with other arguments ---


@pytest.fixture
def all_installed(monkeypatch):
    """srun, mpiexec and mpi4py seem to be here."""
    monkeypatch.setattr(hosts.shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(mpiexec, "find_mpiexec", lambda: "/usr/bin/mpiexec")
    monkeypatch.setattr(mpiexec, "find_spec", lambda name: name)
    monkeypatch.delenv("SLURM_JOB_NUM_NODES", raising=False)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"n": None, "engines": "ssh"}, f'engines="ssh" needs hosts=. {EXAMPLE}'),
        ({"engines": distlab.Ssh(python="/x")}, f'engines="ssh" needs hosts=. {EXAMPLE}'),
        (
            {"n": 5, "hosts": TWO_EACH},
            f"The hosts have 4 ranks, but n is 5. Leave out n. {EXAMPLE}",
        ),
        (
            {"n": None, "hosts": TWO_EACH, "engines": "fork"},
            'engines="fork" starts ranks only on this machine. With hosts=, leave it out, '
            f'or write engines="mpi". {EXAMPLE}',
        ),
        (
            {"n": None, "hosts": {"a": 0}},
            (
                "the number of ranks of a must be a whole number of 1 or more, "
                f"got 0. {EXAMPLE} Leave out others."
            ),
        ),
        (
            {"n": None, "hosts": TWO_EACH, "init_method": "file"},
            (
                'init_method="file" needs a file that all ranks share, and hosts share none: '
                "leave it out."
            ),
        ),
        (
            {"engines": "slurm", "hosts": TWO_EACH},
            f'engines="slurm" needs no hosts=, because Slurm chooses them. {SLURM_EXAMPLE}',
        ),
        (
            {"engines": distlab.Slurm(nodes=3)},
            f"Each node needs a rank: n is 2, and there are 3 nodes. {SLURM_EXAMPLE}",
        ),
        (
            {"engines": distlab.Mpi(interface="ib0")},
            "python= and interface= of Mpi are for other machines, so give hosts= as well. "
            f"{EXAMPLE}",
        ),
    ],
)
def test_arguments_that_do_not_fit(all_installed, given, message):
    """At once, with what to call."""
    assert str(refused(plan_of, **given)) == message


def test_the_class_itself_is_no_start_method():
    """Parentheses are easily forgotten."""
    assert str(refused(plan_of, engines=distlab.Slurm)) == (
        "engines must be an object, got the class Slurm. Call Cluster(n, engines=Slurm())."
    )


# --- the plan ---


@pytest.mark.parametrize("engines", [None, "ssh", "SSH", distlab.Ssh()])
def test_hosts_are_reached_by_ssh(engines):
    plan = plan_of(None, hosts=TWO_EACH, engines=engines)
    assert (plan.n, plan.engines, plan.threads, plan.forks) == (4, "ssh", None, True)
    assert [host.ranks for host in plan.hosts.hosts] == [2, 2]
    assert (plan.hosts.start_method, plan.hosts.python) == (distlab.Ssh(), sys.executable)


def test_nodes_of_slurm_have_equally_many_ranks_or_one_more(all_installed):
    job = distlab.Slurm(nodes=3, python="/opt/python")
    plan = plan_of(8, engines=job)
    assert (plan.n, plan.engines, plan.hosts.job) == (8, "slurm", job)
    assert [host.ranks for host in plan.hosts.hosts] == [3, 3, 2]
    assert "--cpus-per-task=3" in plan.hosts.hosts[0].command
    assert plan.hosts.python == "/opt/python"


def test_the_nodes_of_an_allocation_are_used(all_installed, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "2")
    assert len(plan_of(4, engines="slurm").hosts.hosts) == 2
    assert len(plan_of(4, engines=distlab.Slurm(nodes=1)).hosts.hosts) == 1


def test_mpi_runs_here_or_on_hosts(all_installed):
    here = plan_of(2, engines="mpi")
    assert (here.engines, here.hosts, here.forks) == ("mpi", None, False)
    there = plan_of(None, engines=distlab.Mpi(interface="ib0"), hosts=TWO_EACH)
    assert (there.n, there.engines, there.hosts.job) == (4, "mpi", None)
    assert there.hosts.start_method.interface == "ib0"


class OwnWay(dict):
    """Hosts that are reached by another command than ssh."""

    here = "10.0.0.9"

    def reach(self, name):
        return ["enter", name]

    def address(self, name):
        return f"10.0.0.{self[name]}"


def test_a_mapping_may_know_its_own_way_to_hosts():
    plan = plan_of(None, hosts=OwnWay(nodeA=1, nodeB=2))
    assert plan.hosts.here == "10.0.0.9"
    assert plan.hosts.hosts[1] == Host("nodeB", 2, ("enter", "nodeB", "sh", "-c"), "10.0.0.2")
