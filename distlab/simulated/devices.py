"""The description of a device that is not there: how long it computes.

Made in the notebook, sent to the ranks; runs anywhere and needs neither torch nor a cluster.
What is known of real devices is in known_devices.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from distlab.arguments import (
    BYTES_PER_SECOND,
    NO_UNIT,
    SECONDS,
    instance,
    mapping,
    one_of,
    quantity,
    refuse,
    share_above_0,
    share_below_1,
    whole_number,
    wrong,
)
from distlab.simulated.attention import Attention
from distlab.simulated.known_attention import known_attention
from distlab.simulated.known_devices import DEVICES
from distlab.simulated.measured import Measured
from distlab.simulated.products import Processors, bytes_of, matrix_bytes, seconds_of_product
from distlab.tables import Table, format_seconds

BINARY = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
FLOPS = {"FLOP/s": 1.0}  # units, for `quantity`
A_FORMAT = 'For example: formats={"bfloat16": "989 TFLOP/s"}.'
NAME_OF_FORMAT = re.compile(r"(b?float|u?int|complex)\d\w*")  # as torch names them
# m, n, k: what a layer of Llama 3 8B multiplies for 16,384 tokens, one of 70B on each of 8 ranks of
# tensor parallelism, and a product that is too small for a device
SHAPES = (
    (16384, 4096, 4096),
    (16384, 14336, 4096),
    (16384, 4096, 14336),
    (16384, 3584, 8192),
    (16384, 8192, 1024),
    (2048, 1024, 1024),
)


@dataclass(frozen=True, init=False)
class Device:
    """How long computing takes on a rank; without a device it takes no time.

        Device("989 TFLOP/s", memory_bandwidth="3.35 TB/s")  # operations, or bytes
        Device.named("H100")                    # what products of each shape and format reach
        Device.named("H100", memory="94 GiB", efficiency=0.9, attention="cudnn")
        Device("165 TFLOP/s", memory_bandwidth="1 TB/s", formats={"bfloat16": "165 TFLOP/s"},
               processors=Processors(128, {"bfloat16": 0.9}, ((128, 128), (128, 256)), 5e12))

    The first takes its operations / (`flops` x `efficiency`) for every kernel, or its bytes /
    `memory_bandwidth`, whichever is longer. A named device has a table as well, which `predict`
    asks; a simulated cluster counts operations in either case. The last is one that is not known:
    `Processors` is in distlab.simulated.products, `Attention` in distlab.simulated.attention.

    Args:
        flops: floating-point operations a second, or a text such as "10 TFLOP/s": operations are
            counted as torch's FlopCounterMode counts them (matrix products, convolutions,
            attention), and elementwise ones cost nothing on a simulated cluster.
        memory_bandwidth: bytes a second, or a text such as "3.35 TB/s"; for `predict`, where each
            operator takes as long as its operations or its bytes need. None: bytes cost nothing.
        memory: bytes, or a text such as "80 GB" or "79 GiB"; None if it is not known.
        efficiency: the share of `flops` that matrix products reach, above 0 and up to 1; of a
            device with a table, the share of what the table says of products and of attention. An
            H100 that is limited to 500 W has 0.8.
        contention: the share of its speed that computing loses while messages travel, because the
            same device sends them; for `predict`.
        spread: the standard deviation of such devices' speeds, as a share of the speed: the more
            ranks, the slower the slowest of them, which the others wait for; for `predict`.
        measured: what its kernels and collectives were measured to take, which `predict` looks up
            before anything else; None for nothing.
        if_slower: made by `prediction.calibrated`: the efficiency at which the measured step would
            take as long if something else were wrong; see distlab_predict/calibration.py.
        name: of the device; "" for none.
        formats: FLOP/s of products at their peak, by number format as torch names it, such as
            {"bfloat16": "989 TFLOP/s"}; other formats have `flops`. None for no others. "float32"
            is without TF32, which torch does not use unless it is told to.
        processors: its multiprocessors, so that a product's shape counts in the number formats of
            `formats`. None: every shape is as good as any other.
        attention: what attention kernels reach, or the name of an implementation that is known for
            the device: "flash 2", "flash 3", "flash 4" or "cudnn". None: what other kernels do.
        bandwidth_reached: the share of `memory_bandwidth` that kernels reach, above 0 and up to 1.
        launch: seconds that any kernel takes besides, or a text such as "2 us"; 0 by default.
        host: seconds that its processor needs for one operator of an eager program, from Python to
            the launch of the kernel, or a text such as "10 us"; for `predict`, where compiled
            kernels, collectives and all else take a multiple of it (distlab_predict/launches.py).
            By default 0, for kernels that are captured in CUDA graphs, or a program that is always
            ahead of its device. Devices by name have one.

    Attributes:
        flops: operations a second.
        memory_bandwidth: bytes a second, or None.
        memory: bytes, or None.
        efficiency, contention, spread, measured, if_slower, name, processors, bandwidth_reached: as
            given.
        formats: operations a second by number format.
        attention: its rates, or None.
        launch, host: in seconds.

    Raises:
        ArgumentError: not such a number or text, no such implementation of attention, or
            processors without formats.
    """

    flops: float
    memory_bandwidth: float | None
    memory: float | None
    efficiency: float
    contention: float
    spread: float
    measured: Measured | None = field(repr=False)
    if_slower: tuple[tuple[str, float], ...] = field(repr=False)
    name: str
    formats: Mapping[str, float] = field(hash=False, repr=False)
    processors: Processors | None = field(repr=False)
    attention: Attention | None = field(repr=False)
    bandwidth_reached: float = field(repr=False)
    launch: float = field(repr=False)
    host: float = field(repr=False)

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
        name: str = "",
        formats: Mapping[str, float | str] | None = None,
        processors: Processors | None = None,
        attention: Attention | str | None = None,
        bandwidth_reached: float = 1.0,
        launch: float | str = 0.0,
        host: float | str = 0.0,
    ) -> None:
        flops = quantity("flops", flops, FLOPS, "10 TFLOP/s")
        if memory_bandwidth is not None:
            memory_bandwidth = quantity(
                "memory_bandwidth", memory_bandwidth, BYTES_PER_SECOND, "3.35 TB/s"
            )
        if memory is not None:
            memory = _bytes(memory)
        if processors is not None:
            instance("processors", processors, Processors, 'Call Device.named("H100").')
            if not formats:
                wrong(f"Shapes count in the number formats of a device, which has none. {A_FORMAT}")
        set_frozen(
            self,
            flops=flops,
            memory_bandwidth=memory_bandwidth,
            memory=memory,
            efficiency=share_above_0("efficiency", efficiency),
            contention=share_below_1("contention", contention),
            spread=share_below_1("spread", spread),
            measured=measured,
            if_slower=if_slower,
            name=name,
            formats=_formats(formats or {}),
            processors=processors,
            attention=_attention(name, attention),
            bandwidth_reached=share_above_0("bandwidth_reached", bandwidth_reached),
            launch=quantity("launch", launch, SECONDS, "2 us", zero=True),
            host=quantity("host", host, SECONDS, "10 us", zero=True),
        )

    @classmethod
    def named(cls, name: str, **others: Any) -> Device:
        """A device of known_devices.py, such as "H100", with other arguments of Device changed.

        Raises:
            ArgumentError: no such name, or an argument breaks its rule.
        """
        known = one_of("name", name, DEVICES, 'Call Device.named("H100").')
        return cls(**{**DEVICES[known], "name": known, **others})

    def seconds(self, flops: float, num_bytes: float = 0.0) -> float:
        """How long an operator takes: what its operations or its bytes need, the longer of both."""
        computing = flops / (self.flops * self.efficiency)
        if self.memory_bandwidth is None:
            return computing
        return max(computing, num_bytes / self.memory_bandwidth)

    @property
    def bandwidth(self) -> float:
        """The bytes a second that kernels reach; infinite if bytes cost nothing."""
        if self.memory_bandwidth is None:
            return float("inf")
        return self.memory_bandwidth * self.bandwidth_reached

    def peak(self, dtype: str) -> float:
        """FLOP/s at the peak of products in a number format, "bfloat16"."""
        return self.formats.get(dtype, self.flops)

    def product_seconds(
        self,
        m: int,
        n: int,
        k: int,
        dtype: str,
        groups: int = 1,
        num_bytes: float | None = None,
        batched: bool = False,
    ) -> float:
        """How long a product of matrices takes, as `predict` has it.

        Args:
            m, n, k: an m x k matrix is multiplied by a k x n one. In groups, m is the number of
                rows of all of them, and each has its own k x n.
            dtype: what is multiplied, "bfloat16".
            groups: how many products one kernel does.
            num_bytes: read and written; None for those of the matrices.
            batched: whether the groups are a batch, all of one size, which is multiplied as quickly
                as a single product.
        """
        if num_bytes is None:
            num_bytes = matrix_bytes(groups, m, n, k, dtype)
        rate = self.peak(dtype) * self.efficiency
        if self.processors is None:
            return self.launch + max(2 * m * n * k / rate, num_bytes / self.bandwidth)
        rate *= self.processors.reached.get(dtype, 1.0)
        is_grouped = groups > 1 and not batched
        if is_grouped:
            rate *= self.processors.grouped.get(dtype, 1.0)
        shape = (groups, m, n, k)
        return self.launch + seconds_of_product(
            self.processors, rate, self.bandwidth, shape, bytes_of(dtype), num_bytes, is_grouped
        )

    def table(self, *shapes: tuple[int, int, int]) -> Table:
        """What products of matrices reach on it, in TFLOP/s, and how long each of them takes.

        Args:
            shapes: (m, n, k) of an m x k matrix times a k x n one; usual ones if none is given.

        Raises:
            ArgumentError: not three whole numbers of 1 or more.
        """
        formats = [*self.formats] or ["bfloat16"]
        rows = []
        for shape in shapes or SHAPES:
            m, n, k = _three_sizes(shape)
            cells = [f"{m:,} x {k:,} times {k:,} x {n:,}"]
            for dtype in formats:
                seconds = self.product_seconds(m, n, k, dtype)
                reached = 2 * m * n * k / seconds / 1e12
                cells.append(f"{reached:,.0f} in {format_seconds(seconds).strip()}")
            rows.append(tuple(cells))
        peaks = [f"{self.peak(dtype) / 1e12:,.0f}" for dtype in formats]
        rows.append(("peak", *peaks))
        heads = ("TFLOP/s of a product", *formats)
        return Table(
            f"By the model, not measured: {self}", heads, tuple(rows), "l" + "r" * len(formats)
        )

    def __str__(self) -> str:
        return self.name or f"{self.flops / 1e12:,.4g} TFLOP/s"


def _three_sizes(shape: Any) -> tuple[int, int, int]:
    """Read m, n and k of a product."""
    if not isinstance(shape, Sequence) or len(shape) != 3:
        refuse("shape", "m, n and k", shape, "For example: .table((16384, 4096, 4096)).")
    m, n, k = (whole_number(name, size, 1) for name, size in zip("mnk", shape, strict=True))
    return m, n, k


def _formats(given: Mapping[Any, float | str]) -> dict[str, float]:
    """Read FLOP/s by number format, which may be torch's own object, torch.bfloat16."""
    mapping("formats", given, "FLOP/s by number format", A_FORMAT)
    found = {}
    for dtype, rate in given.items():
        name = str(dtype).removeprefix("torch.")
        if NAME_OF_FORMAT.fullmatch(name) is None:
            refuse("formats", "FLOP/s by number format as torch names it", given, A_FORMAT)
        found[name] = quantity(f"formats[{name!r}]", rate, FLOPS, "989 TFLOP/s")
    return found


def _bytes(value: float | str) -> float:
    """Read a number of bytes, which may be in units of 1024: "94 GiB"."""
    if isinstance(value, str):
        for unit, size in BINARY.items():
            if value.endswith(unit):
                number = quantity("memory", value.removesuffix(unit).strip(), NO_UNIT, '"94 GiB"')
                return number * size
    return quantity("memory", value, {"B": 1.0}, "80 GB")


def _attention(device: str, attention: Attention | str | None) -> Attention | None:
    """Read what attention reaches, or look up an implementation for a device of this name."""
    if isinstance(attention, str):
        known = known_attention().get(device)
        if known is None:
            rule = "an Attention on a device that is not one of known_attention.py"
            refuse("attention", rule, attention, 'For example: Device.named("H100").attention.')
        return known[one_of("attention", attention, known, 'Call Device.named("H100").')]
    if attention is not None:
        instance("attention", attention, Attention, 'For example: attention="flash 2".')
    return attention


def set_frozen(frozen: object, **values: object) -> None:
    """Give a frozen object its attributes, in its own __init__."""
    for name, value in values.items():
        object.__setattr__(frozen, name, value)
