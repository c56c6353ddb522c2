"""Attention to a part of the keys, and how two parts make one: the running softmax. Runs anywhere.

Source: M. Milakov and N. Gimelshein, Online normalizer calculation for softmax, 2018, algorithm 3.
"""

import torch
from torch import Tensor

# for each query: its largest score, the sum of exp(score - largest), and the sum of these times the values
Part = tuple[Tensor, Tensor, Tensor]


def attend(query: Tensor, key: Tensor, value: Tensor) -> Part:
    """What each query (rows, width) sees of some keys and values (keys, width), not yet divided by its total."""
    scores = query @ key.T / query.shape[1] ** 0.5
    largest = scores.amax(1, keepdim=True)
    weights = (scores - largest).exp()
    return largest, weights.sum(1, keepdim=True), weights @ value


def merge(one: Part, other: Part) -> Part:
    """The part that `attend` would have returned for the keys of both."""
    largest = torch.maximum(one[0], other[0])
    factors = (one[0] - largest).exp(), (other[0] - largest).exp()
    total, result = (factors[0] * one[k] + factors[1] * other[k] for k in (1, 2))
    return largest, total, result
