"""A cluster on the nodes of Slurm: srun, ranks by node, partitions, queues, sbatch."""

import re
import shlex
import subprocess
import sys
from types import SimpleNamespace

import pytest

import distlab
from distlab.notebook import export
from tests.cluster.conftest import sum_of_ranks
from tests.network.programs import place
from tests.processes import python, until, wait_until_gone
from tests.refused import raised, refused


def queue():
    """What Slurm knows of jobs."""
    return subprocess.run(["squeue", "-h"], capture_output=True, text=True, timeout=60).stdout


def batch(*words):
    """Run a job of sbatch to its end, and make sure that it is well."""
    answer = subprocess.run(["sbatch", *words], timeout=60, capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr
    assert wait_until_gone(queue, patience=200) == ""
    show = ["scontrol", "show", "job", answer.stdout.split()[-1]]
    assert "ExitCode=0:0" in subprocess.run(show, timeout=60, capture_output=True, text=True).stdout


@pytest.fixture
def no_job_left(slurm):
    yield
    if distlab.Cluster.current is not None:
        distlab.Cluster.current.stop()
    assert wait_until_gone(queue) == ""


def test_ranks_on_two_nodes(slurm, no_job_left):
    """As many on each as on the other, or one more; everything works as on one machine."""
    slurm_job = distlab.Slurm(nodes=2, partition="debug", time="5:00")
    with distlab.Cluster(5, engines=slurm_job, timeout=20) as cluster:
        assert [where[0] for where in cluster.run(place)] == ["nodeA"] * 3 + ["nodeB"] * 2
        assert repr(cluster).startswith(
            "Cluster(5) on nodeA and nodeB: backend gloo, engines slurm\n"
        )
        cluster.restart()
        assert cluster.run(sum_of_ranks) == [10.0] * 5
    assert wait_until_gone(queue) == ""


def test_inside_of_an_allocation_its_nodes_are_used(slurm, no_job_left, tmp_path):
    """A script that sbatch runs starts a cluster on the nodes that it was given."""
    code = (
        "import distlab; c = distlab.Cluster(4, engines='slurm'); "
        "print(c.run(lambda r, n: r)); print(c); c.stop()"
    )
    program = f"--wrap={shlex.join([sys.executable, '-c', code])}"
    batch("-N2", "--cpus-per-task=2", f"--output={tmp_path}/out", program)
    assert (tmp_path / "out").read_text().startswith("[0, 1, 2, 3]\nCluster(4) on nodeA and nodeB")


SESSION = """\
import distlab
cell = "t = torch.tensor([float(rank)]); dist.all_reduce(t); print(f'rank {rank}: {t.item()}')"
with distlab.Cluster(4, engines=distlab.Slurm(nodes=2, time="5:00"), timeout=20) as cluster:
    get_ipython().run_cell_magic("px", "", cell)
    print(cluster.export("train.py"))
"""


def test_an_exported_script_runs_by_sbatch(slurm, no_job_left, tmp_path, monkeypatch):
    """On the nodes, with torchrun, and prints the same; from a folder whose name has a space."""
    folder = tmp_path / "my folder"
    folder.mkdir()
    monkeypatch.chdir(folder)
    (folder / "session.ipy").write_text(SESSION)
    session = python("-m", "IPython", "--colors=nocolor", "session.ipy")
    assert session.stdout.endswith("train.py: 1 cell\nRun it: sbatch train.sbatch\n"), (
        session.stdout + session.stderr
    )
    assert "#SBATCH --nodes=2\n" in (folder / "train.sbatch").read_text()
    batch("--output=out", "train.sbatch")
    # lines of two processes may mix
    printed = re.findall(r"rank \d: \d+\.\d", (folder / "out").read_text())
    assert sorted(printed) == [f"rank {r}: 6.0" for r in range(4)]


UNTIL_IT_IS_TOLD = """\
import signal, time
told = []
signal.signal(signal.SIGTERM, lambda *_: told.append(True))
print("running", flush=True)
while not told:
    time.sleep(0.1)
print("told to end", flush=True)
"""


def test_an_exported_job_returns_to_the_queue_before_its_time_is_up(slurm, no_job_left, tmp_path):
    """The signal that Slurm sends then: ranks get SIGTERM, and the job waits to run again."""
    plan = SimpleNamespace(n=2, backend="gloo", threads=1, hosts=None)
    cell = export.ScriptStep("cell", (0, 1), UNTIL_IT_IS_TOLD)
    export.write([cell], tmp_path / "train.py", False, plan, [], True)
    file = tmp_path / "train.sbatch"
    file.write_text(file.read_text().replace("##SBATCH", "#SBATCH"))
    submit = ["sbatch", "--parsable", f"--output={tmp_path}/out", str(file)]
    number = subprocess.run(
        submit, capture_output=True, text=True, check=True, timeout=60
    ).stdout.strip()
    try:
        assert (
            wait_until_gone(lambda: _printed(tmp_path / "out", "running") < 2, patience=200)
            is False
        )
        subprocess.run(["scancel", "--batch", "--signal=USR1", number], check=True, timeout=60)
        until(lambda: "JobState=PENDING" in _shown(number))
        assert "Restarts=1" in _shown(number)
        until(lambda: _printed(tmp_path / "out", "told to end") == 2)
    finally:
        subprocess.run(["scancel", number], check=True, timeout=60)


def _printed(path, words):
    """How often a job's output has these words."""
    return path.read_text().count(words) if path.exists() else 0


def _shown(number):
    """What Slurm says of a job."""
    return subprocess.run(
        ["scontrol", "show", "job", number], capture_output=True, text=True, timeout=60
    ).stdout


@pytest.mark.parametrize(
    ("partition", "words"),
    [("nope", "Invalid partition name specified."), ("down", "Requested nodes are busy.")],
)
def test_what_slurm_refuses(slurm, no_job_left, partition, words):
    """In srun's words, with where to look; no job is left of one that does not start in time."""
    job = distlab.Slurm(partition=partition, queue_timeout=3)
    error = str(raised(distlab.errors.HostError, distlab.Cluster, 2, engines=job))
    assert error.startswith(
        f"srun: error: Unable to allocate resources: {words} `squeue` shows the queue, "
    )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"engines": distlab.Slurm(nodes=3)},
            (
                "Each node needs a rank: n is 2, and there are 3 nodes. "
                "Call Cluster(8, engines=Slurm(nodes=2))."
            ),
        ),
        (
            {"engines": "slurm", "hosts": {"a": 1}},
            (
                'engines="slurm" needs no hosts=, because Slurm chooses them. '
                "Call Cluster(8, engines=Slurm(nodes=2))."
            ),
        ),
    ],
)
def test_arguments_that_do_not_fit(slurm, options, words):
    """At once, with what to call."""
    assert str(refused(distlab.Cluster, 2, **options)) == words


def test_without_slurm(monkeypatch):
    """The programs are missed at once."""
    monkeypatch.setenv("PATH", "/nowhere")
    assert str(refused(distlab.Cluster, 2, engines="slurm")) == (
        'engines="slurm" needs srun, which was not found: '
        "run this on a machine of the Slurm cluster, or call Cluster(n)."
    )
