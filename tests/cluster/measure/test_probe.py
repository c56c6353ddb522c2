"""The probe on real ranks, and cases that hang, die and lie."""

import os
import time
from importlib.util import find_spec

import pytest
import torch.distributed as dist

import distlab
from distlab.client import probe
from distlab.launch import mpiexec
from distlab.measure.probe_cases import CASES, missing
from distlab.measure.probe_result import Column
from tests.cluster.conftest import our_processes, pid_on_rank, wait_until_gone

GLOO = Column("gloo", "cpu")


CLUSTER = {"n": 2, "timeout": 20}


def test_what_gloo_can_do(usable, capfd):
    """The probe finds what is known of gloo, prints nothing, and leaves the cluster and its variables alone."""
    usable.push({"mine": 7})
    pids, before = usable.run(pid_on_rank), {process.pid for process in our_processes()}
    probed = distlab.probe(usable, ["gloo", "MPI"])
    assert capfd.readouterr().out == ""
    assert distlab.Cluster.current is usable
    assert wait_until_gone(lambda: [p for p in our_processes() if p.pid not in before]) == []
    assert usable.run(pid_on_rank) == pids
    assert usable.pull("mine") == [7, 7]
    functions = ("send, recv", "all_reduce", "all_to_all_single uneven", "scatter_object_list", "new_group")
    for name in (*functions, "SUM float32", "AVG bfloat16", "BXOR int64", "MAX bool", "SUM complex64"):
        assert probed.outcome(name).kind == "works", (name, probed.outcome(name))
    assert probed.outcome("all_gather uneven").kind == "refused"
    assert "non-integral dtype" in probed.outcome("BAND float32").message
    assert "PREMUL_SUM" in probed.outcome("PREMUL_SUM float32").message
    split = probed.outcome("split_group")  # torch before 2.15 splits a group on a machine with a GPU alone
    assert split.kind == "works" or split == ("no device", probe.WANTS_A_DEVICE)
    others = {o.kind for name, o in probed.outcomes[GLOO].items() if name != "split_group"}
    assert others == {"works", "refused"}
    if not dist.is_mpi_available():
        assert probed.outcome("broadcast", "mpi") == ("not built", "this torch was built without it")


def test_cases_that_lie_refuse_die_and_hang(usable, monkeypatch, tmp_path, capfd):
    """A wrong result is told from a right one, a refusal has its words, and a hang or death ends no other case."""

    def refuses(at):
        raise RuntimeError("we do not broadcast")

    def attempt(call, check=lambda at: True):
        return probe.attempt(usable, GLOO, (call, check), str(tmp_path / "meeting"))

    monkeypatch.setattr(probe, "SECONDS", 2.0)
    assert attempt(lambda at: None, lambda at: at.rank == 0) == ("wrong result", "")
    assert attempt(refuses) == ("refused", "we do not broadcast")
    kind, message = attempt(lambda at: at.rank == 0 or os.abort())
    assert (kind, message[:33]) == ("ends the process", "the process was killed by SIGABRT")
    assert attempt(lambda at: time.sleep(600 * at.rank)) == ("hangs", "rank 1 did not come back within 2 s.")
    monkeypatch.undo()
    assert attempt(*CASES["all_reduce"]) == ("works", "")
    assert capfd.readouterr().out == ""


@pytest.mark.parametrize(
    ("attribute", "value", "backends", "message"),
    [
        ("n", 1, "gloo", "^cluster must be of 2 ranks or more, to have somebody to talk to, got 1. Make one: Cluster"),
        ("_ranks", None, "gloo", "^This cluster .* Make one with distlab.Cluster"),
        ("n", 2, [], r"^backends must be a list of names of backends, such as \[\"gloo\"\], got \[\]. Call distlab.pr"),
    ],
)
def test_a_cluster_that_cannot_be_probed_is_refused(usable, monkeypatch, attribute, value, backends, message):
    """One rank has nobody to talk to, a cluster that was stopped has none, and no backend is nothing to try."""
    monkeypatch.setattr(distlab.Cluster if attribute == "n" else usable, attribute, value)
    with pytest.raises(distlab.DistlabError, match=message):
        distlab.probe(usable, backends)


def test_a_backend_that_is_not_registered_is_named(usable):
    """Its columns have the reason, which is another one than for a backend that torch knows."""
    unknown = Column("carrier_pigeon", "cpu")
    assert usable.run(missing, [GLOO, unknown]) == [{unknown: ("not built", "no module has registered it")}] * 2


def test_a_death_among_ranks_that_mpiexec_started(nothing_left, tmp_path):
    """There a rank that dies takes the others with it: new ones try the rest."""
    if mpiexec.find() is None or find_spec("mpi4py") is None:
        pytest.skip("there is no MPI here")
    with distlab.Cluster(2, engines="mpi") as cluster:
        dies = (lambda at: at.rank == 0 or os.abort(), lambda at: True)
        for case, kind in [(dies, "ends the process"), (CASES["barrier"], "works")]:
            assert probe.attempt(cluster, GLOO, case, str(tmp_path / "meeting")).kind == kind
