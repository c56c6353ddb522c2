"""A mixture of experts: a router, its experts on the ranks of a group, and what all tokens share.

Called by llama.py; it runs on the ranks, or in predict's process. dispatching.py has how tokens
reach experts on other ranks. Lab 53 writes it step by step for one expert on each rank. The router
is that of "DeepSeek-V3 Technical Report" (2024), section 2.1.2.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from distlab_course.dispatching import Arrived, Dispatch, Trip, to_experts
from distlab_course.layers import FeedForward
from distlab_course.sizes import Experts, Size

BALANCE_SPEED = 0.001  # by which a bias moves after a step, as in DeepSeek-V3
# Of rows, weights, and whose the rows are: where each expert's end, as a tensor of the device; or
# how many each has, as numbers, for experts that compute apart.
Multiply = Callable[[Tensor, Tensor, Any], Tensor]


def local(tensor: Tensor) -> Tensor:
    """What this rank has of a DTensor; any other tensor itself."""
    if isinstance(tensor, DTensor):
        return tensor.to_local()
    return tensor


class Router(nn.Module):
    """Chooses experts for each token.

    Attributes:
        gate: gives each expert an output.
        bias: that is added to each expert's score for the choice alone, not to its share.
        counts: the tokens that each expert has got on this rank since the last step. What a
            backward pass computes again is counted again, which changes no order among them.
    """

    def __init__(self, width: int, experts: Experts):
        super().__init__()
        self.experts = experts
        self.gate = nn.Linear(width, experts.number, bias=False)
        self.register_buffer("bias", torch.zeros(experts.number))
        self.register_buffer("counts", torch.zeros(experts.number), persistent=False)
        self.bias: Tensor
        self.counts: Tensor

    def begin(self) -> None:
        """Have no bias and no counts yet."""
        self.bias.zero_()
        self.counts.zero_()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Choose.

        Args:
            x: shape (batch, place, width).

        Returns:
            the share of each of a token's experts, of shape (token, chosen); their numbers,
            likewise; and the tokens of each expert, of shape (expert).
        """
        outputs = local(self.gate(x)).flatten(0, 1).float()
        scores = outputs.softmax(1) if self.experts.scores == "softmax" else outputs.sigmoid()
        chosen = self._choice(scores.detach())
        shares = scores.gather(1, chosen)
        if self.experts.normalized:
            shares = shares / shares.sum(1, keepdim=True)
        counts = torch.bincount(chosen.flatten(), minlength=self.experts.number)
        with torch.no_grad():
            self.counts += counts
        return shares * self.experts.scale, chosen, counts

    def _choice(self, scores: Tensor) -> Tensor:
        """The experts with the highest scores, from the best groups if there are groups."""
        if self.experts.balanced:
            scores = scores + self.bias
        if self.experts.groups > 1:
            grouped = scores.unflatten(1, (self.experts.groups, -1))
            of_groups = grouped.topk(2).values.sum(2)
            best = of_groups.topk(self.experts.groups_chosen).indices
            others = torch.ones_like(of_groups, dtype=torch.bool).scatter(1, best, False)
            scores = grouped.masked_fill(others[:, :, None], -torch.inf).flatten(1)
        return scores.topk(self.experts.chosen).indices


def grouped(rows: Tensor, weights: Tensor, ends: Tensor) -> Tensor:
    """Each group's rows times its matrix: one kernel for all of them.

    Args:
        rows: of one group after another, shape (row, k).
        weights: shape (group, n, k), or what this rank has of it.
        ends: the row after the last one of each group, int32.

    Returns:
        shape (row, n).
    """
    return F.grouped_mm(rows, local(weights).transpose(1, 2), offs=ends)


class RoutedExperts(nn.Module):
    """The experts among which a router chooses: three matrices each, as in FeedForward.

    Attributes:
        w13: of each expert the matrix of its gate, and below it that of what the gate lets through.
            Both multiply the same rows, which one product reads once.
        w2: the matrix from there back.
        dispatch: how tokens reach the ranks that share the experts; unless somebody says it, this
            process has all.
        multiply: the product of each expert's rows and its matrix.
        is_apart: whether that is a kernel for each expert, see experts_apart.py.
    """

    is_apart = False

    def __init__(self, width: int, experts: Experts):
        super().__init__()
        self.w13 = nn.Parameter(torch.empty(experts.number, 2 * experts.hidden, width))
        self.w2 = nn.Parameter(torch.empty(experts.number, width, experts.hidden))
        self.dispatch: Dispatch = to_experts()
        self.multiply: Multiply = grouped

    def forward(self, rows: Tensor, shares: Tensor, trip: Trip) -> Tensor:
        """What the experts make of rows.

        Args:
            rows, shares: what leaves this rank, which FSDP wants to see among the arguments.
            trip: to the experts.

        Returns:
            the results that come back.
        """
        return trip.back(self._computed(trip.there(rows, shares)))

    def _computed(self, arrived: Arrived) -> Tensor:
        """The results of the experts that this rank has.

        What is between the halves is multiplied by the shares, as it is narrower than the results.
        """
        whose: Tensor | list[int]
        if not self.is_apart:
            whose = arrived.counts.cumsum(0, dtype=torch.int32)
        elif arrived.sizes is not None:
            whose = arrived.sizes
        else:
            whose = arrived.counts.tolist()
        gate, passed = self.multiply(arrived.rows, self.w13, whose).chunk(2, dim=1)
        return self.multiply(F.silu(gate) * passed * arrived.shares[:, None], self.w2, whose)


class Mixture(nn.Module):
    """In place of a feed-forward layer; shape (batch, place, width) in and out.

    With tensor parallelism, a rank routes the places that it has between the blocks.
    """

    def __init__(self, size: Size, experts: Experts):
        super().__init__()
        self.router = Router(size.width, experts)
        self.experts = RoutedExperts(size.width, experts)
        self.shared: FeedForward | None = None
        if experts.shared:
            self.shared = FeedForward(size.width, experts.shared)

    def forward(self, x: Tensor) -> Tensor:
        shares, chosen, counts = self.router(x)
        trip = self.experts.dispatch(local(x).flatten(0, 1), shares, chosen, counts)
        results = self.experts(trip.rows, trip.shares, trip)
        # while they travel back, the device computes this
        shared = None if self.shared is None else self.shared(x)
        routed = trip.home(results).view_as(local(x))
        return routed if shared is None else routed + shared


def routers(models: Iterable[nn.Module]) -> list[Router]:
    """All routers of these models."""
    found = []
    for model in models:
        found += [module for module in model.modules() if isinstance(module, Router)]
    return found


@torch.no_grad()
def balance(routers: list[Router], groups: list[dist.ProcessGroup]) -> None:
    """After a step, raise the bias of experts with few tokens, and lower that of others.

    Runs on: every rank of the groups.

    Args:
        routers: those of this rank's parts of the model, whose counts begin again.
        groups: each dimension of the mesh along which ranks have the same routers and other tokens.
    """
    balanced = [router for router in routers if router.experts.balanced]
    if not balanced:
        return
    counts = torch.stack([router.counts for router in balanced])
    for group in groups:
        if group.size() > 1:
            dist.all_reduce(counts, group=group)
    missing = counts.mean(1, keepdim=True) - counts
    for router, few in zip(balanced, missing, strict=True):
        router.bias += BALANCE_SPEED * few.sign()
        router.counts.zero_()
