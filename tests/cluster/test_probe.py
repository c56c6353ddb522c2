"""The probe on real processes, and on backends that hang, die and lie."""

import os
from importlib.util import find_spec

import pytest

import distlab
from distlab import mpiexec
from distlab.probing import _starter
from distlab.probing.driver import AGAIN, Limits, run_cases
from distlab.probing.names import Column
from distlab.probing.trial import WANTS_A_DEVICE

from .conftest import our_processes, pid_on_rank, sum_of_ranks, wait_until_gone

ZOO = """
import os, time
import torch.distributed as dist
from torch.futures import Future


class Done(dist._Work):
    def wait(self, timeout=None):
        return True


class Group(dist.ProcessGroup):
    def __init__(self, rank, size, kind):
        super().__init__(rank, size)
        self.own_rank, self.kind = rank, kind

    def getBackendName(self):
        return self.kind

    def allreduce(self, tensors, options):
        if self.kind == "zoo_wrong":
            tensors[0].fill_(-1)
        elif self.own_rank == 1 and self.kind == "zoo_hangs":
            time.sleep(600)
        elif self.own_rank == 1 and self.kind == "zoo_dies":
            os.abort()
        return Done()

    def barrier(self, opts):
        return Done()

    def broadcast(self, tensors, options):
        raise RuntimeError("we do not broadcast")


for kind in ("zoo_wrong", "zoo_hangs", "zoo_dies"):
    create = lambda store, rank, size, timeout, kind=kind: Group(rank, size, kind)
    dist.Backend.register_backend(kind, create, devices=["cpu"])
"""
NAMES = ("barrier", "all_reduce", "broadcast")
# a call has the usual time, and the more when it is tried again; what never returns is waited for shortly
QUICK = (Limits(call=2.0, silence=2.0), Limits(call=10.0, silence=6.0))


@pytest.fixture(scope="module")
def pair(nothing_left):
    with distlab.Cluster(2, timeout=20) as two:
        yield two


@pytest.fixture
def zoo(tmp_path, monkeypatch):
    """A module that registers three backends in Python."""
    (tmp_path / "zoo_of_backends.py").write_text(ZOO)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    return ["zoo_of_backends"]


def test_what_gloo_can_do(pair):
    """The probe finds what is known of gloo, on processes that are not the cluster's, and leaves nothing behind."""
    pair.push({"mine": 7})
    pids, before = pair.run(pid_on_rank), {process.pid for process in our_processes()}
    probe = distlab.probe(pair, ["gloo", "mpi"])
    assert wait_until_gone(lambda: [p for p in our_processes() if p.pid not in before]) == []
    assert pair.run(pid_on_rank) == pids
    assert pair.pull("mine") == [7, 7]
    assert pair.run(sum_of_ranks) == [1.0, 1.0]
    for name in ("send, recv", "all_reduce", "all_to_all_single uneven", "scatter_object_list", "new_group"):
        assert probe.outcome(name).kind == "works", probe.outcome(name)
    for name in ("SUM float32", "AVG bfloat16", "BXOR int64", "MAX bool", "SUM complex64"):
        assert probe.outcome(name).kind == "works", probe.outcome(name)
    assert probe.outcome("all_gather uneven").kind == "refused"
    assert "non-integral dtype" in probe.outcome("BAND float32").message
    assert "PREMUL_SUM" in probe.outcome("PREMUL_SUM float32").message
    split = probe.outcome("split_group")  # torch before 2.15 splits a group on a machine with a GPU alone
    assert split.kind == "works" or split == ("no device", WANTS_A_DEVICE)
    others = {o.kind for name, o in probe.outcomes[Column("gloo", "cpu")].items() if name != "split_group"}
    assert others == {"works", "refused"}
    import torch.distributed as dist

    if not dist.is_mpi_available():
        assert probe.outcome("broadcast", "mpi").kind == "not built"


def test_a_backend_that_gives_wrong_results_and_refuses(pair, zoo):
    """What a backend says is done is compared with what must come out; a refusal has the backend's own words."""
    todo = [(Column("zoo_wrong", "cpu"), name) for name in NAMES]
    found = run_cases(2, todo, zoo, pair.ranks.environment)[Column("zoo_wrong", "cpu")]
    assert found["barrier"].kind == "works"
    assert found["all_reduce"].kind == "wrong result"
    assert found["broadcast"] == ("refused", "we do not broadcast")


def test_what_ends_a_process_is_found_and_the_rest_is_tried(pair, zoo):
    """A case that aborts its process is blamed; the others run on new processes, other backends too."""
    todo = [(Column(backend, "cpu"), name) for backend in ("zoo_dies", "gloo") for name in NAMES]
    told = []
    found = run_cases(2, todo, zoo, pair.ranks.environment, tell=lambda done, what: told.append((done, what)))
    dies = found[Column("zoo_dies", "cpu")]
    assert dies["all_reduce"].kind == "ends the process"
    assert "SIGABRT" in dies["all_reduce"].message
    assert dies["broadcast"].kind == "refused"
    assert {outcome.kind for outcome in found[Column("gloo", "cpu")].values()} == {"works"}
    assert told
    assert all(0 <= done <= len(todo) and what in NAMES for done, what in told)


