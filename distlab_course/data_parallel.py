"""Data parallelism: every rank has the whole model and a part of the batch, and averages gradients
with the others.

Called on every rank; plain PyTorch, so the same code runs under `torchrun`. Lab 06 builds an
all-reduce for each parameter after backward, then for a few large buckets, and lab 20 one that runs
beside backward: here it is finished, for any model with dense gradients. `averaging_hook` gives
DistributedDataParallel an all-reduce of yours.

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

BUCKET_BYTES = 25 << 20  # both as DistributedDataParallel has them
FIRST_BUCKET_BYTES = 1 << 20


def average_gradients(model: nn.Module, group: Any = None) -> None:
    """Replace the gradient of every parameter by its mean over the ranks, an all-reduce for each.

    Runs on: every rank of the group (a rank that skips it hangs the rest).
    """
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad, group=group)
        parameter.grad /= dist.get_world_size(group)


def average_buckets(buckets: Iterable[Iterable[nn.Parameter]], group: Any = None) -> None:
    """Replace the gradient of every parameter by its mean over the ranks, an all-reduce for each
    bucket.

    Runs on: every rank of the group (a rank that skips it hangs the rest).

    Args:
        buckets: as `make_buckets` returns them.
    """
    for bucket in map(list, buckets):
        flat = torch.cat([parameter.grad.flatten() for parameter in bucket])
        dist.all_reduce(flat, group=group)
        flat /= dist.get_world_size(group)
        for parameter, mean in zip(bucket, flat.split([p.numel() for p in bucket]), strict=True):
            parameter.grad.copy_(mean.view_as(parameter))


class OverlappedAverage:
    """Averages gradients between the ranks while backward still runs.

    Backward computes the last layers' gradients first. A hook on each parameter copies its gradient
    into a bucket as soon as it is there, and the all-reduce of a bucket starts when its last
    gradient has come, on gloo's own threads. The gradients are views of the buckets from then on,
    so nothing is copied back.

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
        self._group, self._world_size = group, dist.get_world_size(group)
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.buckets = [Bucket(parameters) for parameters in make_buckets(trained, bucket_bytes)]
        for bucket in self.buckets:
            for place, parameter in enumerate(bucket.parameters):
                parameter.register_post_accumulate_grad_hook(
                    functools.partial(self._arrived, bucket, place)
                )

    def wait(self) -> None:
        """Wait until every gradient is the average of all ranks.

        Gradients that backward has not brought, such as those of a layer that this rank did not
        use, go as zeros.
        """
        for bucket in self.buckets:
            for place in sorted(bucket.missing):
                bucket.take(place, self._world_size)
        self._launch()
        for bucket in self.buckets:
            bucket.work.wait()
            bucket.work, bucket.missing = None, set(range(len(bucket.parameters)))

    def _arrived(self, bucket: Bucket, place: int, parameter: nn.Parameter) -> None:
        """What the hook of a parameter does when backward has written its gradient."""
        if place not in bucket.missing:
            raise RuntimeError(
                "A second backward began before wait(). Call wait() after every backward."
            )
        bucket.take(place, self._world_size)
        self._launch()

    def _launch(self) -> None:
        """Start the all-reduce of each bucket that is full; all ranks do so in one order, so that
        like meets like.
        """
        for bucket in self.buckets:
            if bucket.missing:
                return
            if bucket.work is None:
                bucket.work = dist.all_reduce(bucket.flat, group=self._group, async_op=True)


class Bucket:
    """Some parameters of one dtype and device, one flat tensor for all their gradients, and a view
    of it for each.

    `missing` are the places of the gradients that have not come yet; `work` is the all-reduce that
    was started.
    """

    def __init__(self, parameters: list[nn.Parameter]):
        sizes = [parameter.numel() for parameter in parameters]
        self.parameters = parameters
        self.flat = torch.zeros(sum(sizes), dtype=parameters[0].dtype, device=parameters[0].device)
        self.views = [
            view.view_as(p) for view, p in zip(self.flat.split(sizes), parameters, strict=True)
        ]
        self.missing = set(range(len(parameters)))
        self.work: Any = None

    def take(self, place: int, world_size: int) -> None:
        """Put this rank's share of the average, its gradient over `world_size`, into the bucket."""
        parameter, view = self.parameters[place], self.views[place]
        if parameter.grad is None:
            view.zero_()
        elif parameter.grad.layout is torch.strided:
            torch.div(parameter.grad, world_size, out=view)
        else:
            rule, advice = (
                "a module with dense gradients only",
                "Make its Embedding with sparse=False.",
            )
            refuse("model", rule, parameter.grad.layout, advice)
        parameter.grad = view
        self.missing.remove(place)


def averaging_hook(
    all_reduce: Callable[..., Any],
) -> Callable[..., torch.futures.Future[torch.Tensor]]:
    """A hook that averages each bucket with an all-reduce of your own, while backward continues.

        ddp.register_comm_hook(None, data_parallel.averaging_hook(algorithms.ALL_REDUCE["ring"]))

    The buckets are averaged one after the other, in the order in which they come, by a thread of
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
        flat, done = bucket.buffer(), torch.futures.Future()
        average = thread.submit(
            lambda: all_reduce(flat.div_(dist.get_world_size(group)), group=group)
        )
        average.add_done_callback(lambda _: done.set_result(flat))

        def value(_):
            # DDP sees an error of a callback, and takes one that is set for a value
            average.result()
            return flat

        return done.then(value)

    return hook


def make_buckets(
    parameters: Iterable[nn.Parameter], bucket_bytes: int = BUCKET_BYTES
) -> list[list[nn.Parameter]]:
    """Sort parameters into buckets of one dtype and device, last ones first, as backward brings
    their gradients.

    A bucket is closed by the parameter that fills it, so it may be larger than asked for, as
    DistributedDataParallel's may. The first bucket of each dtype is closed by FIRST_BUCKET_BYTES,
    so that it leaves early.

    Runs on: anywhere.

    Args:
        bucket_bytes: size that closes a bucket.
    """
    closed: list[list[nn.Parameter]] = []
    open_ones: dict[Any, list[nn.Parameter]] = {}
    left: dict[Any, int] = {}  # bytes until the open bucket of a dtype and device is full
    for parameter in reversed(list(parameters)):
        kind = (parameter.dtype, parameter.device)
        open_ones.setdefault(kind, []).append(parameter)
        left[kind] = left.get(kind, min(FIRST_BUCKET_BYTES, bucket_bytes)) - parameter.nbytes
        if left[kind] <= 0:
            closed.append(open_ones.pop(kind))
            left[kind] = bucket_bytes
    return closed + list(open_ones.values())
