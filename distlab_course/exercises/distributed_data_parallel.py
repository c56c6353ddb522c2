"""The exercises of notebook 05: what DistributedDataParallel does, and what it asks of the ranks."""

import contextlib
from functools import partial
from math import inf

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from distlab.checking import Exercise, Limits, Question, as_they_are, formula
from distlab.errors import CheckpointError
from distlab_course import checkpoints
from distlab_course.exercises import ddp_trials
from distlab_course.exercises.ddp_trials import RATE

question = partial(Question, "05")
with_ddp = partial(Exercise, "05", given=as_they_are, seconds=20.0)  # the first DDP on a rank imports for seconds


def _train(model, samples, batch, epochs, max_norm=inf, end_epoch=lambda: None):
    """A training with DDP that shuffles in each epoch; the averaged gradient is clipped to `max_norm`."""
    sampler, ddp = DistributedSampler(samples), DistributedDataParallel(model)
    loader, optimizer = DataLoader(samples, batch, sampler=sampler), torch.optim.SGD(ddp.parameters(), lr=RATE)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for images, labels in loader:
            optimizer.zero_grad()
            cross_entropy(ddp(images), labels).backward()
            nn.utils.clip_grad_norm_(ddp.parameters(), max_norm)
            optimizer.step()
        end_epoch()


@with_ddp(worlds=(2, 3, 4), cases=((14,), (24,)), trial=ddp_trials.trained)
def three_lines(model, samples, batch, epochs):
    """Train `model` on all ranks together, as `train_alone` does in one process.

    Each rank takes `batch` samples a step.

    Hint: Which object must the loader get, so that each rank reads another part of the samples?
    Hint: `DataLoader(samples, batch, sampler=sampler)`: a loader with a sampler takes no `shuffle`.
    Hint: The model goes into DDP before the optimizer is made, and `sampler.set_epoch(epoch)` begins each epoch.
    """
    _train(model, samples, batch, epochs)


@with_ddp(cases=((24,), (14,), (3,)), trial=ddp_trials.shared)
def share_right(model, samples):
    """Return, on every rank, the share of all samples that the model recognises; every sample counts once.

    `samples[i]` is an image and its label, and no rank may read more than its part, `len(samples) / world_size` of
    them, rounded up. `model(image).argmax()` is what the model takes the image for.

    Hint: `range(rank, len(samples), world_size)` are the numbers of a part; no sample is in two of them.
    Hint: The parts differ in size, so the mean of their shares is not the share of all. What can be added up?
    Hint: Sum two numbers over all ranks: how many were right, and how many were looked at.
    """
    rank, world_size = dist.get_rank(), dist.get_world_size()
    part = [samples[i] for i in range(rank, len(samples), world_size)]
    counts = torch.tensor([sum(int(model(image).argmax() == label) for image, label in part), len(part)])
    dist.all_reduce(counts)
    return (counts[0] / counts[1]).item()


@question(3)
def buckets_of_ten(answer):
    """12 layers have 3.1 MiB of gradients each. How many all-reduces does step 1 make with bucket_cap_mb=10?

    Hint: A bucket is closed by the gradient with which it reaches its size.
    Hint: 3 x 3.1 is less than 10, and 4 x 3.1 is more.

    Not 4: A bucket is full when it has reached its cap, not before.
    Not 1: That is step 0.
    Otherwise: How many layers are in a bucket when it has reached 10 MiB?

    Why: Three layers are 9.3 MiB, and the fourth closes the bucket at 12.4 MiB: 12 layers fill 3 buckets.
    """


@with_ddp(cases=((1,), (3,), (6,)), trial=ddp_trials.in_pieces)
def accumulated_backward(ddp, pieces):
    """Leave in `ddp` the gradient of the mean over all pieces of all ranks; only one backward may send.

    `pieces` is a list of `(images, labels)`, all of the same size. The loss of a piece is the `cross_entropy` of
    `torch.nn.functional`, and nothing is in the gradients before.

    Hint: A second backward adds to the gradients that are there: what is each piece's share of the mean?
    Hint: `with ddp.no_sync():` around a forward and its backward keeps the gradients on their rank.
    Hint: All pieces but the last belong into `no_sync`.
    """
    for i, (images, labels) in enumerate(pieces):
        with ddp.no_sync() if i + 1 < len(pieces) else contextlib.nullcontext():
            (cross_entropy(ddp(images), labels) / len(pieces)).backward()


@question(0.5)
def unused_share(answer):
    """With `find_unused_parameters=True` on 10 ranks, only rank 0 uses a layer, and its own gradient there is 5.0 in
    each number. Which number does rank 7 find in its gradient of that layer after backward?

    Hint: As what does a rank count that does not use the layer, and by what is the sum divided?
    Hint: The average is the same on every rank, on those that do not use the layer too.

    Not 5: That is what rank 0 brings. DDP averages over all ranks.
    Not 0: That is what rank 7 brings to the sum.
    Otherwise: What is the sum over the ranks, and what is it divided by?

    Why: Nine ranks count as zeros, and the sum is divided by 10 all the same: 0.5, on every rank.
    """


