"""When a processor launches what its device does, in virtual time, and what is said of it."""

from dataclasses import replace

import pytest

from distlab.errors import ArgumentError
from distlab.simulated.network import Device, Network
from distlab_predict.costs import Costs
from distlab_predict.launches import CALL, READ
from distlab_predict.nodes import Recording
from distlab_predict.prediction import Prediction
from distlab_predict.predictions import Case, Predictions
from distlab_predict.streams import NodeLog
from distlab_predict.timeline import LAUNCH, timeline_of
from distlab_predict.uncertainty import UNCERTAINTIES

NETWORK = Network(0, "1 B/s")
PAIR = (0, 1)


def recording(log, rank=0, steps=None):
    steps = steps or [(0, len(log.nodes))]
    return Recording(rank, log.nodes, steps, {"parameters": 1}, "", waits=tuple(log.waits))


def times(*recordings, host):
    return timeline_of(recordings, Costs(NETWORK, Device("1 FLOP/s", host=host))).times


def kernels(*seconds):
    log = NodeLog()
    for one in seconds:
        log.compute("mm", one, 0)
    return log


def prediction(log, host, steps=None):
    device = Device("1 FLOP/s", host=host)
    return Prediction(1, NETWORK, device, [recording(log, steps=steps)])


def test_kernels_that_are_shorter_than_their_launches_begin_when_they_are_launched():
    assert times(recording(kernels(1, 1, 1)), host=2) == [[(0, 1), (2, 3), (4, 5)]]


def test_kernels_that_are_longer_hide_their_launches():
    log = kernels(3, 2, 3)
    assert times(recording(log), host=2) == times(recording(log), host=0)


def test_a_processor_that_is_ahead_hides_short_kernels_behind_a_long_one():
    """The fourth is launched at 6, and the device does the second until then."""
    log = kernels(1, 8, 1, 1)
    assert times(recording(log), host=2) == [[(0, 1), (2, 10), (10, 11), (11, 12)]]


def test_after_a_value_is_read_launches_begin_again():
    log = kernels(3, 3)
    log.read()
    log.compute("mm", 1, 0)
    log.compute("mm", 1, 0)
    found = timeline_of([recording(log)], Costs(NETWORK, Device("1 FLOP/s", host=1)))
    begin = 6 + READ + 1
    assert found.times == [[(0, 3), (3, 6), (begin, begin + 1), (begin + 1, begin + 2)]]
    assert found.late == [[(6, begin)]]


def test_a_value_that_is_there_already_is_read_at_once():
    log = kernels(1)
    ends = log.ends(0)
    log.compute("mm", 1, 0)
    log.read_after(ends)
    log.compute("mm", 1, 0)
    # two launches, one more, and the question
    assert times(recording(log), host=2)[0][-1][0] == 2 * (1 + READ + 1)


def test_of_a_device_without_a_host_nothing_is_launched_late():
    log = kernels(3)
    log.read()
    log.compute("mm", 1, 0)
    assert times(recording(log), host=0) == [[(0, 3), (3, 4)]]


def test_streams_of_a_rank_are_launched_by_one_processor():
    log = kernels(1)
    log.call("world", "all_gather", PAIR, (9,))
    log.compute("mm", 1, 0)
    assert times(recording(log), host=1) == [[(0, 1), (CALL, CALL + 9), (CALL + 1, CALL + 2)]]


def pipeline(rank, number):
    """A stage that computes so often and sends, or receives and computes."""
    log = NodeLog()
    if rank == 0:
        for _ in range(number):
            log.compute("mm", 1, 0)
        log.call(("world", "send", 1), "send", PAIR, (2,), 1)
    else:
        log.wait(0, {log.call(("world", "recv", 0), "recv", PAIR, (2,), 0)})
        log.compute("mm", 1, 0)
    return recording(log, rank)


def test_a_message_begins_when_both_of_its_ranks_have_launched_it():
    """The sender launches its third kernel at 20 and its message at 60."""
    begin = 20 + 10 * CALL
    sends, receives = times(pipeline(0, 3), pipeline(1, 0), host=10)
    assert sends == [(0, 1), (10, 11), (20, 21), (begin, begin + 2)]
    assert receives == [(begin, begin + 2), (begin + 2, begin + 3)]


def test_a_late_message_is_late_on_both_of_its_ranks():
    stages = [pipeline(0, 1), pipeline(1, 0)]
    found = timeline_of(stages, Costs(NETWORK, Device("1 FLOP/s", host=10)))
    assert found.late == [[(1, 10 * CALL)]] * 2


