"""Notebooks are marked at the same time, but not while a reference is called."""

import threading

import pytest

from distlab.checking import Exercise, Question
from distlab_course.classroom import marking
from distlab_course.classroom.judge import Decision

PASSED = Decision(True, "passed")
EXERCISES = {
    "a_value": Question("nowhere", 42),
    "a_function": Exercise("nowhere", worlds=(2,), cases=(7,)),
}


class FakeJudge:
    """A judge without a process, which passes what it is asked when two judges are at work."""

    def __init__(self, both):
        self._both = both

    def decide(self, order, references):
        self._both.wait()
        return dict.fromkeys(order["asked"], PASSED)

    def end(self):
        """There is no process."""


class FakeRunner:
    """A runner without ranks, which gives no reference anything to do."""

    @classmethod
    def start(cls, folder):
        return cls()

    def ask(self, question):
        return {"observed": []}

    def end(self):
        """There is no process."""


@pytest.fixture
def judges(monkeypatch):
    """Two judges who mark these exercises, without processes."""
    both = threading.Barrier(2, timeout=10)
    monkeypatch.setattr(marking, "Judge", lambda: FakeJudge(both))
    monkeypatch.setattr(marking, "RunnerProcess", FakeRunner)
    monkeypatch.setattr(marking, "hide", lambda: None)
    monkeypatch.setattr(marking, "all_exercises", lambda: EXERCISES)
    made = marking.Marking(jobs=2)
    yield made
    made.end()


@pytest.mark.parametrize("asked", [["a_function", "a_value"], ["no_such_exercise"]])
def test_two_notebooks_are_marked_at_once(judges, tmp_path, asked):
    """Also where they ask for a value, or what nobody knows: neither has a reference to call."""
    begun = [judges.begin(asked, [], [], [], tmp_path) for _ in range(2)]
    for result in begun:
        assert result.result(timeout=30) == dict.fromkeys(asked, PASSED)