@with_ddp(cases=(2, 1, 0), given=lambda rank, n, more: (rank + more,), trial=ddp_trials.to_the_end)
def all_batches(ddp, batches):
    """Train with all batches of all ranks, each of which has another number of them; none may wait for ever.

    `batches` is a list of `(images, labels)`; make a step of `torch.optim.SGD` with a rate of 0.1 for each of them. In
    the average, a rank that has none left counts as a gradient of zeros.

    Hint: A rank that has come to its end must go on to answer the all-reduces of the others.
    Hint: `with Join([ddp]):` around the loop does it; `from torch.distributed.algorithms.join import Join`.
    """
    optimizer = torch.optim.SGD(ddp.parameters(), lr=RATE)
    with Join([ddp]):
        for images, labels in batches:
            optimizer.zero_grad()
            cross_entropy(ddp(images), labels).backward()
            optimizer.step()


@with_ddp(cases=(3, 1, 0), given=lambda rank, n, more: (rank + more,), trial=ddp_trials.uneven)
def weighted_backward(ddp, images, labels):
    """Leave in `ddp` the gradient of the mean loss over all images of all ranks, whose numbers of images differ.

    The loss is `cross_entropy`. A rank may have no image at all.

    Hint: DDP adds the gradients of the ranks up and divides by the number of ranks. Which loss makes that right?
    Hint: An all-reduce of one number tells how many images there are on all ranks.
    Hint: `reduction="sum"` adds the losses of the images up, and is 0 where there are none.
    """
    count = torch.tensor(float(len(images)))
    dist.all_reduce(count)
    loss = cross_entropy(ddp(images), labels, reduction="sum")
    (loss * dist.get_world_size() / count).backward()


@with_ddp(cases=((1,), (30,)), trial=ddp_trials.with_hook)
def half_hook(state, bucket):
    """A communication hook that sends a bucket as `torch.bfloat16`, and does not wait: a Future of the average.

    `bucket.buffer()` is a flat tensor of float32. At most 2 bytes a number may be sent, and no number of the average
    may be wrong by more than 2 % of the largest. `ddp.register_comm_hook(None, half_hook)` makes it DDP's.

    Hint: `dist.all_reduce(half, async_op=True)` returns at once; its `get_future()` is a Future of a list of tensors.
    Hint: `future.then(fn)` is a Future of `fn(future)`, where `future.value()` is that list.
    Hint: In `fn`, divide by `world_size` and copy into the buffer, which is float32: `bucket.buffer().copy_(...)`.
    """
    half = bucket.buffer().bfloat16()
    future = dist.all_reduce(half, async_op=True).get_future()
    return future.then(lambda done: bucket.buffer().copy_(done.value()[0]).div_(dist.get_world_size()))


@with_ddp(
    cases=(7, 100, 1000),
    given=ddp_trials.noise,
    trial=ddp_trials.in_bytes,
    limits=lambda n, length, item: Limits(2 * length + 64),
)
def average_in_bytes(flat):
    """Replace `flat`, float32, by its average over the ranks, and send 8 bits a number.

    The ranks agree on the largest absolute value by an all-reduce of one number, each rounds its numbers to whole steps
    of one size as `torch.int8`, and the sum must fit into 8 bits as well. No number may be wrong by more than 2 % of
    that largest value.

    Hint: int8 goes from -128 to 127. How many steps may each of n ranks use, so that no sum leaves that range?
    Hint: `step = highest / (127 // world_size)`, and `(flat / step).round().to(torch.int8)` is what is sent.

    Limit: Is what is sent of type torch.int8, but for one number?
    """
    highest = flat.abs().max()
    dist.all_reduce(highest, op=dist.ReduceOp.MAX)
    step = highest / (127 // dist.get_world_size())
    steps = (flat / step).round().to(torch.int8)
    dist.all_reduce(steps)
    flat.copy_(steps * step / dist.get_world_size())


@formula(
    "05", ("b.pt", "a.pt"), (), ("other.pt", "cut.pt", "good.pt", "old.pt"), ("cut.pt",), trial=ddp_trials.in_a_folder
)
def newest_whole(folder, model):
    """Return the path of the newest checkpoint in `folder` that is whole and fits the model; None without one.

    The newest is the one with the latest change. A file may be damaged, or of another model.

    Hint: `path.stat().st_mtime` is the time of the last change.
    Hint: `checkpoints.load` raises `distlab.CheckpointError` before it changes anything, so you may simply try.
    """
    for path in sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime, reverse=True):
        with contextlib.suppress(CheckpointError):
            checkpoints.load(path, model)
            return path
    return None


@with_ddp(worlds=(2, 3, 4), cases=((14,), (24,)), trial=ddp_trials.repaired)
def five_faults(model, samples, batch, epochs, path):
    """Find the five faults, so that the script trains one model on all ranks, and saves it.

    It is to start from random weights, the same ones on every rank; take `batch` samples a rank and step, shuffled
    anew in every epoch; clip the gradient of the whole batch to a norm of 1; and write the file once an epoch.

    Hint: Let each rank print its weights, samples, gradients and files. What has to be equal, and what has to differ?
    Hint: Does the forward go through DDP? And what is clipped: the average, or one rank's part of it?
    Hint: DDP sends the weights of rank 0 once, in its constructor. What happens to them afterwards?
    """

    def save():
        if dist.get_rank() == 0:
            torch.save(model.state_dict(), path)

    _train(model, samples, batch, epochs, max_norm=1.0, end_epoch=save)
