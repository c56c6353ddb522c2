"""Which experts tokens choose is data, so it is assumed: each expert is chosen equally often.

Called by torch_routing.py, which marks what operators choose and count, and by group.py, for what
other ranks send: what this rank would. It runs in the process of a rank that is recorded.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._mode_utils import no_dispatch

from distlab_predict.drawn import Drawn

# values of a larger tensor, such as the expert of each row, are forgotten: nothing depends on them
MOST_ASSUMED = 1 << 12


@dataclass(frozen=True)
class Choice:
    """A mark of whole numbers below this one, each of which is there equally often.

    Attributes:
        drawn: how those of a row, along the last dimension, were drawn.
    """

    options: int
    drawn: Drawn | None = None


@dataclass(frozen=True)
class Mask:
    """A mark of numbers of which this share are 1 and all others 0, evenly spread.

    Attributes:
        drawn: what the ones of a row are, along the last dimension or the last two; None if the
            ones are just as likely everywhere.
    """

    share: float
    drawn: Drawn | None = None


@dataclass(frozen=True)
class Scores:
    """A mark of scores, the highest of which are in so many of so many groups."""

    groups: int
    groups_chosen: int


@dataclass(frozen=True)
class Counts:
    """A mark of values that are known because loads are assumed.

    Attributes:
        skewed: whether they have arrived from other ranks, and so have the skew already.
    """

    skewed: bool = False


Mark = Choice | Mask | Scores | Counts


class Routing:
    """What is assumed of a program's routing, and whether it had to be.

    Attributes:
        skew: how many times as many tokens as the mean the experts of this rank get. It comes with
            what other ranks send first. So where tokens go once to each host and then to its ranks,
            the other experts of this host get as many; and rows that go once to a rank or a host
            grow as much as those of its experts, which is the most that they can.
        used: whether a program counted the tokens of experts.
        drawn: of which parts of the experts a program counted the tokens that reach them, and how
            these were drawn; a dict, which keeps the order.
    """

    def __init__(self, skew: float = 1.0):
        self.skew = skew
        self.used = False
        self.drawn: dict[Drawn, None] = {}

    def in_words(self) -> tuple[str, ...]:
        """What a prediction says of it: nothing if no program asked."""
        if not self.used:
            return ()
        reached = tuple(drawn.in_words() for drawn in self.drawn)
        if self.skew == 1.0:
            return ("routing: balanced, assumed", *reached)
        return (
            f"routing: the experts of a predicted rank get {self.skew:g} times as many tokens as "
            "the mean, assumed",
            *reached,
        )


def mark_of(tensor: Any) -> Mark | None:
    """The mark of a tensor, if it has one."""
    return getattr(tensor, "mark", None)


# --- other ranks ---


def receive(name: str, args: tuple[Any, ...], rank: int, size: int) -> None:
    """Write what arrives if each rank of a group sends counts like this rank's.

    Args:
        name: of the collective.
        args: of the group's method: what it writes, and what it sends, tensors or lists of them.
        rank: this one, in its group.
        size: of the group.
    """
    if name in ("all_to_all", "all_gather"):
        with no_dispatch():
            _receive(name, args[0], args[1], rank, size)


def _receive(name: str, written: Any, sent: Any, rank: int, size: int) -> None:
    if name == "all_to_all" and isinstance(sent, list):
        for tensor in written:
            _write(tensor, _of_this_rank(sent[rank], 0, 1))
    elif name == "all_to_all":
        own = _of_this_rank(sent, rank, size)
        _write(written, None if own is None else own.repeat(size))
    elif isinstance(written, list):
        for some, counts in zip(written, sent, strict=False):
            rows = some if isinstance(some, list) else [some]
            for tensor in rows:
                _write(tensor, _of_all_ranks(counts, rank, size, tensor.numel()))
    else:
        _write(written, _of_all_ranks(sent, rank, size, written.numel()))


def _of_this_rank(sent: Any, rank: int, size: int) -> Tensor | None:
    """The counts of this rank's experts on any rank, if those of all experts are assumed."""
    mark = mark_of(sent)
    if not isinstance(mark, Counts) or sent.constant is None:
        return None
    skew = 1.0 if mark.skewed else routing_of(sent).skew
    return _times(sent.constant.flatten().tensor_split(size)[rank], skew)


def _of_all_ranks(sent: Any, rank: int, size: int, length: int) -> Tensor | None:
    """The counts of all experts, as often as they fill this length."""
    own = _of_this_rank(sent, rank, size)
    if own is None:
        return None
    rest = (size - routing_of(sent).skew) / max(1, size - 1)
    parts = [_times(part, rest) for part in sent.constant.flatten().tensor_split(size)]
    parts[rank] = own
    return torch.cat(parts).repeat(length // sent.numel())


def _times(values: Tensor, factor: float) -> Tensor:
    return values if factor == 1.0 else (values * factor).round().to(values.dtype)


def _write(tensor: FakeTensor, values: Tensor | None) -> None:
    """Give a tensor these values, if there are any."""
    if values is None or values.numel() != tensor.numel():
        return
    tensor.constant = values.to(tensor.dtype).view(tensor.shape).clone()
    tensor.fake_mode.fake_tensor_converter.add_constant_storage_mapping(tensor)
    put_mark(tensor, Counts(skewed=True))


# --- tensors ---


def routing_of(tensor: FakeTensor) -> Routing:
    """What is assumed where this tensor is."""
    routing = getattr(tensor.fake_mode, "routing", None)
    return routing if isinstance(routing, Routing) else Routing()


def put_mark(tensor: Any, mark: Mark | None) -> None:
    if isinstance(tensor, FakeTensor):
        setattr(tensor, "mark", mark)  # noqa: B010 - torch's class has no such attribute


def tensors_in(value: Any) -> Iterator[FakeTensor]:
    if isinstance(value, FakeTensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from tensors_in(one)


def balanced(total: int, shape: tuple[int, ...]) -> Tensor:
    """Whole numbers that add up to this, as equal as they can be."""
    number = math.prod(shape)
    each, more = divmod(total, max(1, number))
    values = torch.full((number,), each)
    values[:more] += 1
    return values.view(shape)


def counts_of(
    mode: FakeTensorMode, total: int, shape: tuple[int, ...], dtype: torch.dtype
) -> FakeTensor:
    """Balanced counts; without values if they are many."""
    if math.prod(shape) > MOST_ASSUMED:
        return empty(mode, shape, dtype)
    with no_dispatch():
        values = balanced(total, shape).to(dtype)
    return known(mode, values)


def known(mode: FakeTensorMode, values: Tensor) -> FakeTensor:
    """A tensor with these values, which are assumed."""
    made = mode.fake_tensor_converter.from_real_tensor(mode, values, make_constant=True)
    put_mark(made, Counts())
    routing_of(made).used = True
    return made


def empty(mode: FakeTensorMode, shape: tuple[int, ...], dtype: torch.dtype) -> FakeTensor:
    """A tensor without data."""
    with no_dispatch():
        made = torch.empty(shape, dtype=dtype, device="meta")
    return FakeTensor(mode, made, torch.device("cpu"))
