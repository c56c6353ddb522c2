"""The steps of a training in a trace: by the marks of its optimizers, each rank by its own."""

import pytest

import distlab
from tests.refused import raised
from tests.unit.recordings import Rank
from tests.unit.traces.test_trace import in_ms, of, traced

BACKWARD = "autograd::engine::evaluate_function: MmBackward0"
STEP = "Optimizer.step#AdamW.step"


def training(delay=0, steps=3, two_optimizers=False):
    """Steps of 10 ms from 100 ms on: forward, backward, and the optimizer for 2 ms."""
    rank = Rank(2).row("aten::normal_", 0, 90)
    for step in range(steps):
        begin = 100 + 10 * step + delay
        rank.row("aten::mm", begin, begin + 2, number=step)
        rank.row(BACKWARD, begin + 3, begin + 6, number=step)
        rank.row(STEP, begin + 6, begin + 8, annotated=True)
        if two_optimizers:
            rank.row(STEP, begin + 8, begin + 9, annotated=True)
        rank.row("Optimizer.zero_grad#AdamW.zero_grad", begin + 9, begin + 9.5, annotated=True)
    return rank


def window(trace, step):
    """What the picture of a step shows, in ms."""
    (axes, *_) = trace.plot(step=step).axes
    return tuple(round(1e3 * end) for end in axes.get_xlim())


@pytest.mark.parametrize(
    ("step", "shown"),
    [(0, (100, 108)), (1, (108, 118)), (2, (118, 128)), (-1, (118, 128)), (-3, (100, 108))],
)
def test_a_step_is_from_the_end_of_an_optimizer_step_to_the_next(step, shown):
    """The first begins with its forward pass, and not with the start-up."""
    trace = traced(training(), training())
    chosen = trace.table(step=step)
    number = step % 3
    assert chosen.title.endswith(f", step {number} of 0-2")
    assert window(trace, step) == shown


def test_each_rank_has_its_own_step():
    """A rank that is later by 4 ms is shown until its own end, and both are counted whole."""
    trace = traced(training(), training(delay=4))
    assert window(trace, 1) == (108, 122)
    calls = {row[0]: row[3] for row in trace.table(step=1).rows}
    assert calls["backward"] == "2"
    whole = {row[0]: row[3] for row in trace.table().rows}
    assert whole["backward"] == "6"


def test_a_second_optimizer_belongs_to_the_same_step():
    trace = traced(training(two_optimizers=True), training(two_optimizers=True))
    assert window(trace, -1) == (119, 129)
    assert trace.table(step=-1).title.endswith("step 2 of 0-2")


def test_only_steps_that_all_ranks_have_finished_count():
    trace = traced(training(steps=3), training(steps=2))
    assert window(trace, -1) == (108, 118)
    assert in_ms(of(trace, 0, "backward")[1][1] / 1e3) == 113


def test_steps_that_are_not_there_are_refused():
    trace = traced(training(), training())
    error = raised(distlab.ArgumentError, trace.plot, step=3)
    assert str(error) == (
        "step must be a whole number from -3 to 2, got 3. "
        "This trace has 3 optimizer steps; -1 is the last one."
    )
    assert "got 'last'" in str(raised(distlab.ArgumentError, trace.table, step="last"))
    once = traced(training(steps=1), training(steps=1))
    assert str(raised(distlab.ArgumentError, once.plot, step=1)) == (
        "step must be a whole number from -1 to 0, got 1. This trace has 1 optimizer step."
    )
    assert once.table(step=0).title.endswith(", its only step")


def test_a_trace_without_an_optimizer_has_no_steps():
    trace = traced(Rank(2).send(1, 0, 3), Rank(2).recv(0, 2, 3.5))
    assert str(raised(distlab.ArgumentError, trace.plot, step=-1)) == (
        "step must be None, got -1. This trace has no mark of an optimizer's step()."
    )


def test_a_step_and_a_window_are_refused_together():
    trace = traced(training(), training())
    error = raised(distlab.ArgumentError, trace.plot, (0, 1), step=-1)
    assert str(error).startswith("Give plot either a window or a step")
