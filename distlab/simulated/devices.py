"""The description of a device that is not there: how long it computes.

Made in the notebook, sent to the ranks; runs anywhere and needs neither torch nor a cluster.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from distlab.arguments import BYTES_PER_SECOND, NO_UNIT, quantity, refuse, share_below_1


class Measured(Protocol):
    """What was measured on a device."""

    def kernel_seconds(self, kind: str, dtype: str, shape: tuple[int, ...]) -> float | None:
        """How long a kernel of this shape took; None if none was measured.

        Args:
            kind, dtype, shape: as nodes.Kernel has them.
        """


@dataclass(frozen=True, init=False)
class Device:
    """How long computing takes on a rank; without a device it takes no time.

    Args:
        flops: floating-point operations a second, or a text such as "10 TFLOP/s": operations are
            counted as torch's FlopCounterMode counts them (matrix products, convolutions,
            attention), and elementwise ones cost nothing on a simulated cluster.
        memory_bandwidth: bytes a second, or a text such as "3.35 TB/s"; for `predict`, where each
            operator takes as long as its operations or its bytes need. None: bytes cost nothing.
        memory: bytes, or a text such as "80 GB"; None if it is not known.
        efficiency: the share of `flops` that matrix products reach, above 0 and up to 1.
        contention: the share of its speed that computing loses while messages travel, because the
            same device sends them; for `predict`.
        spread: the standard deviation of such devices' speeds, as a share of the speed: the more
            ranks, the slower the slowest of them, which the others wait for; for `predict`.
        measured: what its kernels and collectives were measured to take, which `predict` looks up
            before anything else; None for nothing.
        if_slower: made by `prediction.calibrated`: the efficiency at which the measured step would
            take as long if something else were wrong; see distlab_predict/calibration.py.

    Attributes:
        flops: operations a second.
        memory_bandwidth: bytes a second, or None.
        memory: bytes, or None.
        efficiency: as given.
        contention: as given.
        spread: as given.
        measured: as given.
        if_slower: as given.

    Raises:
        ArgumentError: not such a number or text.
    """

    flops: float
    memory_bandwidth: float | None
    memory: float | None
    efficiency: float
    contention: float
    spread: float
    measured: Measured | None
    if_slower: tuple[tuple[str, float], ...]

    def __init__(
        self,
        flops: float | str,
        *,
        memory_bandwidth: float | str | None = None,
        memory: float | str | None = None,
        efficiency: float = 1.0,
        contention: float = 0.0,
        spread: float = 0.0,
        measured: Measured | None = None,
        if_slower: tuple[tuple[str, float], ...] = (),
    ) -> None:
        flops = quantity("flops", flops, {"FLOP/s": 1.0}, "10 TFLOP/s")
        efficiency = quantity("efficiency", efficiency, NO_UNIT, "0.5")
        if memory_bandwidth is not None:
            memory_bandwidth = quantity(
                "memory_bandwidth", memory_bandwidth, BYTES_PER_SECOND, "3.35 TB/s"
            )
        if memory is not None:
            memory = quantity("memory", memory, {"B": 1.0}, "80 GB")
        if efficiency > 1:
            advice = "For example: efficiency=0.5."
            refuse("efficiency", "above 0 and up to 1", efficiency, advice)
        set_frozen(
            self,
            flops=flops,
            memory_bandwidth=memory_bandwidth,
            memory=memory,
            efficiency=efficiency,
            contention=share_below_1("contention", contention),
            spread=share_below_1("spread", spread),
            measured=measured,
            if_slower=if_slower,
        )

    def seconds(self, flops: float, num_bytes: float = 0.0) -> float:
        """How long an operator takes: what its operations or its bytes need, the longer of both."""
        computing = flops / (self.flops * self.efficiency)
        if self.memory_bandwidth is None:
            return computing
        return max(computing, num_bytes / self.memory_bandwidth)


def set_frozen(frozen: object, **values: object) -> None:
    """Give a frozen object its attributes, in its own __init__."""
    for name, value in values.items():
        object.__setattr__(frozen, name, value)
