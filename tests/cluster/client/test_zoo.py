"""Every broken program of the zoo ends by itself, with its sentence; no correct program is called stuck."""

import pytest

import distlab
from tests.cluster import zoo_of_pipelines, zoo_of_sharding, zoo_of_waits  # noqa: F401 - they add their programs
from tests.cluster.conftest import sum_of_ranks
from tests.cluster.programs import STEPS, correct_programs
from tests.cluster.zoo import ZOO
from tests.cluster.zoo_of_peers import RIGHT
from tests.cluster.zoo_of_remote_calls import remotely
from tests.cluster.zoo_of_right_calls import RIGHT_REMOTELY
from tests.refused import raised

ROWS = sorted(ZOO, key=lambda row: row[0])
LONG = 0.8  # seconds: longer than a deadlock needs to be told here

pytestmark = pytest.mark.usefixtures("quick_watch")


def test_the_zoo_is_large():
    """At least 40 programs."""
    assert len({program for _, program, *_ in ZOO}) >= 40


@pytest.mark.parametrize(
    ("sized", "program", "error", "sentence", "options"),
    ROWS,
    indirect=["sized"],
    ids=[f"{row[1].__name__}-{row[0]}" for row in ROWS],
)
def test_a_broken_program_explains_itself(sized, program, error, sentence, options):
    """The error is of the right kind, holds the sentence and the learner's line, and everything goes on."""
    n = sized.n
    sized.push({"kept": n})
    failed = raised(distlab.RanksFailed, sized.run, program, **options)
    said = str(failed)
    assert type(failed).__name__ == error, said
    assert sentence.replace("LAST", str(n - 1)) in said
    assert "line" in said or error == "RankDied"
    assert sized.run(sum_of_ranks) == [n * (n - 1) / 2] * n
    if error != "RankDied":
        assert sized.pull("kept") == [n] * n


@pytest.mark.parametrize("sized", [4], indirect=True)
@pytest.mark.parametrize("check", [False, True], ids=["plain", "checked"])
def test_right_programs_are_not_refused(sized, check):
    """They run on four ranks, checked too, and give what they must."""
    for program in RIGHT:
        assert sized.run(program, check=check) == [True] * 4, program


@pytest.mark.parametrize("sized", [4, 2], indirect=True)
def test_right_remote_calls_are_not_refused(sized):
    """They run on four ranks and on two, and give what they must."""
    for program in RIGHT_REMOTELY:
        assert sized.run(remotely(program)) == [True] * sized.n, program


@pytest.mark.parametrize("sized", [4, 3, 2], indirect=True)
def test_a_soak_of_correct_programs_raises_no_alarm(sized):
    """70 random correct programs on each number of ranks, half of them checked, some with a rank that is slow."""
    for seeds, check in ((range(35), False), (range(35, 70), True)):
        steps = sized.run(correct_programs, [1000 * sized.n + seed for seed in seeds], LONG, check=check)
        assert steps == [steps[0]] * sized.n
        assert len(set(steps[0])) == len(STEPS)
