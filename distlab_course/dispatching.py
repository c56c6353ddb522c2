"""How tokens reach their experts on other ranks, and how results come back.

Called by experts.py, whose layers have a `Dispatch` each; it runs on the ranks, or in predict's
process. What is sent is most of what a mixture of experts costs between ranks, and there are three
ways:

- `to_experts`: a token goes to each of its experts, also where several are on one rank.
- `to_ranks` with one group: it goes once to each rank that has any of its experts.
- `to_ranks` with two: it goes once to each host that has any, to the rank with the same place
  there, which sends it to the other ranks of its host.

The other two add results up on the way back, so that as few rows return. DeepEP
(github.com/deepseek-ai/DeepEP) and Megatron's HybridEP do so in kernels of their own, with the
bytes that these programs in torch send.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Protocol

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed._functional_collectives import all_to_all_single

from distlab_course.permuted import Copies, added_up, copied, places_of, spread, summed

# In place of the share of an expert that is not chosen. A share is never negative, though it is no
# number where training fails.
ELSEWHERE = -1.0


class Arrived(NamedTuple):
    """What a rank's experts compute.

    Attributes:
        rows: for each expert in turn, those of its tokens; shape (row, width).
        shares: by which the result of each row is multiplied; shape (row).
        counts: how many rows each of this rank's experts has.
        sizes: the same as numbers, where the program has asked the device for them on the way.
    """

    rows: Tensor
    shares: Tensor
    counts: Tensor
    sizes: list[int] | None = None


class Trip(Protocol):
    """The way of a rank's tokens to their experts, and back; every rank of the group takes part.

    Attributes:
        rows, shares: what leaves this rank.
    """

    rows: Tensor
    shares: Tensor

    def there(self, rows: Tensor, shares: Tensor) -> Arrived:
        """Send what leaves, and return what has arrived."""

    def back(self, results: Tensor) -> Tensor:
        """Send results, one for each row that has arrived, and return those that come back.

        Nobody has waited for them yet.
        """

    def home(self, results: Tensor) -> Tensor:
        """The sum of each token's results that have come back; shape (token, width)."""


# Of tokens (token, width), their shares and chosen experts (token, chosen), and how many tokens
# each of all experts has.
Dispatch = Callable[[Tensor, Tensor, Tensor, Tensor], Trip]


# --- a token to each of its experts ---


def to_experts(group: dist.ProcessGroup | None = None) -> Dispatch:
    """Send each token to each of its experts.

    Args:
        group: of the ranks that share the experts; None if this process has all.
    """
    return partial(ToExperts, group)


class ToExperts:
    """A trip on which a token has as many rows as experts, in the order of the experts."""

    def __init__(
        self,
        group: dist.ProcessGroup | None,
        tokens: Tensor,
        shares: Tensor,
        chosen: Tensor,
        counts: Tensor,
    ):
        self.group = group
        self.tokens = len(tokens)
        self.counts = counts
        self.order = chosen.flatten().argsort(stable=True)
        self.places = places_of(self.order)
        self.rows = spread(tokens, self.order, self.places)
        self.shares = spread(shares.flatten().type_as(self.rows), self.order, self.places)

    def there(self, rows: Tensor, shares: Tensor) -> Arrived:
        if self.group is None:
            return Arrived(rows, shares, self.counts)
        arrived = self.counts.new_empty(len(self.counts))
        dist.all_to_all_single(arrived, self.counts, group=self.group)
        by_rank = torch.stack([self.counts, arrived]).unflatten(1, (self.group.size(), -1))
        sent, received = by_rank.tolist()
        self.went = [sum(of_rank) for of_rank in sent]
        self.came = [sum(of_rank) for of_rank in received]
        here = all_to_all_single(rows, self.came, self.went, self.group)
        shares_here = all_to_all_single(shares, self.came, self.went, self.group)
        # They are in the order of their ranks, and of each rank's in the order of experts.
        own = by_rank[1]
        experts = torch.arange(own.numel()) % own.shape[1]
        expert_of_row = experts.repeat_interleave(own.flatten(), output_size=len(here))
        self.order_here = expert_of_row.argsort(stable=True)
        self.places_here = places_of(self.order_here)
        return Arrived(
            spread(here, self.order_here, self.places_here),
            spread(shares_here, self.order_here, self.places_here),
            own.sum(0),
            [sum(of_expert) for of_expert in zip(*received, strict=True)],
        )

    def back(self, results: Tensor) -> Tensor:
        if self.group is None:
            return results
        as_they_came = spread(results, self.places_here, self.order_here)
        return all_to_all_single(as_they_came, self.went, self.came, self.group)

    def home(self, results: Tensor) -> Tensor:
        return added_up(results, self.order, self.places, self.tokens)


# --- a token once to each rank, or to each host ---


@dataclass(frozen=True)
class Leg:
    """A part of the way.

    Attributes:
        group: among which rows are exchanged.
        went, came: the rows to each of its ranks, and from each.
    """

    group: dist.ProcessGroup
    went: list[int]
    came: list[int]


