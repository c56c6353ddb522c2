"""Rows of tokens in another order, and back, without writing to the same place twice.

Called by experts.py; it runs on the ranks, or in predict's process. Autograd would write the
gradient of `rows[order]` with a kernel that adds up what meets in a place, into zeros. Each of the
two functions here is the other one's gradient instead, and only reads rows: that is what fused
kernels for mixtures of experts do (moe_permute_fusion in github.com/NVIDIA/Megatron-LM).

    places = places_of(order)
    rows = spread(tokens, order, places)      # a token as often as it has experts
    tokens = added_up(rows, order, places)    # the sum of its rows

Where tokens have different numbers of rows, `Copies` says whose each row is:

    rows = copied(tokens, copies)
    tokens = summed(rows, copies)
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def places_of(order: Tensor) -> Tensor:
    """Where each number from 0 on is in a list of all of them.

    Runs on: anywhere.

    Args:
        order: int64, each number below its length once.
    """
    return torch.empty_like(order).scatter_(0, order, torch.arange(len(order)))


def spread(tokens: Tensor, order: Tensor, places: Tensor) -> Tensor:
    """Rows in a new order, of which each token has as many.

    Runs on: anywhere.

    Args:
        tokens: shape (token, ...).
        order: of the rows, which are numbered by tokens: with two rows for each token, 5 is the
            second row of token 2. Shape (row).
        places: those of its numbers.

    Returns:
        shape (row, ...).
    """
    rows: Tensor = _Spread.apply(tokens, order, places)
    return rows


def added_up(rows: Tensor, order: Tensor, places: Tensor, tokens: int) -> Tensor:
    """The sum of each token's rows, which are in the order that `spread` has given them.

    Runs on: anywhere.

    Args:
        rows: shape (row, ...).
        order, places: as of `spread`.
        tokens: how many there are.

    Returns:
        shape (token, ...).
    """
    sums: Tensor = _AddedUp.apply(rows, order, places, tokens)
    return sums


class _Spread(torch.autograd.Function):
    """Reads a token for each of its rows; the gradient is a sum of rows."""

    @staticmethod
    def forward(ctx: Any, tokens: Tensor, order: Tensor, places: Tensor) -> Tensor:
        ctx.save_for_backward(order, places)
        ctx.tokens = len(tokens)
        return _rows(tokens, order)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        _, places = ctx.saved_tensors
        return _sums(gradients[0], places, ctx.tokens), None, None


class _AddedUp(torch.autograd.Function):
    """Reads the rows of a token; the gradient is that of the token, for each of them."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, order: Tensor, places: Tensor, tokens: int) -> Tensor:
        ctx.save_for_backward(order, places)
        return _sums(rows, places, tokens)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        order, _ = ctx.saved_tensors
        return _rows(gradients[0], order), None, None, None


# --- tokens with different numbers of rows ---


@dataclass(frozen=True)
class Copies:
    """Rows that are copies of tokens.

    Attributes:
        tokens: the token of each row, int64 of shape (row).
        order: the rows of the first token, then those of the second one; likewise.
        starts: where those of each token begin in `order`, int64 of shape (token).
    """

    tokens: Tensor
    order: Tensor
    starts: Tensor


def copied(tokens: Tensor, copies: Copies) -> Tensor:
    """Each row as its token.

    Runs on: anywhere.

    Args:
        tokens: shape (token, number).

    Returns:
        shape (row, number).
    """
    rows: Tensor = _Copied.apply(tokens, copies.tokens, copies.order, copies.starts)
    return rows


def summed(rows: Tensor, copies: Copies) -> Tensor:
    """The sum of each token's rows, 0 for one without.

    Runs on: anywhere.

    Args:
        rows: shape (row, number).

    Returns:
        shape (token, number).
    """
    sums: Tensor = _Summed.apply(rows, copies.tokens, copies.order, copies.starts)
    return sums


class _Copied(torch.autograd.Function):
    """Reads a token for each of its rows; the gradient is a sum of rows."""

    @staticmethod
    def forward(ctx: Any, tokens: Tensor, of_rows: Tensor, order: Tensor, starts: Tensor) -> Tensor:
        ctx.save_for_backward(order, starts)
        return tokens[of_rows]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        order, starts = ctx.saved_tensors
        return _bags(gradients[0], order, starts), None, None, None


class _Summed(torch.autograd.Function):
    """Reads the rows of a token; the gradient is that of the token, for each of them."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, of_rows: Tensor, order: Tensor, starts: Tensor) -> Tensor:
        ctx.save_for_backward(of_rows)
        return _bags(rows, order, starts)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        (of_rows,) = ctx.saved_tensors
        return gradients[0][of_rows], None, None, None


def _bags(rows: Tensor, order: Tensor, starts: Tensor) -> Tensor:
    """Sums of rows, as of the words of a text that lies in a bag: one kernel reads and adds."""
    return F.embedding_bag(order, rows, starts, mode="sum")


# --- without gradients ---


def _rows(tokens: Tensor, order: Tensor) -> Tensor:
    if len(order) == len(tokens):  # also of a rank whose experts nobody chose
        return tokens[order]
    return tokens[order // (len(order) // len(tokens))]


def _sums(rows: Tensor, places: Tensor, tokens: int) -> Tensor:
    found = rows[places]
    if len(rows) == tokens:
        return found
    return found.unflatten(0, (tokens, -1)).sum(1)