def test_processes_that_mpiexec_starts(pair):
    """Started together by mpiexec, they find their numbers in what it gives them, and end with it."""
    if mpiexec.find() is None:
        pytest.skip("there is no mpiexec here")
    before = {process.pid for process in our_processes()}
    todo = [(Column("gloo", "cpu"), name) for name in NAMES]
    found = run_cases(2, todo, [], pair.ranks.environment, _starter("mpi", 2))[Column("gloo", "cpu")]
    assert {outcome.kind for outcome in found.values()} == {"works"}
    assert wait_until_gone(lambda: [p for p in our_processes() if p.pid not in before]) == []


def test_a_backend_that_nobody_registered(pair):
    """A name that is no backend's is told apart from one that this torch was built without."""
    column = Column("carrier_pigeon", "cpu")
    found = run_cases(2, [(column, "barrier")], [], pair.ranks.environment)
    assert found == {column: {"barrier": ("not built", "no module has registered it")}}


@pytest.mark.parametrize("backends", ["mpi4py", ["MPI4PY", "mpi4py"]])
def test_a_backend_of_ours_is_registered_however_it_is_named(pair, backends, monkeypatch):
    """One name without a list, or in capitals, brings the module that registers it, and is tried once."""
    asked = []
    monkeypatch.setattr(
        "distlab.probing.driver.run_cases", lambda size, todo, modules, *_: asked.append((todo, modules))
    )
    distlab.probe(pair, backends, modules="zoo_of_backends")
    [(todo, modules)] = asked
    assert modules == ["zoo_of_backends", "distlab.mpi_backend"]
    assert [column for column, name in todo if name == "barrier"] == [Column("mpi4py", "cpu"), Column("mpi4py", "cuda")]


def test_what_hangs_is_ended(pair, zoo):
    """A case that never returns, the second time neither, is given up, its processes end, and the rest is tried."""
    todo = [(Column("zoo_hangs", "cpu"), name) for name in NAMES]
    before = {process.pid for process in our_processes()}
    found = run_cases(2, todo, zoo, pair.ranks.environment, limits=QUICK)[Column("zoo_hangs", "cpu")]
    assert found["all_reduce"] == ("hangs", "it did not return within 6 s")
    assert found["broadcast"].kind == "refused"
    assert wait_until_gone(lambda: [p for p in our_processes() if p.pid not in before]) == []


STALL = """
import os, pathlib, time
import torch.distributed as dist

stalled, all_reduce = pathlib.Path(__file__).with_name("stalled"), dist.all_reduce


def stall_once(*args, **options):
    if os.environ["DISTLAB_PROBE_RANK"] == "1" and not stalled.exists():
        stalled.touch()
        time.sleep({seconds})
    return all_reduce(*args, **options)


dist.all_reduce = stall_once
"""


@pytest.mark.parametrize(
    ("seconds", "first"), [(600, Limits(call=2.0, silence=2.0)), (2.5, Limits(call=1.0, silence=20.0))]
)
def test_what_stalls_once_works(pair, zoo, tmp_path, seconds, first):
    """A rank that stops for a while, once, does not make its case hang, whoever gives up: the notebook or gloo."""
    (tmp_path / "stall.py").write_text(STALL.format(seconds=seconds))
    todo = [(Column("gloo", "cpu"), name) for name in NAMES]
    found = run_cases(2, todo, ["stall"], pair.ranks.environment, limits=(first, AGAIN))[Column("gloo", "cpu")]
    assert (tmp_path / "stalled").exists()
    assert {outcome.kind for outcome in found.values()} == {"works"}, found


LATE_LEAVE = """
import os, pathlib, time
import torch.distributed as dist

left, rank = pathlib.Path(__file__).with_name("left"), os.environ["DISTLAB_PROBE_RANK"]
join, destroy = dist.init_process_group, dist.destroy_process_group
groups = []


def leave_late():
    destroy()
    if rank == "1":
        time.sleep(0.5)
        left.touch()


def join_after(*args, **options):
    if groups and not left.exists():
        left.with_name("early").touch()
    groups.append(0)
    join(*args, **options)


dist.destroy_process_group, dist.init_process_group = leave_late, join_after
"""


def test_a_case_begins_when_all_have_left_the_group_before(pair, zoo, tmp_path):
    """After a case that was refused no rank goes on while another still leaves its group."""
    (tmp_path / "late_leave.py").write_text(LATE_LEAVE)
    todo = [(Column("gloo", "cpu"), name) for name in ("BAND float32", "barrier")]
    found = run_cases(2, todo, ["late_leave"], pair.ranks.environment)[Column("gloo", "cpu")]
    assert [outcome.kind for outcome in found.values()] == ["refused", "works"], found
    assert (tmp_path / "left").exists()
    assert not (tmp_path / "early").exists()


