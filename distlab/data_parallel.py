"""Data parallelism: every rank has the whole model and a part of the batch, and averages gradients with the others.

Called on every rank; plain PyTorch, so the same code runs under `torchrun`. Notebook 04 builds each of these and
explains it; here are the finished versions, for any model with dense gradients. They agree on the average, and differ
in when the bytes leave: an all-reduce for each parameter after backward, a few large ones after backward, or large ones
while backward still runs.

A parameter without a gradient on some rank counts as zero there, and has the average on every rank afterwards.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from distlab.errors import refuse

MIB = 1 << 20
BUCKET_BYTES = 25 * MIB  # both as DistributedDataParallel has them
FIRST_BUCKET_BYTES = 1 * MIB


def broadcast_parameters(model: nn.Module, src: int = 0, group: Any = None) -> None:
    """Give every rank the parameters and buffers of rank `src`, in place.

    Runs on: every rank of the group (a rank that skips it hangs the rest).
    """
    with torch.no_grad():
        for tensor in [*model.parameters(), *model.buffers()]:
            values = tensor.contiguous()
            dist.broadcast(values, src=src, group=group)
            tensor.copy_(values)


def average_gradients(model: nn.Module, group: Any = None) -> None:
    """Average every gradient between the ranks, in place: an all-reduce for each parameter, one after the other.

    Runs on: every rank of the group (a rank that skips it hangs the rest), after backward and before the step.

    Raises:
        ArgumentError: a gradient is sparse.

    Source: PyTorch tutorials, Writing Distributed Applications with PyTorch.
    """
    for parameter in trainable(model):
        gradient = dense_gradient(parameter)
        dist.all_reduce(gradient, group=group)
        parameter.grad = gradient.div_(dist.get_world_size(group))


def average_gradients_in_buckets(
    model: nn.Module, bucket_bytes: int = BUCKET_BYTES, first_bucket_bytes: int = FIRST_BUCKET_BYTES, group: Any = None
) -> None:
    """Average every gradient between the ranks: they are copied into a few flat buckets, an all-reduce for each.

    Runs on: every rank of the group (a rank that skips it hangs the rest), after backward and before the step.

    Args:
        bucket_bytes, first_bucket_bytes: as for `make_buckets`.

    Raises:
        ArgumentError: a gradient is sparse.
    """
    for bucket in make_buckets(trainable(model), bucket_bytes, first_bucket_bytes):
        flat = torch.cat([dense_gradient(parameter).reshape(-1) for parameter in bucket])
        dist.all_reduce(flat, group=group)
        flat.div_(dist.get_world_size(group))
        for parameter, average in zip(bucket, flat.split([p.numel() for p in bucket]), strict=True):
            parameter.grad = average.view_as(parameter)


class OverlappedAverage:
    """Averages gradients between the ranks while backward still runs.

    Backward computes the last layers' gradients first. A hook on each parameter copies its gradient into a bucket as
    soon as it is there, and the all-reduce of a bucket starts when its last gradient has come, on gloo's own threads.
    The gradients are views of the buckets from then on, so nothing is copied back.

        average = OverlappedAverage(model)
        for inputs, labels in loader:
            loss_of(model(inputs), labels).backward()
            average.wait()  # between every backward and its step
            optimizer.step()
            optimizer.zero_grad()

    Runs on: every rank of the group (a rank that skips `wait` hangs the rest).

    Args:
        model: its parameters are those that require a gradient now.
        bucket_bytes, first_bucket_bytes: as for `make_buckets`.

    Source: S. Li et al., PyTorch Distributed: Experiences on Accelerating Data Parallel Training, VLDB 2020, 3.2.
    """

    def __init__(
        self,
        model: nn.Module,
        bucket_bytes: int = BUCKET_BYTES,
        first_bucket_bytes: int = FIRST_BUCKET_BYTES,
        group: Any = None,
    ):
        self._group, self._world_size = group, dist.get_world_size(group)
        parameters = make_buckets(trainable(model), bucket_bytes, first_bucket_bytes)
        self.buckets = [Bucket.of(bucket) for bucket in parameters]
        self._launched = 0  # buckets leave in this order on every rank, so that they meet their like
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(functools.partial(self._arrived, bucket, place))
            for bucket in self.buckets
            for place, parameter in enumerate(bucket.parameters)
        ]

    def __repr__(self) -> str:
        count = sum(len(bucket.parameters) for bucket in self.buckets)
        sizes = ", ".join(f"{bucket.flat.nbytes / MIB:.1f}" for bucket in self.buckets)
        return f"OverlappedAverage of {count} parameters, in buckets of {sizes} MiB"

    def wait(self) -> None:
        """Wait until every gradient is the average of all ranks.

        Gradients that backward has not brought, such as those of a layer that this rank did not use, go as zeros.
        """
        for bucket in self.buckets[self._launched :]:
            for place in sorted(bucket.missing):
                bucket.take(place, self._world_size)
        self._launch()
        for bucket in self.buckets:
            bucket.work.wait()
            bucket.work, bucket.missing = None, set(range(len(bucket.parameters)))
        self._launched = 0

    def remove(self) -> None:
        """Take the hooks off the model; its gradients stay on their rank from then on."""
        for hook in self._hooks:
            hook.remove()

    def _arrived(self, bucket: Bucket, place: int, parameter: nn.Parameter) -> None:
        """What the hook of a parameter does when backward has written its gradient."""
        if place not in bucket.missing:
            why = "Call wait() after every backward; after a failure call remove() and make a new OverlappedAverage."
            raise RuntimeError(f"A second backward began before wait(). {why}")
        bucket.take(place, self._world_size)
        self._launch()

    def _launch(self) -> None:
        """Start the all-reduce of each bucket that is full and whose turn has come."""
        while self._launched < len(self.buckets) and not self.buckets[self._launched].missing:
            bucket = self.buckets[self._launched]
            bucket.work = dist.all_reduce(bucket.flat, group=self._group, async_op=True)
            self._launched += 1


@dataclass
class Bucket:
    """Some parameters, one flat tensor for all their gradients, and a view of it in the shape of each.

    `missing` are the places of the gradients that have not come yet; `work` is the all-reduce that was started.
    """

    parameters: list[nn.Parameter]
    flat: torch.Tensor
    views: list[torch.Tensor]
    missing: set[int] = field(default_factory=set)
    work: Any = None

    @classmethod
    def of(cls, parameters: list[nn.Parameter]) -> Bucket:
        """An empty bucket for these parameters, which have one dtype and device."""
        sizes = [parameter.numel() for parameter in parameters]
        flat = torch.zeros(sum(sizes), dtype=parameters[0].dtype, device=parameters[0].device)
        views = [view.view_as(parameter) for view, parameter in zip(flat.split(sizes), parameters, strict=True)]
        return cls(parameters, flat, views, set(range(len(parameters))))

    def take(self, place: int, world_size: int) -> None:
        """Put this rank's share of the average, its gradient over `world_size`, into the bucket."""
        parameter, view = self.parameters[place], self.views[place]
        if parameter.grad is None:
            view.zero_()
        else:
            torch.div(dense_gradient(parameter), world_size, out=view)
        parameter.grad = view
        self.missing.remove(place)


