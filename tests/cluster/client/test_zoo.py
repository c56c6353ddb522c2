"""Every broken program of the zoo ends by itself, with its sentence; no correct program is called stuck."""

import pytest

import distlab
from tests.cluster import zoo_of_waits  # noqa: F401 - adds its programs
from tests.cluster.conftest import sum_of_ranks
from tests.cluster.programs import STEPS, correct_programs
from tests.cluster.zoo import ZOO
from tests.cluster.zoo_of_peers import RIGHT

ROWS = sorted(ZOO, key=lambda row: row[0])
LONG = 0.8  # seconds: longer than a deadlock needs to be told here

pytestmark = pytest.mark.usefixtures("quick_watch")


@pytest.fixture(scope="module")
def ranks_of():
    """Gives a cluster of n ranks; the one that runs is kept while n stays the same."""
    running = []

    def of(n):
        if not running or running[0].n != n:
            running[:] = [distlab.Cluster(n, timeout=60)]
        return running[0]

    yield of
    for cluster in running:
        cluster.stop()


def test_the_zoo_is_large():
    """At least 40 programs."""
    assert len({program for _, program, *_ in ZOO}) >= 40


@pytest.mark.parametrize(
    ("n", "program", "error", "sentence", "options"), ROWS, ids=[f"{row[1].__name__}-{row[0]}" for row in ROWS]
)
def test_a_broken_program_explains_itself(ranks_of, n, program, error, sentence, options):
    """The error is of the right kind, holds the sentence and the learner's line, and everything goes on."""
    cluster = ranks_of(n)
    cluster.push({"kept": n})
    with pytest.raises(distlab.RanksFailed) as caught:
        cluster.run(program, **options)
    said = str(caught.value)
    assert type(caught.value).__name__ == error, said
    assert sentence.replace("LAST", str(n - 1)) in said
    assert "line" in said or error == "RankDied"
    assert cluster.run(sum_of_ranks) == [n * (n - 1) / 2] * n
    if error != "RankDied":
        assert cluster.pull("kept") == [n] * n


@pytest.mark.parametrize("check", [False, True], ids=["plain", "checked"])
def test_right_programs_are_not_refused(ranks_of, check):
    """They run on four ranks, checked too, and give what they must."""
    for program in RIGHT:
        assert ranks_of(4).run(program, check=check) == [True] * 4, program


@pytest.mark.parametrize("n", [4, 3, 2])
def test_a_soak_of_correct_programs_raises_no_alarm(ranks_of, n):
    """70 random correct programs on each number of ranks, half of them checked, some with a rank that is slow."""
    for seeds, check in ((range(35), False), (range(35, 70), True)):
        steps = ranks_of(n).run(correct_programs, [1000 * n + seed for seed in seeds], LONG, check=check)
        assert steps == [steps[0]] * n
        assert len(set(steps[0])) == len(STEPS)
