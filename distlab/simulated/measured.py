"""How long kernels and collectives took where they were measured, and what follows for others.

`Measured` is plain data, made by distlab_predict/trace_rates.py from a trace of a profiler.
`Device.measured` holds it, and distlab_predict/kernels.py and costs.py ask it first. Runs anywhere;
needs no torch.

What was not measured follows by a law of two terms, fitted to all that is alike:

- a kernel takes an overhead and its work (FLOPs, or bytes where a kernel has no FLOPs);
- a call takes so many times its network's latency, and so many times what its bytes need. Both are
  from the formula for the algorithm (costs.py), so other numbers of ranks and hosts follow.

The law is scaled so that it is right at the nearest of the measured ones.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from distlab.simulated.laws import Law, Point, law_of
from distlab.words import grouped


@dataclass(frozen=True)
class KernelTime:
    """Kernels that are alike, and how long one of them took.

    Attributes:
        name: the operator's.
        kind, shape, dtype: as of nodes.Kernel.
        flops: of one of them.
        num_bytes: that one of them reads and writes.
        seconds: the median.
        count: how many were measured.
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    dtype: str
    flops: float
    num_bytes: float
    seconds: float
    count: int = 1


@dataclass(frozen=True)
class CallTime:
    """Calls that are alike, and how long one of them took.

    Attributes:
        name: of the collective, or "send" or "recv".
        link: the slowest one of its group, "inside" of a host or "between" hosts.
        ranks: of its group.
        latency: seconds of its messages' latency, by the formula.
        moving: seconds that its bytes need, by the formula.
        seconds: as measured.
        count: how many were measured.
    """

    name: str
    link: str
    ranks: int
    latency: float
    moving: float
    seconds: float
    count: int = 1


class Known(NamedTuple):
    """What follows from measurements.

    Attributes:
        seconds: how long it takes.
        basis: "measured", "scaled" from others near it, or "extrapolated" from others.
        load: the share of that time in which bytes of a call go through; None for a kernel.
    """

    seconds: float
    basis: str
    load: float | None = None


@dataclass(frozen=True)
class Measured:
    """What was measured of a device and its links.

    Attributes:
        kernels: by operator, number format and shape.
        calls: by collective, link, ranks and size.
        source: of the numbers, "trace.json".
        share: of the time of the kernels in the trace, that of those which the predicted program
            has as well.
        step: seconds that a step of the trace took.
        explained: seconds of them that are predicted with these kernels and calls.
    """

    kernels: tuple[KernelTime, ...] = ()
    calls: tuple[CallTime, ...] = ()
    source: str = ""
    share: float = 1.0
    step: float = 0.0
    explained: float = 0.0

    def kernel(
        self,
        name: str,
        kind: str,
        shape: tuple[int, ...],
        dtype: str,
        flops: float,
        num_bytes: float,
    ) -> Known | None:
        """How long a kernel takes; None if nothing like it was measured.

        Alike are products, or attention, in the same number format; of kernels without FLOPs those
        of the same operator, or else all of them.

        Args:
            name, kind, shape, dtype, flops, num_bytes: as of nodes.Kernel.
        """
        key = (name, kind, shape, dtype, flops, num_bytes)
        if key not in self._found:
            self._found[key] = self._find(KernelTime(*key, 0.0))
        return self._found[key]

    def _find(self, asked: KernelTime) -> Known | None:
        exact = self._kernels.get(_exact(asked))
        if exact is not None:
            return Known(exact.seconds, "measured")
        for family in _families(asked):
            law = self._kernel_laws.get(family)
            if law is not None:
                place = _place(asked)
                seconds = law.seconds(1.0, _work(asked), place)
                return Known(seconds, law.basis(place))
        return None

    def call(self, name: str, link: str, ranks: int, latency: float, moving: float) -> Known | None:
        """How long a call takes when it is alone; None if nothing on this link was measured.

        Alike are calls of the same collective on the same link, or else all on this link.

        Args:
            name, link, ranks, latency, moving: as of `CallTime`.
        """
        if latency + moving == 0:
            return None
        place = (latency + moving,)
        for family in ((name, link), link):
            law = self._call_laws.get(family)
            if law is not None:
                seconds = law.seconds(latency, moving, place)
                basis = law.basis(place, family == (name, link) and ranks in law.marks)
                return Known(seconds, basis, law.share_of_second(latency, moving))
        return None

    @cached_property
    def _found(self) -> dict[Hashable, Known | None]:
        """What was asked for: a program has the same few kernels thousands of times."""
        return {}

    @cached_property
    def _kernels(self) -> dict[Hashable, KernelTime]:
        return {_exact(kernel): kernel for kernel in self.kernels}

    @cached_property
    def _kernel_laws(self) -> dict[Hashable, Law]:
        points = []
        for kernel in self.kernels:
            point = Point(1.0, _work(kernel), kernel.seconds, _place(kernel))
            for family in _families(kernel):
                points.append((family, point))
        return {family: law_of(of_it) for family, of_it in grouped(points).items()}

    @cached_property
    def _call_laws(self) -> dict[Hashable, Law]:
        points: list[tuple[Hashable, Point]] = []
        for call in self.calls:
            place = (call.latency + call.moving,)
            point = Point(call.latency, call.moving, call.seconds, place, call.ranks)
            points.append(((call.name, call.link), point))
            points.append((call.link, point))
        return {family: law_of(of_it) for family, of_it in grouped(points).items()}


# --- what is alike ---


def _work(kernel: KernelTime) -> float:
    """What a kernel's time grows with: its FLOPs, or its bytes if it has none."""
    return kernel.flops or kernel.num_bytes


def _place(kernel: KernelTime) -> tuple[float, ...]:
    """Where a kernel is among others: by its shape, or by its work."""
    return kernel.shape or (_work(kernel),)


def _exact(kernel: KernelTime) -> Hashable:
    """What kernels have in common that take the same time."""
    if kernel.shape:  # attention and its backward pass have one shape, but other FLOPs
        return kernel.kind, kernel.dtype, kernel.shape, kernel.flops
    return kernel.name, kernel.dtype, kernel.flops, kernel.num_bytes


def _families(kernel: KernelTime) -> Iterable[Hashable]:
    """What a kernel has in common with others, from those that are most like it on."""
    if kernel.flops:
        return [(kernel.kind, kernel.dtype, "backward" in kernel.name)]
    return [(kernel.name, kernel.dtype), (kernel.name,), ()]
