"""Whoever interrupts a sweep or a plan has what was found until then."""

from types import SimpleNamespace

import pytest

import distlab
from distlab_predict import planner
from distlab_predict import predict as module
from distlab_predict.nodes import Kernel, Recording
from tests.refused import raised

MACHINES = distlab.Network("5 us", "1 GB/s"), distlab.Device("1 TFLOP/s")
RECORDING = Recording(0, [Kernel((), "mm", 10**9, 0)], [(0, 1)], {"parameters": 8}, "")


def program(rank, world_size, width, layers=1):
    """It is never run here."""


@pytest.fixture
def interrupted(monkeypatch):
    """Predicts two runs at once, and is interrupted in the third pair."""
    monkeypatch.setattr(planner.machine, "cores", lambda: 1)
    pairs = []

    def record(runs):
        pairs.append(len(runs))
        if len(pairs) == 3:
            raise KeyboardInterrupt
        return [[RECORDING] for _ in runs]

    return module.Predict(SimpleNamespace(record=record))


def test_a_sweep_keeps_its_cases(interrupted):
    error = raised(
        KeyboardInterrupt, interrupted.sweep, program, [2, 4], *MACHINES, width=[1, 2, 3]
    )
    assert (
        str(error)
        == "4 cases predicted before that: `import sys; sys.last_value.partial` has them."
    )
    assert [(case.ranks, case.choice) for case in error.partial] == [
        (2, {"width": 1}),
        (2, {"width": 2}),
        (2, {"width": 3}),
        (4, {"width": 1}),
    ]


def test_a_plan_keeps_its_layouts_and_says_that_it_is_not_whole(interrupted):
    choices = {"width": [1, 2, 3, 4, 5], "layers": [1, 2]}
    error = raised(
        KeyboardInterrupt,
        interrupted.plan,
        program,
        2,
        *MACHINES,
        allowed=lambda ranks, width, layers: width < 5 or "too wide",
        **choices,
    )
    assert str(error).startswith("4 layouts predicted before that: ")
    assert len(error.partial.predicted) == 4
    assert error.partial.best in error.partial.predicted
    table = repr(error.partial)
    assert "6 layouts: 4 predicted, 2 refused.\nInterrupted: 4 other layouts not tried." in table
    assert "Refused, 2: too wide" in table


def test_before_anything_was_found_there_is_nothing_to_keep(monkeypatch):
    def record(runs):
        raise KeyboardInterrupt

    predict = module.Predict(SimpleNamespace(record=record))
    for call, ranks in ((predict.sweep, [2]), (predict.plan, 2)):
        error = raised(KeyboardInterrupt, call, program, ranks, *MACHINES, width=[1, 2])
        assert not hasattr(error, "partial")
        assert str(error) == ""
