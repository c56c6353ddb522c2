"""Llama 3 of any size, and models like it: whole, or the part of one that a pipeline's stage has.

Called by pretraining.py for lab 63 and benchmarks; it runs on the ranks, or in predict's process.
The architecture is that of "The Llama 3 Herd of Models" (2024), table 3. A size may have a mixture
of experts (experts.py), a latent attention (latent.py), and norms of heads, as others have.
"""

import torch.nn.functional as F
from torch import Tensor, nn

from distlab_course.experts import Mixture
from distlab_course.latent import LatentAttention
from distlab_course.layers import FeedForward, products, rotated, turns
from distlab_course.sizes import SIZES, Size

__all__ = ["SIZES", "Attention", "Block", "FeedForward", "Llama", "Size", "rotated", "turns"]


class Attention(nn.Module):
    """Each token looks at those before it. A rank of tensor parallelism has some of the heads.

    Attributes:
        turned: numbers of a query that turn with its place.
        turns: of the places that this rank has; None if it has all.
        repeats: whether keys and values are repeated for the queries that share them, or the kernel
            does without.
    """

    turns: Tensor | None = None
    repeats = True

    def __init__(self, size: Size):
        super().__init__()
        self.head = size.head_width
        self.turned = self.head
        queries = size.heads * self.head
        keys = size.kv_heads * self.head
        self.wq = nn.Linear(size.width, queries, bias=False)
        self.wk = nn.Linear(size.width, keys, bias=False)
        self.wv = nn.Linear(size.width, keys, bias=False)
        self.wo = nn.Linear(queries, size.width, bias=False)
        self.q_norm: nn.RMSNorm | None = None
        self.k_norm: nn.RMSNorm | None = None
        if size.normed:
            self.q_norm = nn.RMSNorm(self.head)
            self.k_norm = nn.RMSNorm(self.head)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = products(x, self.wq, self.wk, self.wv)
        # (batch, place, head, number)
        q = q.unflatten(-1, (-1, self.head))
        k = k.unflatten(-1, (-1, self.head))
        v = v.unflatten(-1, (-1, self.head))
        if self.q_norm is not None and self.k_norm is not None:
            q = self.q_norm(q)
            k = self.k_norm(k)
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


class Block(nn.Module):
    """A layer; shape (batch, place, width) in and out.

    Args:
        size: of the model.
        number: of the layer, as the first layers of a mixture may have no experts.
    """

    attention: Attention | LatentAttention
    feed_forward: FeedForward | Mixture

    def __init__(self, size: Size, number: int = 0):
        super().__init__()
        self.attention_norm = nn.RMSNorm(size.width)
        if size.latent is None:
            self.attention = Attention(size)
        else:
            self.attention = LatentAttention(size, size.latent)
        self.ffn_norm = nn.RMSNorm(size.width)
        if size.experts is None or number < size.experts.dense:
            self.feed_forward = FeedForward(size.width, size.hidden)
        else:
            self.feed_forward = Mixture(size, size.experts)

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
            self.blocks[str(number)] = Block(size, number)
        if stage == stages - 1:
            self.norm = nn.RMSNorm(size.width)
            self.output = nn.Linear(size.width, size.vocabulary, bias=False)

    def attentions(self) -> list[Attention | LatentAttention]:
        """The attention of each block."""
        kinds = (Attention, LatentAttention)
        return [module for module in self.modules() if isinstance(module, kinds)]

    def mixtures(self) -> list[Mixture]:
        """The mixture of experts of each block that has one."""
        return [module for module in self.modules() if isinstance(module, Mixture)]

    def forward(self, x: Tensor) -> Tensor:
        if self.embedding is not None:
            x = self.embedding(x)
        for block in self.blocks.values():
            x = block(x)
        if self.norm is None or self.output is None:
            return x
        return self.output(self.norm(x))
