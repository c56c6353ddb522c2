"""How long a kernel takes on a device, and what that rests on. Pure functions.

Called by costs.py, in the notebook's process. A kernel is here what a device runs.

What was measured on the device is asked first. A device that has a table (Device.named) says what
products of matrices reach by number format and shape, and attention by its own rate. Any other
device does all operations at one rate. A kernel takes at least as long as its bytes.

`efficiency` slows all that computes, products of matrices and attention, as a clock below that of
the data sheet does. Which of the two a limit of power slows more depends on the kernel.
FlashAttention-2 on an A100 that is limited to 300 W instead of 400 W takes as long as before
(known_attention.py), while products take 4 % longer (github.com/mag-/gpu_benchmark). On an H100
that is limited to 500 W products reach 0.8 (see Device.named), and a step of 32,768 tokens, most of
which is attention, was measured to take 21 % longer than without efficiency for attention.
"""

import math
from typing import NamedTuple

from distlab.simulated.devices import Device
from distlab.simulated.products import Processors
from distlab_predict.nodes import ATTENTION, GROUPED, PRODUCT, UNKNOWN, Kernel

# What the time of a kernel rests on: this kernel was measured on the device, or ones near it, or
# ones far from it; the device's table, with what the shape costs; the kernel's bytes; a share of
# the peak; or nothing, as nobody knows its operations.
BASES = ("measured", "scaled", "extrapolated", "shape", "bytes", "peak", "unknown")
ROWS = 128  # of queries, which a multiprocessor works on at a time
HALF = ("bfloat16", "float16")  # number formats in which attention was measured


class KernelCost(NamedTuple):
    """What a kernel costs on the usual device of its kind.

    Attributes:
        seconds: how long it takes.
        basis: one of BASES.
    """

    seconds: float
    basis: str


def seconds_of(kernel: Kernel, device: Device) -> KernelCost:
    """How long a kernel takes on the usual device of its kind."""
    if device.measured is not None:
        known = device.measured.kernel(
            kernel.name, kernel.kind, kernel.shape, kernel.dtype, kernel.flops, kernel.num_bytes
        )
        if known is not None:
            return KernelCost(known.seconds, known.basis)
    moving = kernel.num_bytes / device.bandwidth
    if kernel.kind == UNKNOWN:
        return KernelCost(device.launch + moving, "unknown")
    if kernel.flops == 0:
        return KernelCost(_launched(device, moving), "bytes")
    seconds = _by_table(kernel, device, moving)
    if seconds is not None:
        return KernelCost(seconds, "shape")
    computing = _flops(kernel, device) / (_rate(kernel, device) * device.efficiency)
    if moving >= computing:
        return KernelCost(_launched(device, moving), "bytes")
    return KernelCost(device.launch + computing, "peak")


def _by_table(kernel: Kernel, device: Device, moving: float) -> float | None:
    """How long a kernel takes by the device's table; None if it is not in it."""
    if device.processors is None or kernel.dtype not in device.formats:
        return None
    if kernel.kind in (PRODUCT, GROUPED):
        groups, m, n, k = kernel.shape
        is_batch = kernel.kind == PRODUCT
        if is_batch:
            m *= groups  # each has its own rows
        return device.product_seconds(m, n, k, kernel.dtype, groups, kernel.num_bytes, is_batch)
    if kernel.kind == ATTENTION and device.attention is not None and kernel.dtype in HALF:
        batch, heads, _, queries, keys, numbers, causal = kernel.shape
        backward = "backward" in kernel.name
        rate = device.attention.rate(backward, bool(causal), numbers, keys)
        rate *= device.efficiency
        rate *= _busy(device.processors, batch * heads * math.ceil(queries / ROWS))
        return device.launch + max(_flops(kernel, device) / rate, moving)
    return None


def _launched(device: Device, moving: float) -> float:
    """How long a kernel takes that only reads and writes; nothing if there is nothing to do."""
    if moving == 0:
        return 0.0
    return device.launch + moving


def _rate(kernel: Kernel, device: Device) -> float:
    """FLOP/s of a kernel whose shape says nothing."""
    rate = device.peak(kernel.dtype)
    if device.processors is not None:
        rate *= device.processors.reached.get(kernel.dtype, 1.0)
    return rate


def _flops(kernel: Kernel, device: Device) -> float:
    """What a kernel computes.

    A causal attention kernel does half of what FlopCounterMode counts. A device without a table
    does all of it, as it always has.
    """
    if device.processors is not None and kernel.kind == ATTENTION and kernel.shape[-1] == 1:
        return kernel.flops / 2
    return kernel.flops


def _busy(processors: Processors, parts: int) -> float:
    """The share of the multiprocessors that have something to do, where there are few parts."""
    return min(1.0, parts / processors.count)
