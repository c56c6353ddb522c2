"""What tools/beside_torchrun.py calls equal, and what it reports."""

import pytest

from tests.tool import load

TOOL = load("beside_torchrun")
LOSSES = ["loss 0.7031", "loss 0.6932"]


def found(first, second, other):
    difference = TOOL.unlike(first, second, other)
    return difference.missing, difference.added


def test_the_order_of_lines_is_that_of_the_ranks_and_means_nothing():
    assert found(LOSSES, LOSSES, LOSSES[::-1]) == ([], [])


def test_a_digit_that_torchrun_repeats_must_be_the_same():
    assert found(LOSSES, LOSSES, ["loss 0.7031", "loss 0.6931"]) == (["loss 0.6932"], ["loss #"])


def test_a_number_that_torchrun_does_not_repeat_may_differ():
    """Such as a time or a process number; the words beside it may not."""
    first, second = ["loss 0.5", "took 1.5 s"], ["loss 0.5", "took 2e-3 s"]
    assert found(first, second, ["took 12 s", "loss 0.5"]) == ([], [])
    assert found(first, second, ["took 12 ms", "loss 0.5"]) == (["took # s"], ["took # ms"])


def test_beside_a_time_a_loss_must_still_be_the_same():
    first, second = ["loss 0.7, 812 tokens/s"], ["loss 0.7,  1.1K tokens/s"]
    assert found(first, second, ["loss 0.7,    9 tokens/s"]) == ([], [])
    missing, added = found(first, second, ["loss 0.8, 9 tokens/s"])
    assert missing == ["loss 0.7, # tokens/s"]
    assert added == ["loss #, # tokens/s"]


@pytest.mark.parametrize("other", [["ready"], ["ready", "late"]])
def test_a_line_that_torchrun_has_only_sometimes_may_be_left_out(other):
    assert found(["ready"], ["ready", "late"], other) == ([], [])


def test_a_line_that_comes_more_often_is_a_difference():
    assert found(["step"], ["step"], ["step", "step"]) == ([], ["step"])
    assert found(["step", "step"], ["step", "step"], ["step"]) == (["step"], [])


def test_what_torchrun_says_itself_is_not_the_programs():
    lines = [
        "W1129 20:01:41 torch/distributed/run.py:852] Setting OMP_NUM_THREADS environment variable",
        "*****************************************",
        "",
        "warning: of the program",
    ]
    assert TOOL.of_program(lines) == ["warning: of the program"]


def test_the_report_has_both_times_and_the_first_lines_that_differ():
    first = TOOL.Outcome(0, 8.0, LOSSES, [])
    other = TOOL.Outcome(1, 4.0, [f"step {one}" for one in range(12)], [])
    difference = TOOL.Unlike(LOSSES[:1], [f"step {one}" for one in range(12)])
    report = TOOL.report(first, other, {"stdout": difference})
    assert "8.0          4.0   0.50 times" in report
    assert "2           12   lines, different" in report
    assert "only torchrun: loss 0.7031\n" in report
    assert report.endswith("only distlab:  and 2 more")
