"""Every broken program of the zoo ends with its sentence; no correct one is called stuck."""

import importlib
import os
import pathlib
import re
import sys

import pytest

import distlab
from tests.cluster import zoo_of_right_calls
from tests.cluster.conftest import sum_of_ranks
from tests.cluster.programs import STEPS, correct_programs
from tests.cluster.zoo import ZOO, right_programs
from tests.cluster.zoo_of_remote_calls import remotely
from tests.refused import raised

NAMES = sorted(path.stem for path in pathlib.Path(__file__).parents[1].glob("zoo_of_*.py"))
MODULES = [importlib.import_module(f"tests.cluster.{name}") for name in NAMES]
RIGHT = {
    name: right_programs(one)
    for name, one in zip(NAMES, MODULES, strict=True)
    if one is not zoo_of_right_calls
}
# how often each right program runs: TIMES=30 finds what is rarely wrong
TIMES = int(os.environ.get("TIMES", "1"))
# for each size first those whose ranks live: a new rank has to import torch's sharding
ROWS = sorted(ZOO, key=lambda row: (row[0], row[2] == "RankDied"))
LONG = 0.8  # seconds: longer than it takes to report a deadlock here

pytestmark = pytest.mark.usefixtures("quick_watch")


def test_the_zoo_is_large():
    """At least 130 programs."""
    assert len({program for _, program, *_ in ZOO}) >= 130


def sum_and_kept(rank, world_size):
    return sum_of_ranks(rank, world_size), sys.modules["__main__"].kept


@pytest.fixture(scope="module")
def with_kept(sized):
    """The ranks, which have a variable."""
    sized.push({"kept": sized.n})
    return sized


@pytest.mark.parametrize(
    ("sized", "program", "error", "sentence", "options"),
    ROWS,
    indirect=["sized"],
    ids=[f"{row[1].__name__}-{row[0]}" for row in ROWS],
)
def test_a_broken_program_explains_itself(with_kept, program, error, sentence, options):
    """The error has its kind, the sentence and the learner's line, and everything goes on."""
    ranks, n = with_kept, with_kept.n
    failed = raised(distlab.RanksFailed, ranks.run, program, **options)
    words = str(failed)
    assert type(failed).__name__ == error, words
    assert sentence.replace("LAST", str(n - 1)) in words
    assert re.search(r"\bzoo\w*\.py:\d", words) or (error == "RankDied" and "SIGABRT" not in words)
    if error == "RankDied":
        ranks.push({"kept": n})
    assert ranks.run(sum_and_kept) == [(n * (n - 1) / 2, n)] * n


@pytest.mark.parametrize("sized", [4], indirect=True)
@pytest.mark.parametrize("check", [False, True], ids=["plain", "checked"])
@pytest.mark.parametrize("name", [name for name, programs in RIGHT.items() if programs])
def test_right_programs_are_not_refused(sized, name, check, capsys):
    """On four ranks, checked too, they give what they must, and nothing is left over."""
    for program in RIGHT[name] * TIMES:
        assert sized.run(program, check=check) == [True] * 4, program
        assert "did not wait for them" not in capsys.readouterr().err, program


def test_many_right_programs_are_checked():
    """At least 40 that begin something in C++, in threads, or later."""
    assert len(RIGHT["zoo_of_checked_programs"]) >= 40


@pytest.mark.parametrize("sized", [4, 2], indirect=True)
def test_right_remote_calls_are_not_refused(sized):
    """They run on four ranks and on two, and give what they must."""
    for program in right_programs(zoo_of_right_calls):
        assert sized.run(remotely(program)) == [True] * sized.n, program


@pytest.mark.parametrize("sized", [4, 3], indirect=True)
def test_a_soak_of_correct_programs_raises_no_alarm(sized):
    """Random correct programs, half of them checked, some with a slow rank."""
    for seeds, check in ((range(25), False), (range(25, 50), True)):
        steps = sized.run(
            correct_programs, [1000 * sized.n + seed for seed in seeds], LONG, check=check
        )
        assert steps == [steps[0]] * sized.n
        assert len(set(steps[0])) == len(STEPS)
