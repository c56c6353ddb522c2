"""No right program gets a complaint: each does the same as one process, or says why not."""

import importlib
import os
import pathlib
import re

import pytest

import distlab
from tests.cluster.comparison.zoo_of_same_programs import SAME
from tests.cluster.comparison.zoo_of_same_programs_not_compared import NOT_COMPARED

for file in sorted(pathlib.Path(__file__).parent.glob("zoo_of_same_programs_*.py")):
    importlib.import_module(f"tests.cluster.comparison.{file.stem}")

# how often each program is compared: TIMES=20 finds what is rarely wrong
TIMES = int(os.environ.get("TIMES", "1"))
FIRST = re.compile(
    r"The same as one process: (\d+) steps?, (\d+) parameters?\. The relative "
    r"difference nearest to its bound is (\S+) \(rounding explains up to (\S+)\)\."
)


def test_the_zoo_is_large():
    """At least 100 right programs, and 8 that cannot be compared."""
    assert len({program.train for program in SAME}) >= 100
    assert len({train for train, _ in NOT_COMPARED}) >= 8


@pytest.mark.parametrize("program", SAME, ids=[one.train.__name__ for one in SAME])
def test_a_right_program_gets_no_complaint(cluster, program):
    """It does the same in all its worlds, and the first sentence counts steps and parameters."""
    for _ in range(TIMES):
        verdict = distlab.compare(program.train, program.worlds)
        words = " ".join(repr(verdict).split())
        assert verdict.findings == (), words
        assert verdict.same, words
        steps, parameters, difference, tolerance = FIRST.match(words).groups()
        assert (int(steps), int(parameters)) == (program.steps, program.parameters)
        assert float(difference) <= float(tolerance)


@pytest.mark.parametrize(
    ("train", "causes"), NOT_COMPARED, ids=[train.__name__ for train, _ in NOT_COMPARED]
)
def test_a_program_that_cannot_be_compared_says_why(cluster, train, causes):
    """Nothing calls it wrong, and nothing the same."""
    for _ in range(TIMES):
        verdict = distlab.compare(train, (1, 4))
        words = " ".join(repr(verdict).split())
        assert not verdict.same, words
        assert words.startswith("Cannot be compared"), words
        assert all(finding.hinders for finding in verdict.findings), words
        assert verdict.findings[0].cause in causes, words
