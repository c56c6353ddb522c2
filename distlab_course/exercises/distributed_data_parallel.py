"""The exercises of lab 07: what DistributedDataParallel does, and what it requires of the ranks."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler

from distlab.checking import as_they_are, exercise, gathered
from distlab_course.exercises import ddp_trials


def _train(model, samples, batch, epochs, max_norm=float("inf"), path=None):
    """Train with DDP, shuffled in each epoch; the averaged gradient is clipped to `max_norm`.

    With a path, rank 0 saves the weights after each epoch.
    """
    sampler = DistributedSampler(samples)
    ddp = nn.parallel.DistributedDataParallel(model)
    loader = DataLoader(samples, batch, sampler=sampler)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=ddp_trials.RATE)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for images, labels in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(ddp(images), labels)
            loss.backward()
            nn.utils.clip_grad_norm_(ddp.parameters(), max_norm)
            optimizer.step()
        if path and dist.get_rank() == 0:
            torch.save(model.state_dict(), path)


@exercise(
    "07",
    worlds=(2, 3, 4),
    cases=((14,), (24,)),
    given=as_they_are,
    trial=ddp_trials.try_training,
    seconds=ddp_trials.SECONDS_WITH_DDP,
)
def three_lines(model, samples, batch, epochs):
    """Train `model` on all ranks together, as `train_alone` does in one process.

    Each rank takes `batch` samples a step.

    Title: 1.1 Three lines
    Hint: What must you give the loader so that each rank reads a different part of the samples?
    Hint: `DataLoader(samples, batch, sampler=sampler)`: a loader with a sampler takes no `shuffle`.
    Hint: Wrap the model in DDP before you make the optimizer, and begin each epoch with
    `sampler.set_epoch(epoch)`.
    """
    _train(model, samples, batch, epochs)


@exercise(
    "07",
    cases=((24,), (14,), (3,)),
    given=as_they_are,
    trial=ddp_trials.try_share,
    seconds=ddp_trials.SECONDS_WITH_DDP,
)
def share_right(model, samples):
    """Return, on every rank, the share of all samples that the model classifies correctly; every
    sample counts once.

    `samples[i]` is an image and its label, and no rank may read more than its part: `len(samples) /
    world_size` of them, rounded up. `model(image).argmax()` is the class that the model predicts
    for an image.

    Title: 1.2 Each sample once
    Hint: `range(rank, len(samples), world_size)` gives the indices of one part; no sample is in two
    parts.
    Hint: The parts differ in size, so the mean of their shares is not the share of all samples.
    What can be added up?
    Hint: Sum two numbers over all ranks: how many were right, and how many were looked at.
    """
    right = 0
    for i in range(dist.get_rank(), len(samples), dist.get_world_size()):
        image, label = samples[i]
        right += int(model(image).argmax() == label)
    return sum(gathered(right)) / len(samples)


@exercise(
    "07",
    cases=((1,), (30,)),
    given=as_they_are,
    trial=ddp_trials.try_hook_with_own_sum,
    seconds=ddp_trials.SECONDS_WITH_DDP,
)
def own_hook(state, bucket):
    """A communication hook that averages a bucket with your all-reduce, `state`; it returns a
    Future of the average.

    `state(tensor)` replaces a flat tensor, on every rank, by its sum over all ranks.

    Title: 2.1 Your all-reduce as the hook
    Hint: `bucket.buffer()` is the flat tensor with all gradients of the bucket.
    Hint: `state` leaves the sum in that tensor. What turns it into the average?
    Hint: `future = torch.futures.Future()`, then `future.set_result(average)`, and return the
    future.
    """
    state(bucket.buffer())
    future = torch.futures.Future()
    future.set_result(bucket.buffer() / dist.get_world_size())
    return future


@exercise(
    "07",
    worlds=(2, 3, 4),
    cases=((14,), (24,)),
    given=as_they_are,
    trial=ddp_trials.try_script,
    seconds=ddp_trials.SECONDS_WITH_DDP,
)
def three_faults(model, samples, batch, epochs, path):
    """Fix the three faults, so that the script trains one model on all ranks and saves it.

    It is meant to start from random weights, the same on every rank; average the gradients in every
    step; write the file once per epoch.

    Title: 4.1 Three faults
    Hint: Let each rank print its weights, its gradients and the files that it writes. Which of them
    must be the same on all ranks?
    Hint: Does the forward pass go through DDP?
    Hint: DDP sends the weights of rank 0 once, in its constructor. What happens to them afterwards?
    """
    _train(model, samples, batch, epochs, path=path)


@exercise(
    "07",
    worlds=(2, 3, 4),
    cases=((14,), (24,)),
    given=as_they_are,
    trial=ddp_trials.try_clipping_script,
    seconds=ddp_trials.SECONDS_WITH_DDP,
)
def two_faults(model, samples, batch, epochs, path):
    """Fix the two faults, so that the script shuffles in every epoch and clips the average.

    It is meant to read the samples in a new order in every epoch, and to clip the gradient of the
    global batch to a norm of at most 1.

    Title: 6.1 Two more faults
    Hint: What is clipped: the average, or one rank's part of it?
    Hint: The averages are there when `backward` returns.
    Hint: From what does the sampler know which epoch it is?
    """
    _train(model, samples, batch, epochs, max_norm=1.0, path=path)
