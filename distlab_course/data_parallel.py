"""Data parallelism: every rank has the whole model and a part of the batch, and averages gradients.

Called on every rank; plain PyTorch, so the same code runs under `torchrun`. Lab 06 builds an
all-reduce for each parameter after backward, and then one for each of a few large buckets; lab 20
builds one that is overlapped with backward. Here it is finished, for any model with dense
gradients. `averaging_hook` gives DistributedDataParallel an all-reduce of yours.

A parameter without a gradient on some rank counts as zero there, and has the average on every rank
afterwards.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from distlab.arguments import refuse

# both as DistributedDataParallel has them
BUCKET_BYTES = 25 << 20
FIRST_BUCKET_BYTES = 1 << 20


def average_gradients(model: nn.Module, group: Any = None) -> None:
    """Replace the gradient of every parameter by its mean over the ranks, an all-reduce for each.

    Runs on: every rank of the group (a rank that skips it hangs the rest).
    """
    world_size = dist.get_world_size(group)
    for parameter in model.parameters():
        gradient = gradient_of(parameter)
        dist.all_reduce(gradient, group=group)
        gradient /= world_size


def average_buckets(buckets: Iterable[Iterable[nn.Parameter]], group: Any = None) -> None:
    """Replace the gradient of every parameter by its mean over the ranks, an all-reduce a bucket.

    Runs on: every rank of the group (a rank that skips it hangs the rest).

    Args:
        buckets: as `make_buckets` returns them.
    """
    world_size = dist.get_world_size(group)
    for bucket in buckets:
        gradients = [gradient_of(parameter) for parameter in bucket]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        dist.all_reduce(flat, group=group)
        flat /= world_size
        sizes = [gradient.numel() for gradient in gradients]
        means = flat.split(sizes)
        for gradient, mean in zip(gradients, means, strict=True):
            gradient.copy_(mean.view_as(gradient))


def gradient_of(parameter: nn.Parameter) -> torch.Tensor:
    """The gradient of a parameter, which backward must have computed.

    Raises:
        TypeError: there is none.
    """
    if parameter.grad is None:
        raise TypeError("A parameter has no gradient. Call backward() first.")
    return parameter.grad


class OverlappedAverage:
    """Averages gradients between the ranks while backward still runs.

    Backward computes the last layers' gradients first. A hook on each parameter copies its gradient
    into a bucket as soon as it is there, and the all-reduce of a bucket starts when its last
    gradient has arrived, on gloo's own threads. The gradients are views of the buckets from then
    on, so nothing is copied back.

        average = OverlappedAverage(model)
        for inputs, labels in loader:
            loss_of(model(inputs), labels).backward()
            average.wait()  # between every backward and its step
            optimizer.step()
            optimizer.zero_grad()

    Runs on: every rank of the group (a rank that skips `wait` hangs the rest).

    Args:
        model: its parameters are those that require a gradient now.
        bucket_bytes: as for `make_buckets`.

    Source: S. Li et al., PyTorch Distributed: Experiences on Accelerating Data Parallel Training,
        VLDB 2020, 3.2.
    """

    def __init__(self, model: nn.Module, bucket_bytes: int = BUCKET_BYTES, group: Any = None):
        self._group = group
        self._world_size = dist.get_world_size(group)
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        sorted_parameters = make_buckets(trained, bucket_bytes)
        self.buckets = [Bucket(parameters) for parameters in sorted_parameters]
        for bucket in self.buckets:
            for place, parameter in enumerate(bucket.parameters):
                arrived = functools.partial(self._arrived, bucket, place)
                parameter.register_post_accumulate_grad_hook(arrived)

    def wait(self) -> None:
        """Wait until every gradient is the average of all ranks.

        Gradients that backward has not computed, such as those of a layer that this rank did not
        use, are sent as zeros.
        """
        for bucket in self.buckets:
            for place in sorted(bucket.missing):
                bucket.take(place, self._world_size)
        self._launch()
        for bucket in self.buckets:
            bucket.work.wait()
            bucket.clear()

    def _arrived(self, bucket: Bucket, place: int, parameter: nn.Parameter) -> None:
        """What the hook of a parameter does when backward has written its gradient."""
        if place not in bucket.missing:
            raise RuntimeError(
                "A second backward began before wait(). Call wait() after every backward."
            )
        bucket.take(place, self._world_size)
        self._launch()

    def _launch(self) -> None:
        """Start the all-reduce of each bucket that is full.

        All ranks do so in the same order, so that each bucket meets the same bucket of the others.
        """
        for bucket in self.buckets:
            if bucket.missing:
                return
            if bucket.work is None:
                bucket.work = dist.all_reduce(bucket.flat, group=self._group, async_op=True)


class Bucket:
    """Some parameters of one dtype and device, and one flat tensor for all their gradients.

    Attributes:
        parameters: in the order of their places.
        flat: their gradients, one after the other.
        views: by place, the part of `flat` in the shape of the parameter.
        missing: places of the gradients that have not arrived yet.
        work: the all-reduce of `flat`, once it has started.
    """

    def __init__(self, parameters: list[nn.Parameter]):
        self.parameters = parameters
        first = parameters[0]
        sizes = [parameter.numel() for parameter in parameters]
        self.flat = torch.zeros(sum(sizes), dtype=first.dtype, device=first.device)
        self.views = []
        for part, parameter in zip(self.flat.split(sizes), parameters, strict=True):
            self.views.append(part.view_as(parameter))
        self.clear()

    def clear(self) -> None:
        """Wait for the gradients of the next backward."""
        self.missing = set(range(len(self.parameters)))
        self.work: Any = None

    def take(self, place: int, world_size: int) -> None:
        """Put this rank's share of the average, its gradient over `world_size`, into the bucket."""
        parameter = self.parameters[place]
        view = self.views[place]
        if parameter.grad is None:
            view.zero_()
        elif parameter.grad.layout is torch.strided:
            torch.div(parameter.grad, world_size, out=view)
        else:
            rule = "a module with dense gradients only"
            advice = "Make its Embedding with sparse=False."
            refuse("model", rule, parameter.grad.layout, advice)
        parameter.grad = view
        self.missing.remove(place)