def to_ranks(groups: Sequence[dist.ProcessGroup]) -> Dispatch:
    """Send each token once to each rank of a group that leads to any of its experts.

    Args:
        groups: one of all ranks that share the experts; or two, of those with this rank's place in
            each host, and of those in its host. Experts are in the order of hosts and of ranks.
    """
    return partial(ToRanks, groups)


class ToRanks:
    """A trip on which a token has one row for each rank of a leg's group, in their order."""

    def __init__(
        self,
        groups: Sequence[dist.ProcessGroup],
        tokens: Tensor,
        shares: Tensor,
        chosen: Tensor,
        counts: Tensor,
    ):
        sizes = [group.size() for group in groups]
        self.legs, self.counts, self.sizes = exchanged(table_of(chosen, counts, sizes), groups)
        # of each expert, as a rank on the way has to know them
        every = tokens.new_full((len(tokens), len(counts)), ELSEWHERE)
        every = every.scatter(1, chosen, shares.type_as(tokens))
        first = self.legs[0]
        copies, self.shares = for_each(every, first.group.size(), sum(first.went))
        self.rows = copied(tokens, copies)
        self.copies = [copies]

    def there(self, rows: Tensor, shares: Tensor) -> Arrived:
        for number, leg in enumerate(self.legs):
            if number > 0:
                rows, shares = self._copied(rows, shares, leg.group.size(), sum(leg.went))
            rows = all_to_all_single(rows, leg.came, leg.went, leg.group)
            shares = all_to_all_single(shares, leg.came, leg.went, leg.group)
        rows, shares = self._copied(rows, shares, len(self.counts), sum(self.sizes))
        return Arrived(rows, shares.flatten(), self.counts, self.sizes)

    def _copied(
        self, rows: Tensor, shares: Tensor, receivers: int, number: int
    ) -> tuple[Tensor, Tensor]:
        """So many copies of rows, for those of the next receivers that want them."""
        copies, shares = for_each(shares, receivers, number)
        self.copies.append(copies)
        return copied(rows, copies), shares

    def back(self, results: Tensor) -> Tensor:
        for leg in reversed(self.legs):
            results = summed(results, self.copies.pop())
            results = all_to_all_single(results, leg.went, leg.came, leg.group)
        return results

    def home(self, results: Tensor) -> Tensor:
        return summed(results, self.copies.pop())


def for_each(shares: Tensor, receivers: int, number: int) -> tuple[Copies, Tensor]:
    """Copies of rows for each receiver, rank or expert, that leads to any of their experts.

    Args:
        shares: of each row, for the experts to which all receivers lead; shape (row, expert).
        receivers: among which these experts are divided.
        number: how many copies there are, which the device need not be asked again.

    Returns:
        the copies, in the order of the receivers; and of each copy the shares for the experts of
        its receiver, of shape (copy, expert of a receiver).
    """
    by_receiver = shares.unflatten(1, (receivers, -1))
    is_wanted = (by_receiver != ELSEWHERE).any(2)
    receiver, row = is_wanted.T.nonzero_static(size=number).unbind(1)
    counts = is_wanted.sum(1)
    copies = Copies(row, row.argsort(stable=True), counts.cumsum(0) - counts)
    return copies, by_receiver.flatten(0, 1).index_select(0, row * receivers + receiver)


def table_of(chosen: Tensor, counts: Tensor, sizes: Sequence[int]) -> Tensor:
    """How many rows this rank's tokens will have on each leg.

    Args:
        chosen: the experts of each token.
        counts: the tokens of each expert.
        sizes: of the groups of the legs.

    Returns:
        a line for each rank of the first group: the rows that it gets, then the lines of what it
        sends on to each rank of the second group. The last one has the rows of each expert.
    """
    is_chosen = torch.zeros(len(chosen), len(counts), dtype=torch.bool).scatter(1, chosen, True)
    table = counts
    for number in range(len(sizes), 0, -1):
        receivers = math.prod(sizes[:number])
        rows = is_chosen.unflatten(1, (receivers, -1)).any(2).sum(0)
        table = torch.cat([rows[:, None], table.view(receivers, -1)], 1)
    return table


def exchanged(
    table: Tensor, groups: Sequence[dist.ProcessGroup]
) -> tuple[list[Leg], Tensor, list[int]]:
    """Tell other ranks how many rows they get. The program waits for this, once.

    Args:
        table: of `table_of`.
        groups: one for each leg.

    Returns:
        the legs; and how many rows each of this rank's experts gets, on the device and here.
    """
    numbers = []
    for group in groups:
        table = table.view(group.size(), -1)
        arrived = torch.empty_like(table)
        dist.all_to_all_single(arrived, table, group=group)
        numbers += [table[:, 0], arrived[:, 0]]
        table = arrived[:, 1:].sum(0)  # what this rank sends on is from all of them
    *splits, sizes = _lists([*numbers, table])
    legs = [Leg(group, splits[2 * at], splits[2 * at + 1]) for at, group in enumerate(groups)]
    return legs, table, sizes


def _lists(tensors: list[Tensor]) -> list[list[int]]:
    """The numbers of each of these tensors, of which the device is asked once."""
    numbers = torch.cat(tensors).tolist()
    found = []
    for tensor in tensors:
        found.append(numbers[: len(tensor)])
        numbers = numbers[len(tensor) :]
    return found
