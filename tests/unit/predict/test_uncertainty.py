"""How far predictions may be off, on nodes that are written by hand."""

from dataclasses import replace

import pytest

from distlab.simulated.measured import Measured
from distlab.simulated.network import Device, Network
from distlab_predict.nodes import Recording
from distlab_predict.prediction import Prediction
from distlab_predict.streams import NodeLog
from distlab_predict.uncertainty import DOUBLED, RUNS, UNCERTAINTIES, compare

PEAK = UNCERTAINTIES["peak"]
NETWORK = UNCERTAINTIES["network"]


def prediction(products=10, num_bytes=0, unknown=0, efficiency=1.0):
    """A step that multiplies matrices, sends bytes, and computes something unknown in between."""
    log = NodeLog()
    for _ in range(products):
        log.compute("mm", 1, 0, kind="product", shape=(1, 1, 1, 1), dtype="float32")
    if num_bytes:
        place = log.call("world", "all_gather", (0, 1), (num_bytes,))
        log.wait(0, {place})
    if unknown:
        log.compute("custom", 0, unknown, kind="unknown")
    recording = Recording(0, log.nodes, [(0, len(log.nodes))], {"parameters": 1}, "")
    device = Device("1 FLOP/s", efficiency=efficiency, memory_bandwidth=1.0)
    return Prediction(2, Network(0, "1 B/s"), device, [recording])


def width(step):
    """How far the interval's end is from the middle, as a share."""
    return step.interval[1] / step.seconds - 1


def test_what_rests_on_the_peak_may_be_off_as_far_as_that():
    step = prediction()
    assert width(step) == pytest.approx((PEAK.both**2 + RUNS**2) ** 0.5)
    shortest, longest = step.interval
    assert shortest * longest == pytest.approx(step.seconds**2)
    assert step.rate_interval == pytest.approx((1 / longest, 1 / shortest))


def test_differences_of_several_bases_are_combined_as_independent_ones():
    step = prediction(products=3, num_bytes=1)
    squares = (0.75 * PEAK.both) ** 2 + (0.25 * NETWORK.both) ** 2 + RUNS**2
    assert width(step) == pytest.approx(squares**0.5)


def test_hidden_messages_do_not_matter():
    log = NodeLog()
    place = log.call("world", "all_gather", (0, 1), (1,))
    log.compute("mm", 10, 0)
    log.wait(0, {place})
    log.compute("mm", 10, 0)
    recording = Recording(0, log.nodes, [(0, 3)], {"parameters": 1}, "")
    step = Prediction(2, Network(0, "1 B/s"), Device("1 FLOP/s"), [recording])
    assert step.longer["network"].alone == pytest.approx(0.0)


def test_a_measured_step_leaves_less_unknown():
    step = prediction(products=30, num_bytes=10)
    device = step.calibrated(55.0)
    assert device.efficiency == pytest.approx(30 / 45, abs=1e-4)
    calibrated = replace(step, device=device)
    # what is wrong with the peak is in the efficiency, but not what is wrong with single shapes;
    # a slower network would mean a quicker device, so only the network's sizes are left
    squares = (45 / 55 * PEAK.own) ** 2 + (10 / 55 * NETWORK.own) ** 2 + RUNS**2
    assert width(calibrated) == pytest.approx(squares**0.5, rel=1e-2)
    assert width(calibrated) < width(step) / 3
    # of a program that sends more, the network's common error shows again
    other = replace(prediction(products=10, num_bytes=30), device=device)
    plain = replace(device, if_slower=())
    assert width(calibrated) < width(other) < width(replace(other, device=plain))


def test_an_operator_whose_operations_nobody_knows_is_named():
    step = prediction(unknown=2)
    assert step.longer["unknown"].alone == pytest.approx(2 / 12)
    assert width(step) > 2 / 12
    assert "operators without a cost: 1 (custom)" in repr(step.rests_on())


def test_what_the_time_rests_on_adds_up_to_the_step():
    step = prediction(products=3, num_bytes=1)
    assert repr(step.rests_on()).splitlines() == [
        "What the time rests on",
        "                                                    of the step   known within",
        "products of matrices, by a share of the peak              75.0%          ± 26%",
        "exposed communication, by formulas of the network         25.0%          ± 13%",
        f"by a share of the peak: {PEAK.why}",
        f"by formulas of the network: {NETWORK.why}",
    ]


def test_predictions_share_what_is_wrong_with_their_costs():
    more = prediction(products=11)
    fewer = prediction(products=10)
    ratio, low, high = compare(fewer, more)
    assert ratio == pytest.approx(1.1)
    # both rest on the same products, so nothing is left but how two runs differ
    widest = 1 + 2**0.5 * RUNS
    assert (low, high) == pytest.approx((1.1 / widest, 1.1 * widest))
    assert not compare(fewer, more).is_too_close


def test_what_many_ranks_cost_is_known_less():
    step = prediction()
    _, low, high = compare(replace(step, ranks=32), step)
    squares = 2 * RUNS**2 + (4 * DOUBLED) ** 2
    assert high == pytest.approx(1 + squares**0.5)
    assert low == pytest.approx(1 / high)


def measured(step, explained):
    return Measured(source="trace.json", step=step, explained=explained)


def test_what_a_trace_does_not_explain_counts_where_only_one_rests_on_it():
    usual = prediction()
    device = replace(usual.device, measured=measured(step=1.5, explained=1.0))
    traced = replace(usual, device=device)
    _, low, high = compare(traced, usual)
    assert low == pytest.approx(1 / (1 + (2 * RUNS**2 + 0.5**2) ** 0.5))
    assert high == pytest.approx(1 + 2**0.5 * RUNS)
    _, low, high = compare(usual, traced)
    assert low == pytest.approx(1 / (1 + 2**0.5 * RUNS))
    assert high == pytest.approx(1 + (2 * RUNS**2 + 0.5**2) ** 0.5)


@pytest.mark.parametrize(("step", "explained"), [(1.5, 1.0), (1.0, 1.5)])
def test_it_counts_in_steps_of_one_trace_only_as_far_as_they_differ(step, explained):
    computes = prediction(products=10)
    more = prediction(products=11)
    sends = prediction(products=1, num_bytes=10)
    for other, is_alike in ((more, True), (sends, False)):
        ratio, low, high = compare(computes, other)
        device = replace(computes.device, measured=measured(step, explained))
        of_trace = replace(computes, device=device), replace(other, device=device)
        same, lower, higher = compare(*of_trace)
        assert same == ratio
        assert (lower == pytest.approx(low)) == is_alike
        assert (higher == pytest.approx(high)) == is_alike
        assert lower <= low * (1 + 1e-9)
        assert higher >= high * (1 - 1e-9)


def test_predictions_that_rest_on_other_things_may_be_too_close_to_call():
    computes = prediction(products=10)
    sends = prediction(products=1, num_bytes=10)
    ratio, low, high = compare(computes, sends)
    assert ratio == pytest.approx(1.1)
    assert low < 0.9 < 1.3 < high
    assert compare(computes, sends).is_too_close
    assert compare(sends, computes).is_too_close
