"""Descriptions of devices: those that are known, what may be changed, and what is refused."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest
import torch

import distlab
from distlab.errors import ArgumentError
from distlab.simulated.attention import Attention, Rates
from distlab.simulated.devices import Device
from distlab.simulated.known_attention import known_attention
from distlab.simulated.known_devices import DEVICES
from distlab.simulated.network import Device as FromNetwork
from distlab.simulated.products import Processors


def test_network_still_has_the_class():
    assert FromNetwork is Device
    assert distlab.Device is Device


def test_a_known_device_may_be_changed():
    device = Device.named("H100", memory="94 GiB", attention="cudnn")
    assert device.memory == 94 << 30
    assert device.flops == 989e12
    assert device.attention is not None
    assert device.attention.name == "cudnn"
    assert str(device) == "H100"
    assert replace(device, memory="1 KiB").memory == 1024


def test_known_devices_travel_and_are_keys():
    for name in DEVICES:
        device = Device.named(name)
        assert device == Device.named(name)
        assert device.name == name
        assert {pickle.loads(pickle.dumps(device)): 1}[device] == 1
        assert device.peak("bfloat16") == device.flops
        assert device.bandwidth < device.memory_bandwidth
        seconds = device.product_seconds(8192, 8192, 8192, "bfloat16")
        assert 0.45 < 2 * 8192**3 / seconds / device.flops < 0.9
        assert device.peak("float64") < 0.15 * device.flops  # no tensor core's rate


def test_devices_by_name_have_a_processor_and_others_have_none():
    """Beside a GB200 is a Grace, which is slower at this."""
    assert Device(1).host == 0
    assert Device.named("H100").host == Device.named("B200").host > 0
    assert Device.named("GB200").host == Device.named("GB300").host > 2 * Device.named("B200").host
    assert Device.named("GB200", host="20 us").host == 2e-5
    assert Device.named("GB200", host=0).host == 0


def test_a_number_format_has_its_own_peak():
    device = Device.named("H100")
    assert device.peak("float8_e5m2") == 1979e12
    assert device.peak("float32") == 67e12  # not TF32
    assert device.peak("complex64") == 989e12
    half = device.product_seconds(8192, 8192, 8192, "bfloat16")
    assert 1.7 < half / device.product_seconds(8192, 8192, 8192, "float8_e4m3fn") < 2
    slower = replace(device, efficiency=0.5)
    assert slower.product_seconds(8192, 8192, 8192, "bfloat16") == pytest.approx(2 * half, rel=0.02)


def test_a_device_of_one_number_has_no_table():
    device = Device("100 FLOP/s", memory_bandwidth="10 B/s", efficiency=0.5)
    assert device.product_seconds(1, 1, 100, "bfloat16") == 40.2  # 402 bytes
    assert device.seconds(100, 10) == 2
    assert str(device) == "1e-10 TFLOP/s"


def test_a_device_that_is_not_known_has_formats_and_shapes():
    processors = Processors(128, {"bfloat16": 0.9}, ((128, 128), (128, 256)), 5e12)
    device = Device(
        "82 TFLOP/s", formats={torch.bfloat16: "165 TFLOP/s"}, processors=processors, name="mine"
    )
    assert device.peak("bfloat16") == 165e12
    assert device.peak("float32") == 82e12
    whole = device.product_seconds(8192, 8192, 8192, "bfloat16")
    assert 2 * 8192**3 / whole == pytest.approx(0.9 * 165e12)  # 16 full waves
    assert pickle.loads(pickle.dumps(device)) == device
    assert device.table((8192, 8192, 8192)).rows[0][1].startswith("148 in")


def test_the_table_says_what_products_reach():
    table = Device.named("H100", formats={"bfloat16": "989 TFLOP/s"}).table((16384, 8192, 8192))
    title, heads, row, peak = repr(table).splitlines()
    assert title == "By the model, not measured: H100"
    assert heads.split() == ["TFLOP/s", "of", "a", "product", "bfloat16"]
    assert row.startswith("16,384 x 8,192 times 8,192 x 8,192")
    assert peak.split() == ["peak", "989"]
    simple = Device("1 TFLOP/s", memory_bandwidth="1 GB/s").table((1, 1, 1000))
    assert simple.heads[-1] == "bfloat16"
    assert simple.rows[0][1].endswith("4.00 µs")  # 4,002 bytes


def test_attention_has_a_rate_by_length_and_head():
    device = Device.named("H100")
    assert device.attention is not None
    assert device.attention.name == "flash 2"
    assert device.attention.rate(False, True, 128, 8192) == 333e12
    assert device.attention.rate(False, True, 128, 1 << 20) == 335e12
    assert device.attention.rate(False, True, 128, 16) == 191e12
    assert 319e12 < device.attention.rate(False, True, 128, 6000) < 333e12
    assert device.attention.rate(False, False, 192, 8192) == 324e12  # nearest: 256


def test_both_passes_together_take_what_was_measured():
    """The figures of FlashAttention-2 have both passes together."""
    for name, together in (("A100", 182e12), ("H100", 308e12)):
        attention = Device.named(name).attention
        assert attention is not None
        forward = attention.rate(False, True, 128, 8192)
        backward = attention.rate(True, True, 128, 8192)
        assert 3.5 / (1 / forward + 2.5 / backward) == pytest.approx(together)
        assert forward > backward


def test_attention_grows_with_the_device():
    """By cuDNN; a GB300 has twice the exponentials of a GB200, which bind the forward pass."""
    rates = {}
    for name in ("H100", "B200", "GB200", "B300", "GB300"):
        attention = Device.named(name, attention="cudnn").attention
        assert attention is not None
        rates[name] = [attention.rate(backward, True, 128, 8192) for backward in (False, True)]
    assert rates["GB200"] == [1559e12, 1297e12]
    assert rates["H100"] < rates["B200"] < rates["GB200"] < rates["B300"] < rates["GB300"]
    assert rates["GB300"][0] / rates["GB200"][0] > 1.1 * rates["GB300"][1] / rates["GB200"][1]


def test_every_known_implementation_has_both_passes():
    for implementations in known_attention().values():
        for attention in implementations.values():
            for one in attention.rates:
                lengths = [length for length, _ in one.by_length]
                assert lengths == sorted(lengths)
                assert all(3e13 < rate < 2.3e15 for _, rate in one.by_length)
            for backward in (False, True):
                assert attention.rate(backward, True, 128, 8192) > 1e14


def test_attention_needs_rates_of_both_passes():
    forward = Rates(False, True, 128, ((4096, 1e14),))
    with pytest.raises(ArgumentError, match="rates must be Rates of the forward and of the back"):
        Attention("mine", (forward,))
    mine = Attention("mine", (forward, Rates(True, True, 128, ((4096, 5e13),))))
    assert Device(1, attention=mine).attention.rate(True, False, 64, 100) == 5e13


REFUSED = {
    "name must be one of 'A100', 'H100'": lambda: Device.named("V100"),
    "host must be 0 or more, as a number or with a unit (s), got 'fast'. For example": lambda: (
        Device(1, host="fast")
    ),
    "host must be 0 or more, as a number or with a unit (s), got -1": lambda: Device(1, host=-1),
    "attention must be one of 'flash 2', got 'cudnn'": lambda: Device.named(
        "A100", attention="cudnn"
    ),
    "attention must be an Attention on a device that is not one of known_attention.py, got 'flash "
    "2'": lambda: Device(1, attention="flash 2"),
    "attention must be an Attention on": lambda: Device.named("MI300X", attention="flash 2"),
    "attention must be an Attention, got 2": lambda: Device(1, attention=2),
    "formats must be FLOP/s by number format as torch names it, got {'bf16': 1}. For example: "
    "formats=": lambda: Device(1, formats={"bf16": 1}),
    "formats must be a mapping": lambda: Device(1, formats=[("bfloat16", 1)]),
    "Shapes count in the number formats of a device, which has none.": lambda: Device(
        1, processors=Device.named("H100").processors
    ),
    "processors must be a Processors, got 132": lambda: Device(1, processors=132),
    "formats['bfloat16'] must be above 0": lambda: Device(1, formats={"bfloat16": 0}),
    "bandwidth_reached must be above 0 and up to 1, got 1.5": lambda: Device(
        1, bandwidth_reached=1.5
    ),
    "launch must be 0 or more": lambda: Device(1, launch="2"),
    "memory must be above 0": lambda: Device(1, memory="0 GiB"),
    "memory must be above 0, as a number or with a unit (B), got '2'": lambda: Device(
        1, memory="2"
    ),
    "shape must be m, n and k, got 4096": lambda: Device.named("H100").table(4096),
    "n must be a whole number of 1 or more, got 0": lambda: Device(1).table((1, 0, 1)),
    "efficiency must be above 0 and up to 1, got 1.5": lambda: Device(1, efficiency=1.5),
}


@pytest.mark.parametrize("message", REFUSED)
def test_bad_devices_are_refused(message):
    with pytest.raises(ArgumentError) as caught:
        REFUSED[message]()
    assert message in str(caught.value)