def trainable(model: nn.Module) -> list[nn.Parameter]:
    """The parameters that require a gradient, each once."""
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def dense_gradient(parameter: nn.Parameter) -> torch.Tensor:
    """A parameter's gradient, contiguous; zeros where it has none."""
    gradient = parameter.grad
    if gradient is None:
        return torch.zeros_like(parameter, memory_format=torch.contiguous_format)
    if gradient.layout is not torch.strided:
        refuse("model", "a module with dense gradients only", gradient.layout, "Make its Embedding with sparse=False.")
    return gradient.contiguous()


def make_buckets(
    parameters: Iterable[nn.Parameter], bucket_bytes: int = BUCKET_BYTES, first_bucket_bytes: int = FIRST_BUCKET_BYTES
) -> list[list[nn.Parameter]]:
    """Sort parameters into buckets of one dtype and device, last ones first, as backward brings their gradients.

    A bucket is closed by the parameter that fills it, so it may be larger than asked for, as DistributedDataParallel's
    may. The first bucket is small, so that it leaves early.

    Runs on: anywhere.

    Args:
        bucket_bytes: size that closes a bucket. first_bucket_bytes: size that closes the first of each dtype.

    Raises:
        ArgumentError: a size is not above 0.
    """
    for name, size in (("bucket_bytes", bucket_bytes), ("first_bucket_bytes", first_bucket_bytes)):
        if not size > 0:
            refuse(name, "a number of bytes above 0", size, f"Give for example {name}=25 * 2**20.")
    closed: list[list[nn.Parameter]] = []
    open_ones: dict[Any, list[nn.Parameter]] = {}
    room: dict[Any, int] = {}  # bytes until the open bucket of a dtype and device is full
    for parameter in reversed(list(parameters)):
        kind = (parameter.dtype, parameter.device)
        open_ones.setdefault(kind, []).append(parameter)
        room[kind] = room.get(kind, min(first_bucket_bytes, bucket_bytes)) - parameter.nbytes
        if room[kind] <= 0:
            closed.append(open_ones.pop(kind))
            room[kind] = bucket_bytes
    return closed + list(open_ones.values())
