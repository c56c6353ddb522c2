"""The probe of lab 31 on real ranks, and cases that lie, die and hang."""

import os
import time

import pytest

import distlab_course
from distlab_course import probing

CLUSTER = {"n": 2, "timeout": 20}


def test_what_gloo_can_do(usable):
    """The probe finds what is known of gloo, and leaves ranks and variables alone."""
    usable.push({"mine": 7})
    probed = distlab_course.probe(usable, ["gloo", "no_such_backend"])
    assert usable.pull("mine") == [7, 7]
    (words,) = probed.outcomes.values()
    works = [
        *probing.FUNCTIONS,
        "SUM float32",
        "AVG bfloat16",
        "BXOR int64",
        "MAX bool",
        "SUM complex64",
    ]
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
        (
            lambda rank, world_size: rank == 0 or os.abort(),
            ("DIES", "rank 1 was killed by SIGABRT"),
        ),
        (
            lambda rank, world_size: time.sleep(600 * rank),
            ("HANGS", "rank 1 did not come back within 3 s."),
        ),
    ],
    ids=["lies", "refuses", "dies", "hangs"],
)
def test_cases_that_lie_refuse_die_and_hang(usable, monkeypatch, case, outcome):
    """Wrong results and refusals are told apart, and a hang or a death ends no other case."""
    monkeypatch.setattr(probing, "SECONDS", 3.0)
    word, message = probing.attempt(usable, case)
    assert (word, message[: len(outcome[1])] or message) == outcome
    monkeypatch.undo()
    assert probing.attempt(usable, probing.try_case, "all_reduce", "gloo", "cpu") == ("yes", "")


def late(rank, world_size):
    """Seconds in a case in which only the last rank has something to do, for half a second."""
    probing.FUNCTIONS["late"] = lambda at: time.sleep(0.5 * at.rank) is None
    began = time.monotonic()
    assert probing.try_case(rank, world_size, "late", "gloo", "cpu")
    del probing.FUNCTIONS["late"]
    return time.monotonic() - began


def test_a_rank_with_nothing_to_do_waits_for_the_others(usable):
    """Or it would close its connections while others still make theirs."""
    assert min(usable.run(late)) >= 0.5
