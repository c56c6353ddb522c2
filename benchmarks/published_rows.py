"""What a published table is: rows of training runs, and the machines that they ran on.

Plain data, of which published.py and published_megatron_bridge.py make their tables. A device has
one number that is calibrated, its efficiency, by the first row of its table; all else follows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from distlab import Device, Network
from distlab_course.sizes import Size

GIB = 1 << 30
DENSE = "dense"
FLOAT8 = "float8"
EXPERTS = "experts"


@dataclass(frozen=True)
class Row:
    """What was published of a program on some GPUs.

    Attributes:
        name: of the model, and what is special of it.
        ranks: how many GPUs.
        size: of the model.
        tokens: a second, of each GPU; None if that was not published.
        memory: what torch reserves, in GiB, or in words; None if that was not published.
        kind: DENSE, FLOAT8 or EXPERTS.
        compiled: whether torch.compile was used; "by hand" for kernels that were fused by hand, as
            of `distlab.predict`.
        captured: whether all kernels of a step are in a CUDA graph, so that no processor launches
            them.
        options: of `distlab_course.pretraining.train`.
    """

    name: str
    ranks: int
    size: Size
    tokens: float | None
    memory: float | str | None = None
    kind: str = DENSE
    compiled: bool | str = False
    captured: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class PublishedTable:
    """Rows of one program on machines of one kind.

    Attributes:
        title: what they have in common.
        source: where they were published.
        device: the GPU.
        hosts: the machines, of which there are as many as a row needs.
        rows: the first one calibrates the device.
    """

    title: str
    source: str
    device: Device
    hosts: Network
    rows: list[Row]

    def machines(self, ranks: int) -> Network:
        """So many GPUs of these machines; fewer than a host has are in one."""
        (in_host,) = self.hosts.hosts
        if ranks <= in_host:
            return replace(self.hosts, hosts=[ranks])
        whole, left = divmod(ranks, in_host)
        hosts = [in_host] * whole
        if left:
            hosts.append(left)
        return replace(self.hosts, hosts=hosts)


@dataclass(frozen=True)
class Question:
    """How much quicker or slower a step is in the second row than in the first one.

    Attributes:
        text: in words.
        table: its title.
        first, second: the names of the rows.
    """

    text: str
    table: str
    first: str
    second: str


# --- machines ---

# Between the quickest and the slowest GPU of one kind lie 8 %, without outliers (Sinha et al.,
# SC22, arXiv 2208.11035), which are 5.4 standard deviations.
SPREAD = 0.015
H100_500W = Device.named("H100", memory_bandwidth="2.4 TB/s", memory="95 GiB", spread=SPREAD)
H100 = Device.named("H100", attention="cudnn", spread=SPREAD)
H200 = Device.named("H200", spread=SPREAD)
A100 = Device.named("A100", spread=SPREAD)
B200 = Device.named("B200", spread=SPREAD)
GB200 = Device.named("GB200", spread=SPREAD)
GB300 = Device.named("GB300", spread=SPREAD)

A100_HOSTS = Network.named("A100 hosts")
H100_HOSTS = Network.named("H100 hosts")
B200_HOSTS = Network.named("B200 hosts")
# 64 of a rack's 72 GPUs, as numbers of GPUs are powers of two
GB200_RACKS = Network.named("GB200 NVL72", hosts=[64], rails=64)
GB300_RACKS = Network.named("GB300 NVL72", hosts=[64], rails=64)
