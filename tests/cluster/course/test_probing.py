"""The probe of lab 31 on real ranks, and cases that lie, die and hang."""

import os
import time

import pytest

import distlab_course
from distlab_course import probing

CLUSTER = {"n": 2, "timeout": 20}


def test_what_gloo_can_do(usable):
    """The probe finds what is known of gloo, leaves the ranks and their variables alone, and shows itself."""
    usable.push({"mine": 7})
    probed = distlab_course.probe(usable, ["gloo", "no_such_backend"])
    assert usable.pull("mine") == [7, 7]
    (words,) = probed.outcomes.values()
    works = [*probing.FUNCTIONS, "SUM float32", "AVG bfloat16", "BXOR int64", "MAX bool", "SUM complex64"]
    assert {name for name in works if words[name] != "yes"} == {"all_gather uneven"}
    assert "non-integral dtype" in probed.messages["gloo cpu"]["BAND float32"]
    assert {*words.values()} == {"yes", "no"}
    assert "gloo cpu: all_gather uneven" in repr(probed)
    assert "all_reduce on gloo cpu" in repr(probed)


@pytest.mark.parametrize(
    ("case", "outcome"),
    [
        (lambda rank, world_size: rank == 0, ("WRONG", "")),
        (lambda rank, world_size: 1 / 0, ("no", "division by zero")),
        (lambda rank, world_size: rank == 0 or os.abort(), ("DIES", "")),
        (lambda rank, world_size: time.sleep(600 * rank), ("HANGS", "")),
    ],
    ids=["lies", "refuses", "dies", "hangs"],
)
def test_cases_that_lie_refuse_die_and_hang(usable, monkeypatch, case, outcome):
    """A wrong result is told from a right one, a refusal has its words, and a hang or death ends no other case."""
    monkeypatch.setattr(probing, "SECONDS", 3.0)
    word, message = probing.attempt(usable, case)
    assert (word, message[: len(outcome[1])] or message) == outcome
    monkeypatch.undo()
    assert probing.attempt(usable, probing.try_case, "all_reduce", "gloo", "cpu") == ("yes", "")
