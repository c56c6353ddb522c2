"""Attention whose keys and values come from a short vector, as in DeepSeek-V2 and V3.

Called by llama.py; it runs on the ranks, or in predict's process. The architecture is that of
"DeepSeek-V2" (2024), section 2.1, without what serving a model does to keep short vectors alone.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Partial

from distlab_course.layers import products, rotated, turns
from distlab_course.sizes import Latent, Size


class LatentAttention(nn.Module):
    """Each token looks at those before it. A rank of tensor parallelism has some of the heads.

    The short vectors are computed on each of these ranks.

    Attributes:
        turned: numbers of a query that turn with its place.
        turns: of the places that this rank has; None if it has all.
        repeats: nothing, as each head has keys and values of its own.
    """

    turns: Tensor | None = None
    repeats = True

    def __init__(self, size: Size, latent: Latent):
        super().__init__()
        self.latent = latent
        self.turned = latent.turned
        queries = size.heads * (latent.plain + latent.turned)
        self.wq: nn.Linear | None = None
        self.wq_short: nn.Linear | None = None
        if latent.queries is None:
            self.wq = nn.Linear(size.width, queries, bias=False)
        else:
            self.wq_short = nn.Linear(size.width, latent.queries, bias=False)
            self.q_norm = nn.RMSNorm(latent.queries)
            self.wq_long = nn.Linear(latent.queries, queries, bias=False)
        self.wkv_short = nn.Linear(size.width, latent.keys + latent.turned, bias=False)
        self.kv_norm = nn.RMSNorm(latent.keys)
        keys_and_values = size.heads * (latent.plain + latent.values)
        self.wkv_long = nn.Linear(latent.keys, keys_and_values, bias=False)
        self.wo = nn.Linear(size.heads * latent.values, size.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        first = self.wq_short if self.wq is None else self.wq
        assert first is not None  # one of the two is there
        return self.wo(self.attended(*products(x, first, self.wkv_short)))

    def attended(self, q: Tensor, short: Tensor) -> Tensor:
        """What each token finds in those before it, of the vectors that are made of it.

        Args:
            q: of what queries are made, or the queries; shape (batch, place, number).
            short: of what keys and values are made, and the part of a key that all heads share.
        """
        plain, turned, values = self.latent.plain, self.latent.turned, self.latent.values
        by = self.turns
        if by is None:
            by = turns(q.shape[1], turned // 2)
        if self.wq_short is not None:
            q = self.wq_long(self.q_norm(q))
        # (batch, place, head, number)
        q = q.unflatten(-1, (-1, plain + turned))
        q_plain, q_turned = q.split([plain, turned], -1)
        q = torch.cat([q_plain, rotated(q_turned, by)], -1)
        short, k_turned = short.split([self.latent.keys, turned], -1)
        kv = self.wkv_long(self.kv_norm(short)).unflatten(-1, (-1, plain + values))
        k_plain, v = kv.split([plain, values], -1)
        k_turned = rotated(_of_some_heads(k_turned)[:, :, None], by)
        k = torch.cat([k_plain, k_turned.expand(-1, -1, k_plain.shape[2], -1)], -1)
        # (batch, head, place, number)
        y = F.scaled_dot_product_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True
        )
        return y.transpose(1, 2).flatten(2)


def _of_some_heads(keys: Tensor) -> Tensor:
    """What all ranks of tensor parallelism have alike, and each of them uses for its own heads.

    So the gradient is the sum of theirs.
    """
    if isinstance(keys, DTensor):
        return keys.to_local(grad_placements=[Partial()])
    return keys
