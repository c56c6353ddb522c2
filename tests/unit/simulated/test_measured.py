"""What follows from measured kernels and calls for others."""

import pickle
from dataclasses import replace

import pytest

from distlab.simulated.measured import CallTime, KernelTime, Measured


def product(n, seconds, dtype="bfloat16"):
    """A product of square matrices."""
    return KernelTime("mm", "product", (1, n, n, n), dtype, 2 * n**3, 6 * n * n, seconds)


def copy(num_bytes, seconds, name="copy_"):
    return KernelTime(name, "bytes", (), "float32", 0, num_bytes, seconds)


def all_reduce(latency, moving, seconds, ranks=2, link="inside"):
    return CallTime("all_reduce", link, ranks, latency, moving, seconds)


def asked(measured, kernel):
    """What is known of a kernel like this one, whose seconds nobody asks for."""
    return measured.kernel(
        kernel.name, kernel.kind, kernel.shape, kernel.dtype, kernel.flops, kernel.num_bytes
    )


def test_what_was_measured_takes_as_long():
    measured = Measured((product(64, 3.0), product(128, 5.0), copy(8, 2.0)))
    assert asked(measured, product(128, 0)) == (5.0, "measured", None)
    assert asked(measured, copy(8, 0)) == (2.0, "measured", None)


def test_another_size_takes_an_overhead_and_its_work():
    # an overhead of 1 s, and 1 GFLOP/s
    one, two, far = (product(n, 1 + 2 * n**3 / 1e9) for n in (400, 1000, 3000))
    measured = Measured((one, two))
    seconds, basis, _ = asked(measured, product(700, 0))
    assert seconds == pytest.approx(1 + 2 * 700**3 / 1e9)
    assert basis == "scaled"
    seconds, basis, _ = asked(measured, far)
    assert seconds == pytest.approx(far.seconds)
    assert basis == "extrapolated"


def test_one_measurement_gives_a_rate():
    seconds, basis, _ = asked(Measured((copy(1000, 2.0),)), copy(500, 0))
    assert seconds == pytest.approx(1.0, rel=1e-2)
    assert basis == "scaled"


def test_the_nearest_measurement_is_kept():
    # the law fits none of the three, and is scaled to each of them nearby
    measured = Measured((copy(1000, 1.0), copy(2000, 4.0), copy(4000, 4.0)))
    near, _, _ = asked(measured, copy(2001, 0))
    assert near == pytest.approx(4.0, rel=1e-2)


def test_kernels_without_flops_ask_their_operator_first_and_then_all():
    measured = Measured((copy(1000, 2.0), copy(1000, 8.0, "gelu")))
    gelu, _, _ = asked(measured, copy(500, 0, "gelu"))
    other, _, _ = asked(measured, copy(500, 0, "silu"))
    assert gelu == pytest.approx(4.0, rel=1e-2)
    assert 1.0 < other < 4.0


def test_a_product_in_another_format_is_not_known():
    assert asked(Measured((product(64, 3.0),)), product(64, 0, "float32")) is None
    assert asked(Measured(), product(64, 0)) is None


def test_attention_and_its_backward_pass_have_rates_of_their_own():
    shape = (1, 8, 8, 64, 64, 32, 1)
    forward = KernelTime("attention", "attention", shape, "bfloat16", 100, 1, 1.0)
    backward = KernelTime("attention_backward", "attention", shape, "bfloat16", 250, 1, 5.0)
    measured = Measured((forward, backward))
    assert asked(measured, forward).seconds == 1.0
    assert asked(measured, backward).seconds == 5.0
    longer = replace(backward, shape=(2, *shape[1:]), flops=500)
    assert asked(measured, longer).seconds == pytest.approx(10.0, rel=1e-2)


def test_a_call_corrects_the_formula_of_its_network():
    # latency twice as long as described, bytes at half the bandwidth
    small, large = all_reduce(1.0, 0.1, 2.2), all_reduce(1.0, 10.0, 22.0)
    measured = Measured(calls=(small, large))
    assert measured.call("all_reduce", "inside", 2, 1.0, 10.0)[:2] == (22.0, "measured")
    seconds, basis, load = measured.call("all_reduce", "inside", 4, 3.0, 15.0)
    assert seconds == pytest.approx(36.0)
    assert basis == "scaled"
    assert measured.call("all_reduce", "inside", 4, 3.0, 30.0).basis == "extrapolated"
    assert load == pytest.approx(15 / 18)
    # the same times on another number of ranks were not measured
    assert measured.call("all_reduce", "inside", 3, 1.0, 10.0).basis == "scaled"


def test_calls_of_nearly_one_size_do_not_tell_latency_from_bandwidth():
    measured = Measured(calls=(all_reduce(1.0, 9.0, 22.0), all_reduce(1.0, 9.1, 18.0)))
    seconds, _, load = measured.call("all_reduce", "inside", 4, 3.0, 13.5)
    assert seconds == pytest.approx(2 * 16.5, rel=2e-2)
    assert load == pytest.approx(13.5 / 16.5)


def test_calls_without_a_latency_have_a_bandwidth():
    measured = Measured(calls=(all_reduce(0.0, 9.0, 18.0), all_reduce(0.0, 90.0, 180.0)))
    assert measured.call("all_reduce", "inside", 4, 0.0, 30.0).seconds == pytest.approx(60.0)


def test_a_call_that_was_not_measured_is_corrected_as_others_on_its_link():
    measured = Measured(calls=(all_reduce(1.0, 1.0, 6.0),))
    assert measured.call("all_gather", "inside", 2, 0.5, 0.5).seconds == pytest.approx(3.0)
    assert measured.call("all_gather", "between", 2, 0.5, 0.5) is None
    assert measured.call("all_reduce", "inside", 1, 0.0, 0.0) is None  # alone


def test_measurements_are_plain_data():
    measured = Measured((product(64, 3.0),), source="a trace")
    asked(measured, product(64, 0))
    assert pickle.loads(pickle.dumps(measured)) == measured
    assert hash(measured) == hash(Measured((product(64, 3.0),), source="a trace"))
