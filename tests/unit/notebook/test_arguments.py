"""Arguments of Cluster(...): each bad one is refused before anything starts."""

from types import SimpleNamespace

import pytest

import distlab
from distlab.notebook import plan, start_methods
from distlab.notebook.attached import Attached
from distlab.words import rank_list
from tests.plans import plan_of
from tests.refused import refused

WHOLE = "n must be a whole number of 1 or more, got"
METHODS = "init_method must be one of 'tcp', 'env', 'file', got"
TCP = 'Call Cluster(n) or Cluster(n, init_method="tcp").'
THREADS = "threads must be a whole number of 1 or more, got"
PRELOAD, NUMPY = (
    "preload must be a list of modules that are installed here, got",
    'Call Cluster(4, preload=["numpy"]).',
)


@pytest.mark.parametrize(
    ("given", "kind", "message"),
    [
        ({"n": 0}, ValueError, f"{WHOLE} 0. Call Cluster(4)."),
        ({"n": "4"}, TypeError, f"{WHOLE} '4'. Call Cluster(4)."),
        ({"n": 2, "init_method": "multicast"}, ValueError, f"{METHODS} 'multicast'. {TCP}"),
        (
            {"n": 2, "timeout": "soon"},
            ValueError,
            "timeout must be above 0, got 'soon'. For example: timeout=5.",
        ),
        (
            {"n": 2, "timeout": "5m"},
            ValueError,
            "timeout must be above 0, got '5m'. For example: timeout=5.",
        ),
        ({"n": 2, "threads": 0}, ValueError, f"{THREADS} 0. Call Cluster(n, threads=1)."),
        ({"n": 2, "preload": "wave"}, ValueError, f"{PRELOAD} 'wave'. {NUMPY}"),
        ({"n": 2, "preload": ["no_such"]}, ValueError, f"{PRELOAD} ['no_such']. {NUMPY}"),
        (
            {"n": 2, "fresh": "yes"},
            TypeError,
            "fresh must be a bool, got 'yes'. Call Cluster(4, fresh=True).",
        ),
    ],
)
def test_bad_arguments_of_cluster(given, kind, message):
    """Nothing starts, and the error says name, rule, value and what to call."""
    error = refused(distlab.Cluster, **given)
    assert str(error) == message
    assert isinstance(error, kind)


def test_backends_and_init_methods_as_torch_writes_them():
    """A backend's name may be in capitals, a module's not; a URL may be an init method."""
    backends, methods = ["gloo", "GLOO", "tests.cluster"], ["env", "env://", "tcp://", "file://"]
    assert [plan.check_backend(name, 2) for name in backends] == ["gloo", "gloo", "tests.cluster"]
    made = [plan_of(init_method=method) for method in methods]
    assert [one.init_method for one in made] == ["env", "env", "tcp", "file"]


def test_an_unknown_launcher_lists_the_known_ones():
    """Written in capitals, too."""
    assert str(refused(distlab.Cluster, 2, engines="rocket")) == (
        "engines must be one of 'fork', 'local', 'mpi', 'slurm', 'ssh', "
        "got 'rocket'. Call Cluster(n) or Cluster(n, engines=\"local\")."
    )
    assert start_methods.check_start_method("MPI") == "mpi"


def test_ranks_in_words():
    """Runs are folded; other tests have fewer ranks."""
    assert rank_list([0, 2, 5, 6, 7]) == "ranks 0, 2 and 5-7"


def test_fresh_ranks_need_processes_that_are_started():
    """ipyparallel's own are fresh anyway; attached engines are what others have started."""
    assert plan_of(fresh=True).fresh
    assert plan_of(engines="local", fresh=True).fresh
    attached = Attached(SimpleNamespace(ids=[0, 1]), "default")
    assert str(refused(plan_of, None, engines=attached, fresh=True)) == (
        "fresh=True starts new interpreters, but attached engines already run. Leave it out, "
        "or call Cluster(4, fresh=True)."
    )


def test_which_processes_can_start_fresh_ranks():
    """A server that has imported torch serves both; one whose first ranks were fresh has not."""
    forked = plan_of()
    fresh = plan_of(fresh=True)
    assert fresh.starts_like(forked)
    assert fresh.starts_like(fresh)
    assert not forked.starts_like(fresh)
