"""What a kernel takes, and what that rests on."""

from __future__ import annotations

from dataclasses import replace

import pytest

from distlab.simulated.devices import Device
from distlab.simulated.measured import KernelTime, Measured
from distlab_predict.kernels import BASES, seconds_of
from distlab_predict.nodes import Kernel

SIMPLE = Device("100 FLOP/s", memory_bandwidth="10 B/s", efficiency=0.5)
H100 = Device.named("H100")


def product(batch: int, m: int, n: int, k: int, dtype: str = "bfloat16", **others) -> Kernel:
    num_bytes = 2 * batch * (m * k + k * n + m * n)
    flops = 2 * batch * m * n * k
    return Kernel((), "mm", flops, num_bytes, kind="product", shape=(batch, m, n, k), dtype=dtype)


def attention(causal: int, name: str = "flash", batch: int = 2) -> Kernel:
    shape = (batch, 32, 32, 8192, 8192, 128, causal)
    flops = 4 * batch * 32 * 8192 * 8192 * 128
    return Kernel((), name, flops, 1, kind="attention", shape=shape, dtype="bfloat16")


def test_a_device_without_a_table_does_everything_at_one_rate():
    assert seconds_of(Kernel((), "mm", 100, 10), SIMPLE) == (2.0, "peak")
    assert seconds_of(Kernel((), "add", 0, 50), SIMPLE) == (5.0, "bytes")
    assert seconds_of(Kernel((), "mm", 100, 50), SIMPLE) == (5.0, "bytes")
    assert seconds_of(Kernel((), "odd", 0, 50, kind="unknown"), SIMPLE) == (5.0, "unknown")
    assert seconds_of(Kernel((), "add", 0, 50), Device(1)) == (0.0, "bytes")
    whole = seconds_of(attention(1), Device("1 TFLOP/s"))
    assert whole == (attention(1).flops / 1e12, "peak")
    assert seconds_of(product(1, 10, 10, 10), SIMPLE) == (60.0, "bytes")


def test_a_product_takes_what_its_shape_says():
    seconds, basis = seconds_of(product(1, 16384, 4096, 4096), H100)
    assert basis == "shape"
    assert seconds == H100.product_seconds(16384, 4096, 4096, "bfloat16")
    batched, _ = seconds_of(product(64, 512, 512, 512), H100)
    assert batched == H100.product_seconds(64 * 512, 512, 512, "bfloat16", 64, batched=True)
    eight = replace(product(1, 16384, 4096, 4096), dtype="float8_e4m3fn")
    assert seconds_of(eight, H100).seconds < 0.6 * seconds


def test_a_format_that_the_table_does_not_have_is_marked():
    assert seconds_of(product(1, 4096, 4096, 4096, "complex64"), H100).basis == "peak"
    conv = Kernel((), "convolution", 10**12, 10, kind="convolution", dtype="bfloat16")
    seconds, basis = seconds_of(conv, H100)
    assert basis == "peak"
    assert seconds == pytest.approx(1e12 / (989e12 * 0.73), rel=0.01)


def test_groups_of_rows_are_one_kernel():
    shape = (16, 8192, 8192, 5120)
    flops = 2 * 8192 * 8192 * 5120
    kernel = Kernel((), "_grouped_mm", flops, 10**9, kind="grouped", shape=shape, dtype="bfloat16")
    seconds, basis = seconds_of(kernel, H100)
    assert basis == "shape"
    assert seconds == H100.product_seconds(8192, 8192, 5120, "bfloat16", 16, 10**9)


def test_causal_attention_does_half_at_its_own_rate():
    seconds, basis = seconds_of(attention(1), H100)
    assert basis == "shape"
    assert seconds == pytest.approx(attention(1).flops / 2 / 333e12, rel=0.01)
    whole = seconds_of(attention(0), H100).seconds
    assert whole == pytest.approx(attention(0).flops / 370e12, rel=0.01)
    backward = seconds_of(attention(1, "flash_backward"), H100).seconds
    assert 1.05 < backward / seconds < 1.2  # of as many operations
    other = Device.named("H100", attention="cudnn")
    assert seconds_of(attention(1), other).seconds < 0.65 * seconds
    slow = Device.named("H100", efficiency=0.5)
    assert seconds_of(attention(1), slow).seconds == pytest.approx(2 * seconds, rel=0.01)


def test_attention_on_a_device_whose_attention_nobody_measured():
    device = Device.named("MI300X")
    seconds, basis = seconds_of(attention(1), device)
    assert basis == "peak"
    assert seconds == pytest.approx(attention(1).flops / 2 / (1307e12 * 0.52), rel=0.01)


def test_attention_in_float32_has_no_tensor_cores():
    """FlashAttention does not multiply float32, so its rates do not count."""
    kernel = replace(attention(0), dtype="float32")
    seconds, basis = seconds_of(kernel, H100)
    assert basis == "peak"
    assert seconds == pytest.approx(kernel.flops / (67e12 * 0.9), rel=0.01)


def test_few_heads_leave_multiprocessors_idle():
    shape = (1, 1, 1, 1024, 8192, 128, 0)
    one = Kernel((), "flash", 10**12, 1, kind="attention", shape=shape, dtype="bfloat16")
    expected = 1e12 / (370e12 * 8 / 132)
    assert seconds_of(one, H100).seconds == pytest.approx(expected, rel=0.01)


def test_any_kernel_takes_a_launch():
    small = seconds_of(Kernel((), "add", 0, 8), H100)
    assert small.seconds == pytest.approx(2e-6, rel=0.01)
    large = seconds_of(Kernel((), "add", 0, 10**9), H100).seconds
    assert large == pytest.approx(2e-6 + 1e9 / (3.35e12 * 0.92))
    assert seconds_of(Kernel((), "view", 0, 0), H100).seconds == 0


def test_what_was_measured_is_asked_first():
    kernel = product(1, 512, 512, 512)
    time = KernelTime("mm", "product", kernel.shape, "bfloat16", kernel.flops, 1, 3.0)
    device = Device.named("H100", measured=Measured((time,)))
    assert seconds_of(kernel, device) == (3.0, "measured")
    far = seconds_of(product(1, 16384, 16384, 16384), device)
    assert far.basis in BASES
    assert far.basis != "shape"
    assert seconds_of(attention(1), device).basis == "shape"
