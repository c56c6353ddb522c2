"""What a prediction says of a step, on nodes that are written by hand."""

from dataclasses import replace

import pytest

from distlab.errors import ArgumentError
from distlab.simulated.network import Device, Network
from distlab_predict.layouts import Layout, step_of
from distlab_predict.nodes import Recording
from distlab_predict.plans import Plan
from distlab_predict.prediction import Prediction
from distlab_predict.prediction_shown import gibibytes
from distlab_predict.predictions import Case, Predictions
from distlab_predict.streams import NodeLog


def prediction(**options):
    """Two steps: 1 s of computing beside 3 s of a message, then 4 s of computing."""
    log = NodeLog()
    ends = []
    for _ in range(2):
        place = log.call("world", "all_gather", (0, 1), (3,))
        log.compute("mm", 1, 0)
        log.wait(0, {place})
        log.compute("mm", 3, 0)
        log.compute("mm", 1, 0, True)
        ends.append(len(log.nodes))
    peak = {"parameters": 1 << 30, "activations": 3 << 30}
    recording = Recording(0, log.nodes, [(0, ends[0]), (ends[0], ends[1])], peak, "")
    device = Device("1 FLOP/s", **options)
    return Prediction(2, Network(0, "1 B/s"), device, [recording], tokens=70)


def test_a_step_is_cut_into_what_its_device_does():
    step = prediction()
    assert step.seconds == 7.0
    assert (step.computing, step.exposed, step.idle) == (5.0, 2.0, 0.0)
    assert step.flops == 4  # what checkpointing repeats is no progress
    assert step.mfu == pytest.approx(4 / 7)
    assert step.tokens_per_second == 5.0


def test_its_table_says_that_nothing_was_measured():
    assert repr(prediction(memory="4 GB")).splitlines() == [
        "Predicted, not measured: 2 ranks, 0 s, 1 B/s",
        "                                               predicted",
        "a step                                           7.00 s",
        "tokens a second, each device        5, from 4.32 to 5.79",
        "FLOP/s of the device's peak (MFU)                  57.1%",
        "computing                                          71.4%",
        "exposed communication                              28.6%",
        "idle                                                0.0%",
        "memory at its peak                               4.0 GiB",
        "  activations                                    3.0 GiB",
        "  parameters                                     1.0 GiB",
        "fits into the device                  no, it has 3.7 GiB",
    ]


@pytest.mark.parametrize(("device", "on"), [("H100", "8 H100"), ("", "8 ranks")])
def test_a_device_with_a_name_is_named(device, on):
    """In the titles of a prediction, its picture, a sweep and a plan."""
    usual = prediction(memory_bandwidth="1 B/s")
    step = replace(usual, ranks=8, device=replace(usual.device, name=device))
    assert step.table().title == f"Predicted, not measured: {on}, 0 s, 1 B/s"
    assert step.plot().get_title(loc="left") == f"predicted, not measured: a step on {on}"
    sweep = Predictions([Case(8, {}, None, "no"), Case(8, {}, step)])
    assert sweep.table().title == f"Predicted, not measured{': H100' if device else ''}"
    plan = Plan((Layout(8, {"tensor": 1}, step_of(step)),), step.network, step.device)
    assert plan.table().title == f"Predicted, not measured: {on}, 0 s, 1 B/s"


def test_its_picture_has_a_lane_for_computing_and_one_for_messages():
    axes = prediction().plot()
    assert axes.get_title(loc="left") == "predicted, not measured: a step on 2 ranks"
    assert [label.get_text() for label in axes.get_yticklabels()] == [
        "rank 0 computes",
        "rank 0's messages",
    ]


def test_a_device_checks_its_numbers():
    assert Device("1 TFLOP/s", memory="80 GB").memory == 8e10
    with pytest.raises(ValueError, match=r"efficiency must be above 0 and up to 1, got 1\.5"):
        Device("1 TFLOP/s", efficiency=1.5)


def test_a_step_that_takes_no_time_is_refused():
    log = NodeLog()
    log.compute("relu", 0, 8)
    recording = Recording(0, log.nodes, [(0, 1)], {"parameters": 1}, "")
    step = Prediction(1, Network(0, "1 B/s"), Device("1 FLOP/s"), [recording])
    with pytest.raises(ArgumentError, match="No operator of a step takes time on this device"):
        repr(step)
    with pytest.raises(ArgumentError, match="No operator of a step takes time on this device"):
        step.plot()


def test_seconds_to_calibrate_by_are_checked():
    with pytest.raises(
        ArgumentError, match=r"seconds must be between 7\.00 s and .*, got 2\.0\. A "
    ):
        prediction().calibrated(2)
    with pytest.raises(ArgumentError, match="seconds must be above 0"):
        prediction().calibrated(-1)


@pytest.mark.parametrize(
    ("num_bytes", "words"),
    [(9 * 2**30, "9.0 GiB"), (2**20, "1.0 MiB"), (40 * 2**10, "40.0 KiB"), (84, "0.1 KiB")],
)
def test_a_size_is_never_shown_as_nothing(num_bytes, words):
    assert gibibytes(num_bytes) == words


def test_a_small_model_has_its_memory_in_a_unit_that_fits():
    """Parts that are far smaller than the whole are not 0.0 of its unit."""
    log = NodeLog()
    log.compute("mm", 1, 1)
    peak = {"activations": 3 * 2**18, "parameters": 84 * 2**5, "optimizer": 0}
    recording = Recording(0, log.nodes, [(0, 1)], peak, "")
    network, device = Network("5 us", "1 GB/s"), Device("1 TFLOP/s")
    table = str(Prediction(8, network, device, [recording], tokens=None).table())
    assert "0.8 MiB" in table
    assert "2.6 KiB" in table
