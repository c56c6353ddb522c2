"""How long a kernel takes on a device, and what that rests on. Pure functions.

Called by costs.py, in the notebook's process. A kernel is here what a device runs.
"""

from typing import NamedTuple

from distlab.simulated.devices import Device
from distlab_predict.nodes import Kernel

# What the time of a kernel rests on: a kernel of this shape was measured; the device's table, with
# what the shape costs; its bytes; a share of the peak; or nothing, as nobody knows its operations.
BASES = ("measured", "shape", "bytes", "peak", "unknown")


class KernelCost(NamedTuple):
    """What a kernel costs on the usual device of its kind.

    Attributes:
        seconds: how long it takes.
        basis: one of BASES.
    """

    seconds: float
    basis: str


def seconds_of(kernel: Kernel, device: Device) -> KernelCost:
    """How long a kernel takes: what its operations or its bytes need, the longer of both."""
    computing = kernel.flops / (device.flops * device.efficiency)
    moving = 0.0
    if device.memory_bandwidth is not None:
        moving = kernel.num_bytes / device.memory_bandwidth
    if moving >= computing:
        return KernelCost(moving, "bytes")
    return KernelCost(computing, "peak")
