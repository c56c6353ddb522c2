"""`distlab explain` says of a job's dumps what distlab says of the same program on its ranks."""

import json
import os
import subprocess
import sys

import pytest

import distlab
from distlab.scripts.explaining.command import explain
from tests.cluster import zoo_of_collectives  # noqa: F401  (its programs are then in ZOO)
from tests.cluster.zoo import ZOO
from tests.refused import raised

PROGRAMS = {program.__name__: program for _, program, *_ in ZOO}
# the number of ranks of each job; gloo's recorder notes collectives only
JOBS = [
    ("a_broadcast_without_its_root", 2),
    ("a_gather_without_rank_1", 2),
    ("one_all_reduce_too_many", 2),
    ("different_collectives", 2),
    ("two_collectives_in_another_order", 2),
    ("a_future_nobody_completes", 2),
    ("objects_that_one_rank_does_not_gather", 2),
    ("a_parameter_unused_on_one_rank", 2),
    ("shapes_that_differ", 3),
    ("a_batch_fewer_on_one_rank", 3),
    ("the_last_rank_never_comes", 8),
]

pytestmark = pytest.mark.usefixtures("quick_watch")


@pytest.fixture(scope="module")
def dumps(tmp_path_factory):
    """A function that gives the dumps of a job: all jobs run while the first tests do."""
    folder = tmp_path_factory.mktemp("jobs")
    command = [sys.executable, "-m", "tests.cluster.scripts.hanging_jobs", str(folder)]
    names = [f"{name}:{n}" for name, n in JOBS]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen([*command, *names], env=environment, stderr=subprocess.DEVNULL) as jobs:

        def dumps_of(name, n):
            assert jobs.wait(240) == 0
            return str(folder / f"{name}-{n}" / "dumps")

        yield dumps_of


def innermost(lines):
    """The file and number of a call's line."""
    file, number = lines[-1]
    return os.path.basename(file), number


@pytest.mark.parametrize(("name", "sized"), JOBS, indirect=["sized"])
def test_dumps_say_what_living_ranks_say(dumps, sized, name, capsys):
    """The same ranks wait, in the same calls, at the same lines."""
    live = raised(distlab.DeadlockError, sized.run, PROGRAMS[name])
    assert explain([dumps(name, sized.n), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    waiting = {}
    outside = []
    for one in found["ranks"]:
        if one["doing"] == "outside":
            outside.append(one["rank"])
            continue
        lines = [(line["file"], line["line"]) for line in one["lines"]]
        waiting[one["rank"]] = one["op"], innermost(lines)
    expected = {}
    for failed in live.failures:
        op, _, _ = failed.message.partition("(")
        lines = [(line.file, line.number) for line in failed.lines]
        expected[failed.rank] = op, innermost(lines)
    assert waiting == expected
    assert tuple(outside) == live.finished
    first = str(live).split(".")[0].split(" for rank")[0].split(" for gradients")[0]
    assert first in found["why"], str(live)
