"""A mixture of experts: a router, its experts on the ranks of a group, and what all tokens share.

Called by llama.py; it runs on the ranks, or in predict's process. Lab 53 writes it step by step for
one expert on each rank. The router is that of "DeepSeek-V3 Technical Report" (2024), section 2.1.2.
"""

from collections.abc import Callable, Iterable

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed._functional_collectives import all_to_all_single
from torch.distributed.tensor import DTensor

from distlab_course.layers import FeedForward
from distlab_course.permuted import added_up, places_of, spread
from distlab_course.sizes import Experts, Size

BALANCE_SPEED = 0.001  # by which a bias moves after a step, as in DeepSeek-V3
Multiply = Callable[[Tensor, Tensor, Tensor], Tensor]  # of rows, weights, and where groups end


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
        weights: shape (group, n, k).
        ends: the row after the last one of each group, int32.

    Returns:
        shape (row, n).
    """
    return F.grouped_mm(rows, weights.transpose(1, 2), offs=ends)


class RoutedExperts(nn.Module):
    """The experts among which a router chooses: three matrices each, as in FeedForward.

    Attributes:
        w13: of each expert the matrix of its gate, and below it that of what the gate lets through.
            Both multiply the same rows, which one product reads once.
        w2: the matrix from there back.
        group: of the ranks that share them, each with its own; None if this process has all.
        multiply: the product of each expert's rows and its matrix.
    """

    group: dist.ProcessGroup | None = None

    def __init__(self, width: int, experts: Experts):
        super().__init__()
        self.w13 = nn.Parameter(torch.empty(experts.number, 2 * experts.hidden, width))
        self.w2 = nn.Parameter(torch.empty(experts.number, width, experts.hidden))
        self.multiply: Multiply = grouped

    def forward(self, rows: Tensor, shares: Tensor, counts: Tensor) -> Tensor:
        """What the experts make of rows.

        Args:
            rows: for each expert in turn, those of its tokens; shape (row, width).
            shares: by which the result of each row is multiplied; shape (row).
            counts: how many rows each of all experts has.

        Returns:
            the results, in the order of the rows.
        """
        if self.group is None:
            return self._computed(rows, shares, counts)
        arrived = counts.new_empty(len(counts))
        dist.all_to_all_single(arrived, counts, group=self.group)
        by_rank = torch.stack([counts, arrived]).unflatten(1, (self.group.size(), -1))
        went, came = by_rank.sum(2).tolist()
        here = all_to_all_single(rows, came, went, self.group)
        shares_here = all_to_all_single(shares, came, went, self.group)
        # They are in the order of their ranks, and of each rank's in the order of experts.
        own = by_rank[1]
        experts = torch.arange(own.numel()) % own.shape[1]
        expert_of_row = experts.repeat_interleave(own.flatten(), output_size=len(here))
        order = expert_of_row.argsort(stable=True)
        places = places_of(order)
        results = self._computed(
            spread(here, order, places), spread(shares_here, order, places), own.sum(0)
        )
        return all_to_all_single(spread(results, places, order), went, came, self.group)

    def _computed(self, rows: Tensor, shares: Tensor, counts: Tensor) -> Tensor:
        """The same of the experts that this rank has: grouped products, one for all experts.

        What is between the halves is multiplied by the shares, as it is narrower than the results.
        """
        ends = counts.cumsum(0, dtype=torch.int32)
        w13, w2 = local(self.w13), local(self.w2)
        gate, passed = self.multiply(rows, w13, ends).chunk(2, dim=1)
        return self.multiply(F.silu(gate) * passed * shares[:, None], w2, ends)


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
        tokens = local(x).flatten(0, 1)
        # a token has as many rows as experts; they are in the order of the experts
        order = chosen.flatten().argsort(stable=True)
        places = places_of(order)
        rows = spread(tokens, order, places)
        of_rows = spread(shares.flatten().type_as(rows), order, places)
        results = self.experts(rows, of_rows, counts)
        # while they travel back, the device computes this
        shared = None if self.shared is None else self.shared(x)
        routed = added_up(results, order, places, len(tokens)).view_as(local(x))
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