def averaging_hook(
    all_reduce: Callable[..., Any],
) -> Callable[..., torch.futures.Future[torch.Tensor]]:
    """A hook that averages each bucket with an all-reduce of your own, while backward continues.

        ddp.register_comm_hook(None, data_parallel.averaging_hook(algorithms.ALL_REDUCE["ring"]))

    The buckets are averaged one after the other, in the order in which they arrive, by a thread of
    the hook's own. An error in it is raised by backward.

    Runs on: every rank of the group (a rank that skips it hangs the rest). A hook serves one model.

    Args:
        all_reduce: called as all_reduce(tensor, group=group), with a flat tensor that it changes in
            place to the sum of all ranks'. The group is what was given to register_comm_hook as its
            state, None for the default one.

    Source: the hook's form is
        torch.distributed.algorithms.ddp_comm_hooks.default_hooks.allreduce_hook's.
    """
    thread = ThreadPoolExecutor(1, thread_name_prefix="averaging hook")

    # without annotations: DDP compares them with the classes, and here they would be texts
    def hook(group, bucket):
        flat = bucket.buffer()
        done = torch.futures.Future()

        def average():
            all_reduce(flat.div_(dist.get_world_size(group)), group=group)

        averaged = thread.submit(average)
        averaged.add_done_callback(lambda _: done.set_result(flat))

        def value(_):
            # DDP sees an error that a callback raises, and would take one that is set for a value
            averaged.result()
            return flat

        return done.then(value)

    return hook


def make_buckets(
    parameters: Iterable[nn.Parameter], bucket_bytes: int = BUCKET_BYTES
) -> list[list[nn.Parameter]]:
    """Sort parameters into buckets of one dtype and device, last ones first.

    That is the order in which backward computes their gradients. A bucket is closed by the
    parameter that fills it, so it may be larger than asked for, as DistributedDataParallel's may.
    The first bucket of each dtype is closed by FIRST_BUCKET_BYTES, so that its all-reduce starts
    early.

    Runs on: anywhere.

    Args:
        bucket_bytes: size that closes a bucket.
    """
    closed: list[list[nn.Parameter]] = []
    filling: dict[Any, list[nn.Parameter]] = {}  # by dtype and device
    room: dict[Any, int] = {}  # bytes until the bucket of a dtype and device is full
    for parameter in reversed(list(parameters)):
        kind = (parameter.dtype, parameter.device)
        filling.setdefault(kind, []).append(parameter)
        room.setdefault(kind, min(FIRST_BUCKET_BYTES, bucket_bytes))
        room[kind] -= parameter.nbytes
        if room[kind] <= 0:
            closed.append(filling.pop(kind))
            room[kind] = bucket_bytes
    return closed + list(filling.values())
