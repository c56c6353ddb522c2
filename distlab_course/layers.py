"""What both kinds of attention and of feed-forward layers of llama.py are made of.

Called by llama.py, latent.py and experts.py; it runs on the ranks, or in predict's process.
"""

import functools

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@functools.cache
def turns(length: int, half: int) -> Tensor:
    """The angle by which each pair of numbers turns at each place.

    Returns:
        complex numbers of length 1, of shape (place, 1, half).
    """
    speeds = 500_000.0 ** -(torch.arange(half) / half)
    angles = torch.outer(torch.arange(length), speeds)
    lengths = torch.ones_like(angles)
    return torch.polar(lengths, angles)[:, None]


def rotated(values: Tensor, by: Tensor) -> Tensor:
    """Queries or keys, turned by an angle that grows with their place.

    Their shape is (batch, place, head, number).
    """
    pairs = torch.view_as_complex(values.float().unflatten(-1, (-1, 2)))
    turned = torch.view_as_real(pairs * by)
    return turned.flatten(-2).type_as(values)


def products(x: Tensor, *layers: nn.Module) -> list[Tensor]:
    """What linear layers make of the same vectors.

    The vectors are rows of one matrix for all of them, which shows torch.compile that it can gather
    the matrix and multiply it part by part.
    """
    rows = x.flatten(0, -2)
    return [layer(rows).unflatten(0, x.shape[:-1]) for layer in layers]


class FeedForward(nn.Module):
    """The layers that work on each token by itself.

    Args:
        width: numbers of a token's vector.
        hidden: numbers between its two halves.
    """

    def __init__(self, width: int, hidden: int):
        super().__init__()
        self.w1 = nn.Linear(width, hidden, bias=False)
        self.w2 = nn.Linear(hidden, width, bias=False)
        self.w3 = nn.Linear(width, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        gate, values = products(x, self.w1, self.w3)
        return self.w2(F.silu(gate) * values)