def test_a_step_in_the_steady_state_takes_as_long_as_its_launches_or_its_kernels():
    log = kernels(1, 1, 1, 1)
    bound = prediction(log, 2, [(0, 2), (2, 4)])
    assert bound.seconds == 4
    assert (bound.computing, bound.launches, bound.idle) == (2, 2, 0)
    ahead = prediction(log, 0.5, [(0, 2), (2, 4)])
    assert (ahead.seconds, ahead.launches) == (2, 0)


def test_a_processor_is_ahead_into_the_next_step():
    """A long kernel ends the first step; short ones begin the second."""
    log = kernels(1, 9, 1, 1, 1, 9)
    assert prediction(log, 2, [(0, 2), (2, 6)]).launches == 0


def test_what_comes_before_the_first_step_is_not_launched_in_it():
    log = kernels(1, 1, 1)
    log.waits.clear()
    assert times(recording(log, steps=[(1, 3)]), host=5) == [[(0, 0), (0, 1), (5, 6)]]


def test_idle_time_that_no_launch_explains_is_idle():
    """The receiver launches its message at 0, and waits for a kernel of the sender."""
    stages = [pipeline(0, 1), pipeline(1, 0)]
    stages[0].nodes[0] = replace(stages[0].nodes[0], flops=90)
    found = timeline_of(stages, Costs(NETWORK, Device("1 FLOP/s", host=10)))
    assert found.times[1] == [(90, 92), (92, 93)]
    assert found.late == [[], []]


def test_a_step_that_waits_for_launches_says_so():
    step = prediction(kernels(1, 1, 1, 1), 3, [(0, 2), (2, 4)])
    table = repr(step)
    assert "launches" in table
    assert "66.7%" in table
    assert "launches: the step has 2, for which the processor needs 6.00 s" in table
    assert "launches, by the processor" in repr(step.rests_on())
    known = UNCERTAINTIES[LAUNCH]
    assert step.interval[1] / step.seconds == pytest.approx(1 + known.both, abs=0.01)


def test_reads_of_a_step_are_counted():
    log = kernels(1, 1)
    log.read()
    log.compute("mm", 1, 0)
    assert "and waits 1 time for a value of the device" in repr(prediction(log, 1))


def test_a_step_that_is_bound_by_its_kernels_says_nothing_of_launches():
    step = prediction(kernels(9, 9, 9, 9), 1, [(0, 2), (2, 4)])
    assert "launch" not in repr(step)
    assert "launch" not in repr(step.rests_on())
    assert LAUNCH not in step.longer


def test_a_step_that_launches_could_bind_may_be_longer_and_no_shorter():
    """The processor needs 1.8 of 2 seconds, and may need half as much again."""
    log = kernels(1, 1, 1, 1)
    step = prediction(log, 0.9, [(0, 2), (2, 4)])
    assert step.launches == 0
    assert step.longer[LAUNCH].alone == 0
    shortest, longest = step.interval
    known, _ = prediction(log, 0.01, [(0, 2), (2, 4)]).interval
    assert shortest == known
    assert longest > 1.8 * (1 + UNCERTAINTIES[LAUNCH].both)


def test_several_predictions_have_a_column_of_launches_where_one_waits_for_them():
    bound = Case(1, {"batch": 1}, prediction(kernels(1, 1, 1, 1), 3, [(0, 2), (2, 4)]))
    ahead = Case(1, {"batch": 2}, prediction(kernels(9, 9, 9, 9), 3, [(0, 2), (2, 4)]))
    assert "launches" in repr(Predictions([bound, ahead]))
    assert "launches" not in repr(Predictions([ahead]))


def test_calls_that_never_meet_are_named_where_a_program_waits_for_them():
    log = NodeLog()
    log.call("world", "all_gather", PAIR, (1,))
    log.read_after({0})
    log.compute("mm", 1, 0)
    with pytest.raises(ArgumentError, match="not every rank calls all_gather"):
        times(recording(log), recording(NodeLog(), 1), host=1)


def test_a_measured_step_that_launches_bind_says_nothing_of_the_efficiency():
    step = prediction(kernels(1, 1, 1, 1), 3, [(0, 2), (2, 4)])
    with pytest.raises(ArgumentError, match=r"described wrongly: the processor .* \(host=\)"):
        step.calibrated(4.0)
