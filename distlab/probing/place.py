"""Where a case of the probe runs, and how it looks at what it got.

Runs on the processes that the probe starts; used by cases.py and reductions.py.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Place:
    """Where a case runs: a rank, the number of ranks, the device of its tensors, and the seconds that it may take."""

    rank: int
    size: int
    device: str
    seconds: float

    def full(self, value: float, length: int = 4, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.full((length,), value, dtype=dtype, device=self.device)

    @property
    def mine(self) -> torch.Tensor:
        """Four times this rank's number plus one."""
        return self.full(self.rank + 1)

    @property
    def total(self) -> int:
        """The sum of every rank's number plus one."""
        return self.size * (self.size + 1) // 2


def holds(tensor: torch.Tensor, *values: float) -> bool:
    """Whether a tensor is made of equal parts of these values."""
    parts = tensor.cpu().tensor_split(len(values))
    return all(bool((part == value).all()) for part, value in zip(parts, values, strict=True))
