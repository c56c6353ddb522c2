"""The description of a link that is not there: its latency and its bandwidth.

Made in the notebook, sent to the ranks; runs anywhere and needs neither torch nor a cluster.
"""

from __future__ import annotations

from dataclasses import dataclass

from distlab.arguments import BYTES_PER_SECOND, PREFIXES, SECONDS, quantity
from distlab.simulated.devices import set_frozen


@dataclass(frozen=True, init=False)
class Link:
    """What a message travels over.

    A message arrives `latency` after it has left, and holds a port for its bytes / `bandwidth`.

    Args:
        latency: seconds, or a text such as "5 us".
        bandwidth: bytes a second in each direction, or a text such as "25 GB/s" or "100 Gb/s".

    Attributes:
        latency: in seconds.
        bandwidth: in bytes a second.

    Raises:
        ArgumentError: not such a number or text.
    """

    latency: float
    bandwidth: float

    def __init__(self, latency: float | str, bandwidth: float | str) -> None:
        set_frozen(
            self,
            latency=quantity("latency", latency, SECONDS, "5 us", zero=True),
            bandwidth=quantity("bandwidth", bandwidth, BYTES_PER_SECOND, "25 GB/s"),
        )

    def __str__(self) -> str:
        return f"{_short(self.latency)}s, {_short(self.bandwidth)}B/s"


def _short(value: float) -> str:
    """A number with its prefix: "5 u", "12.5 G"."""
    chosen = ""
    for prefix, power in reversed(PREFIXES.items()):
        is_large_enough = value >= 0.9999 * 10.0**power  # what rounding shows as 1
        if prefix != "u" and is_large_enough:  # "µ" is the same
            chosen = prefix
            break
    return f"{value / 10.0 ** PREFIXES[chosen]:.4g} {chosen}"
