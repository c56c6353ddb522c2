"""Llama 3 of any size: whole, or the part of it that a stage of a pipeline has.

Called by pretraining.py for lab 63 and benchmarks; it runs on the ranks, or in predict's process.
The architecture is that of "The Llama 3 Herd of Models" (2024), table 3.
"""

import functools
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class Size:
    """How wide and deep a model is."""

    width: int  # numbers of a token's vector
    layers: int
    heads: int  # of queries
    hidden: int  # numbers between the two halves of a feed-forward layer
    kv_heads: int = 8  # of keys and values, which the heads of queries share
    vocabulary: int = 128256


SIZES = {
    "8B": Size(4096, 32, 32, 14336),
    "70B": Size(8192, 80, 64, 28672),
    "405B": Size(16384, 126, 128, 53248),
}


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


class Attention(nn.Module):
    """Each token looks at those before it. A rank of tensor parallelism has some of the heads.

    Attributes:
        turns: of the places that this rank has; None if it has all.
        repeats: whether keys and values are repeated for the queries that share them, or the kernel
            does without.
    """

    turns: Tensor | None = None
    repeats = True

    def __init__(self, size: Size):
        super().__init__()
        self.head = size.width // size.heads  # numbers of one head's part of a vector
        queries = size.heads * self.head
        keys = size.kv_heads * self.head
        self.wq = nn.Linear(size.width, queries, bias=False)
        self.wk = nn.Linear(size.width, keys, bias=False)
        self.wv = nn.Linear(size.width, keys, bias=False)
        self.wo = nn.Linear(queries, size.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        # (batch, place, head, number)
        q = self.wq(x).unflatten(-1, (-1, self.head))
        k = self.wk(x).unflatten(-1, (-1, self.head))
        v = self.wv(x).unflatten(-1, (-1, self.head))
        by = self.turns
        if by is None:
            by = turns(x.shape[1], self.head // 2)
        q = rotated(q, by)
        k = rotated(k, by)
        if self.repeats:
            queries_a_key = q.shape[2] // k.shape[2]
            k = k.repeat_interleave(queries_a_key, dim=2)
            v = v.repeat_interleave(queries_a_key, dim=2)
        # (batch, head, place, number)
        q = q.transpose(1, 2)
        k = k.transpose(1, 2)
        v = v.transpose(1, 2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=not self.repeats)
        return self.wo(y.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    """The layers that work on each token by itself."""

    def __init__(self, size: Size):
        super().__init__()
        self.w1 = nn.Linear(size.width, size.hidden, bias=False)
        self.w2 = nn.Linear(size.hidden, size.width, bias=False)
        self.w3 = nn.Linear(size.width, size.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class Block(nn.Module):
    """A layer; shape (batch, place, width) in and out."""

    def __init__(self, size: Size):
        super().__init__()
        self.attention_norm = nn.RMSNorm(size.width)
        self.attention = Attention(size)
        self.ffn_norm = nn.RMSNorm(size.width)
        self.feed_forward = FeedForward(size)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        return x + self.feed_forward(self.ffn_norm(x))


class Llama(nn.Module):
    """Tokens in, scores of the next tokens out; shapes (batch, place), (batch, place, vocabulary).

    Args:
        size: one of SIZES, or your own.
        stage, stages: a pipeline's stage has some of the blocks, and the first stage no more than
            any other; only the first one has `embedding`, and only the last one `norm` and
            `output`. A block has the name that it has in the whole model, "blocks.5" for instance,
            so that a checkpoint fits any number of stages.
    """

    def __init__(self, size: Size, stage: int = 0, stages: int = 1):
        super().__init__()
        layers, more = divmod(size.layers, stages)
        # what is left over goes to the stages after the first
        first = stage * layers + min(max(stage - 1, 0), more)
        if 1 <= stage <= more:
            layers += 1
        self.embedding: nn.Embedding | None = None
        self.norm: nn.RMSNorm | None = None
        self.output: nn.Linear | None = None
        if stage == 0:
            self.embedding = nn.Embedding(size.vocabulary, size.width)
        self.blocks = nn.ModuleDict()
        for number in range(first, first + layers):
            self.blocks[str(number)] = Block(size)
        if stage == stages - 1:
            self.norm = nn.RMSNorm(size.width)
            self.output = nn.Linear(size.width, size.vocabulary, bias=False)

    def attentions(self) -> list[Attention]:
        """The attention of each block."""
        return [module for module in self.modules() if isinstance(module, Attention)]

    def forward(self, x: Tensor) -> Tensor:
        if self.embedding is not None:
            x = self.embedding(x)
        for block in self.blocks.values():
            x = block(x)
        if self.norm is None or self.output is None:
            return x
        return self.output(self.norm(x))
