"""Random small programs: proof and simulator agree on which ranks never end."""

from random import Random

import pytest

from distlab.diagnosis import proof as module
from tests.unit.diagnosis import oracle
from tests.unit.diagnosis.oracle import (
    Run,
    Step,
    differences,
    random_program,
    smallest,
    text,
    three_ranks,
)

PROGRAMS = 2000
FROM_ANY = ((Step("send", peer=1),), (Step("recv"),), ())
NO_SENDER = ((), (Step("recv", peer=0),), ())


@pytest.fixture(autouse=True)
def ranks():
    with three_ranks():
        yield


def test_the_judges_agree():
    """The smallest program on which they do not is in the message, as a person would write it."""
    for seed in range(PROGRAMS):
        program = random_program(Random(seed))
        if differences(program, seed):
            found, of = smallest(program, [seed, *range(30)])
            pytest.fail(f"seed {seed}:\n{text(found)}\n{differences(found, of)}")


def test_the_programs_are_of_all_kinds():
    """About half of them end; few are left out, and few of the stuck ones may pass in silence."""
    runs = [Run(random_program(Random(seed)), Random(seed)) for seed in range(PROGRAMS // 4)]
    stuck = [run for run in runs if run.stuck]
    assert 0.3 < len(stuck) / len(runs) < 0.7
    assert {frozenset(run.stuck) for run in stuck} >= {
        frozenset(two) for two in ({0}, {0, 1}, {0, 1, 2})
    }
    assert sum(run.is_open for run in runs) < len(runs) / 20
    assert sum(run.hides_a_source for run in stuck) < len(stuck) / 10
    ranks = [rank for run in runs for rank in run.ranks]
    steps = [step for rank in ranks for step in rank.steps]
    assert {step.op for step in steps} == {"send", "recv", "wait", *oracle.METHODS}
    assert {step.group for step in steps} == set(oracle.GROUPS)
    assert max(len(rank.steps) for rank in ranks) == 6


@pytest.mark.parametrize(
    ("fault", "program", "words"),
    [
        ("need_of_message", NO_SENDER, "the proof: nothing; the run: {1}"),
        ("need_of_collective", ((Step("barrier"),), (), ()), "the proof: nothing; the run: {0}"),
    ],
)
def test_a_rule_that_is_missing_is_found(monkeypatch, fault, program, words):
    """In a program that has one mistake."""
    assert differences(program, 0) == []
    monkeypatch.setattr(module, fault, lambda *_: None)
    assert differences(program, 0) == [words]


def test_a_false_alarm_is_found_and_made_small(monkeypatch):
    """A proof that counts no messages calls a right program stuck on its way."""
    right = (
        (Step("barrier"), Step("send", peer=1)),
        (Step("barrier"), Step("recv", peer=0)),
        (Step("barrier"),),
    )
    assert differences(right, 0) == []
    monkeypatch.setattr(
        module, "need_of_message", lambda state, states: module.Need((state.call.peer,))
    )
    program, seed = smallest(right)
    assert text(program) == "  rank 0: send(dst=1, tag=0)\n  rank 1: recv(src=0, tag=0)\n  rank 2: "
    assert differences(program, seed)[0].startswith("the proof spoke too early")


def test_a_recv_from_any_rank_takes_a_message_that_has_no_recv_of_its_own():
    """As in gloo: the older recv, from any rank, leaves it to the younger one."""
    any_first = Step("recv", work="w"), Step("recv", peer=0)
    for seed in range(10):
        run = Run(((Step("send", peer=1),), any_first, ()), Random(seed))
        took = run.ranks[1].works["w"].met
        assert run.stuck == ({1} if took else set())
    assert Run(FROM_ANY, Random(0)).stuck == set()