BAD_END = """
import os, pathlib, signal, time
import torch.distributed as dist

again = pathlib.Path(__file__).with_name("begun-" + os.environ["DISTLAB_PROBE_RANK"])
assert not (again.exists() and {once}), "once is enough"
again.touch()
dist.destroy_process_group = lambda: {act}
"""
TWO_COLUMNS = [(Column("gloo", "cpu"), "barrier"), (Column("carrier_pigeon", "cpu"), "barrier")]


@pytest.fixture
def bad_end(zoo, tmp_path):
    """Write a module that makes the processes act where a group is left, and may be imported once only."""

    def write(act, once=False):
        (tmp_path / "bad_end.py").write_text(BAD_END.format(act=act, once=once))
        return ["bad_end"]

    return write


@pytest.mark.parametrize("act", ["os.kill(os.getpid(), signal.SIGSEGV)", "time.sleep(600)"])
def test_a_bad_end_after_the_last_case_loses_nothing(pair, bad_end, act):
    """Processes that crash or stop between two cases: what they had found stays, and the rest is tried."""
    found = run_cases(2, TWO_COLUMNS, bad_end(act), pair.ranks.environment, limits=QUICK)
    kinds = {column.backend: cases["barrier"].kind for column, cases in found.items()}
    assert kinds == {"gloo": "works", "carrier_pigeon": "not built"}


@pytest.mark.parametrize("act", ["(time.sleep(0.5), os.kill(os.getpid(), signal.SIGSEGV))", "time.sleep(600)"])
def test_a_bad_end_is_not_the_fault_of_the_next_case(pair, bad_end, zoo, act):
    """One process crashes or stops between two cases, where the other waits for it: the next case is tried anew."""
    modules = bad_end(f'os.environ["DISTLAB_PROBE_RANK"] == "1" and {act}')
    todo = [(Column(backend, "cpu"), "barrier") for backend in ("gloo", "zoo_wrong")]
    found = run_cases(2, todo, [*zoo, *modules], pair.ranks.environment, limits=QUICK)
    assert [cases["barrier"].kind for cases in found.values()] == ["works", "works"]


def test_processes_that_do_not_start_again(pair, bad_end):
    """What was found before stays, the rest is called not tried, and no more processes are started in vain."""
    modules = bad_end("os.kill(os.getpid(), signal.SIGSEGV)", once=True)
    found = run_cases(2, TWO_COLUMNS, modules, pair.ranks.environment, limits=(AGAIN, AGAIN))  # once must be enough
    first, second = (cases["barrier"] for cases in found.values())
    assert first.kind == "works"
    assert second == ("not tried", "its processes did not start: ended with exit status 1")


def test_processes_that_do_not_start(pair):
    """A module that cannot be imported: an error with what Python said, not an endless wait."""
    todo = [(Column("gloo", "cpu"), "barrier")]
    with pytest.raises(distlab.ClusterError, match=r"(?s)did not start.*No module named 'no_such_module'"):
        run_cases(2, todo, ["no_such_module"], pair.ranks.environment)


# from here on, clusters that replace the one that the tests above share


def test_the_backend_over_mpi4py(nothing_left):
    """On a cluster of mpiexec's, the probe finds what the backend over mpi4py can do, beside gloo."""
    if mpiexec.find() is None or find_spec("mpi4py") is None:
        pytest.skip("there is no MPI here")
    with distlab.Cluster(2, engines="mpi", backend="mpi4py") as cluster:
        probe = distlab.probe(cluster, ["gloo", "mpi4py"])
        assert cluster.run(sum_of_ranks) == [1.0, 1.0]
    for name in ("send, recv", "all_reduce", "all_to_all_single uneven", "new_group", "SUM int16"):
        assert probe.outcome(name, "mpi4py").kind == "works", probe.outcome(name, "mpi4py")
    kinds = {outcome.kind for outcome in probe.outcomes[Column("mpi4py", "cpu")].values()}
    assert {"works", "refused"} <= kinds <= {"works", "refused", "no device"}  # for split_group torch 2.13 wants a GPU


def test_one_rank_has_nobody_to_talk_to(nothing_left):
    """The probe wants two ranks or more, and a list of backends."""
    with distlab.Cluster(1) as alone, pytest.raises(distlab.ArgumentError) as caught:
        distlab.probe(alone)
    assert str(caught.value) == (
        "cluster must be of 2 ranks or more, to have somebody to talk to, got 1. Make one: Cluster(2)."
    )


@pytest.mark.parametrize("backends", [[], 3, [1]])
def test_backends_are_names(nothing_left, backends):
    """Anything but a list of names is refused."""
    with distlab.Cluster(2) as cluster, pytest.raises(distlab.ArgumentTypeError, match=r"^backends must be a list"):
        distlab.probe(cluster, backends)
