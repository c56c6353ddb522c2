"""How the answers of notebook 05 are tried: what a training, a backward or a file leaves behind, in few words.

Runs on every rank of the small world, called by simulated/trial.py; the exercises are in distributed_data_parallel.py.
"""

import os
import tempfile
from math import ceil
from pathlib import Path
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import Dataset

from distlab.checking import Seen, gathered
from distlab_course import checkpoints

RATE, BATCH = 0.1, 3


class Things(int):
    """A number of things, which shows their name."""

    def __new__(cls, number, name):
        things = super().__new__(cls, number)
        things.name = name
        return things

    def __repr__(self):
        return f"{self.name}: {int(self)}"


def given_number_of(name):
    """The case, as so many things of that name."""
    return lambda rank, n, number: (Things(number, name),)


class Watched(nn.Linear):
    """A layer for images of 2 numbers and 2 classes, which keeps its weights as they were in each forward."""

    def __init__(self, seed):
        torch.manual_seed(seed)
        super().__init__(2, 2)
        self.history = []

    def forward(self, images):
        self.history.append(flat(self.parameters()))
        return super().forward(images)


class Numbered(Dataset):
    """Images of 2 numbers with labels 0 and 1, which remembers which of them were read."""

    def __init__(self, count, seed=0):
        generator = torch.Generator().manual_seed(seed)
        self.images = 5 * torch.randn(count, 2, generator=generator)
        self.labels = torch.randint(2, (count,), generator=generator)
        self.read = []

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, number):
        """An image and its label, or some of them."""
        self.read.append(number)
        return self.images[number], self.labels[number]


def flat(tensors):
    """A copy of all numbers, in one dimension."""
    return nn.utils.parameters_to_vector(tensors).detach().clone()


def gradient(model):
    """The gradients of all parameters, zeros where there are none."""
    return flat(p.grad if p.grad is not None else torch.zeros_like(p) for p in model.parameters())


def same(rows):
    """Whether all rows of a tensor are alike."""
    return torch.allclose(rows, rows[:1], atol=1e-4)


def symptoms(model, samples, writes=None):
    """What is wrong with a training of two epochs, a sentence for each fault; all ranks look together.

    Args:
        writes: how often this rank has written the file; None where nothing is to be clipped or written.
    """
    middle, own = len(samples.read) // 2, None
    if len(model.history) > 1:
        before, after = model.history[:2]
        own = samples.read[:middle], samples.read[middle:], before, after, first_gradient(before, samples), writes
    everyone = gathered(own)
    if None in everyone:
        return ["The model that is given makes fewer than two steps."] * 5
    first, second, before, after, raw, writes = zip(*everyone, strict=True)
    before, after, raw = map(torch.stack, (before, after, raw))
    steps = (before - after) / RATE
    expected = raw.mean(0, keepdim=True) if same(steps) else raw
    clipped = expected / expected.norm(dim=1, keepdim=True).clamp(min=1)
    once = sum(map(len, first)) < len(samples) + len(first)  # as many as there are ranks may be repeated to fill up
    found = {
        "In an epoch the ranks together read more samples than there are.": once,
        "Epoch 1 brings each rank the same samples as epoch 0, in the same order.": first != second,
        "Before step 0 the ranks have different weights.": same(before),
        "In step 0 each rank changes its weights by a different amount.": same(steps),
    }
    if writes[0] is not None:
        follows = torch.allclose(steps, clipped.expand_as(steps), atol=1e-3)
        found["Step 0 is not along the gradient of the whole batch, with a norm of at most 1."] = follows
        found[f"The file is written by {sum(map(bool, writes))} ranks."] = sum(map(bool, writes)) == 1
    return [words for words, right in found.items() if not right]


def first_gradient(weights, samples):
    """The gradient of the first batch that was read, with these weights."""
    model, batch = Watched(0), samples.read[:BATCH]
    nn.utils.vector_to_parameters(weights, model.parameters())
    cross_entropy(model(samples.images[batch]), samples.labels[batch]).backward()
    return gradient(model)


def trained(fn, count):
    """Train with samples as many as `count`, each rank with other weights; what is wrong, or the weights."""
    model, samples = Watched(dist.get_rank()), Numbered(count)
    fn(model, samples, BATCH, 2)
    wrong = [*symptoms(model, samples), ""][0]
    return Seen("not one training" if wrong else "one training", wrong), flat(model.parameters())


def repaired(fn, count):
    """Run the script with the five faults; how many of them are gone, and what is left."""
    model, samples = Watched(0), Numbered(count)
    with mock.patch.object(torch, "save") as save:
        fn(model, samples, BATCH, 2, "model.pt")
    left = symptoms(model, samples, save.call_count)
    return Seen(f"{max(0, 5 - len(left))} of 5", f"What can be seen of one that is left: {left[0]}" if left else "")


def shared(fn, count):
    """Let the ranks look at `count` samples; the share that comes out, or what is wrong with it."""
    model, samples = Watched(0), Numbered(count)
    share, parts = fn(model, samples), gathered(samples.read)
    looks, right = sum(map(len, parts)), (model(samples.images).argmax(1) == samples.labels).float()
    most, mean = ceil(count / len(parts)), sum(right[part].mean().item() for part in parts if part) / len(parts)
    if max(map(len, parts)) > most:
        return Seen(f"looks at {max(map(len, parts))}", f"It looks at more than {most} samples.")
    if looks > count:
        return Seen(f"{share}", f"Together the ranks look at {looks} samples, and there are only {int(count)}.")
    if isinstance(share, float) and abs(share - mean) < 1e-6 < abs(share - right.mean().item()):
        return Seen(f"{share:.6g}", "It is the mean of the ranks' shares, and their parts differ in size.")
    return share


def after_backward(fn, *arguments):
    """What a backward through DDP leaves: how often it has sent gradients, and the gradients."""
    ddp, sent = DistributedDataParallel(Watched(0)), []

    def counted(state, bucket):
        sent.append(bucket)
        return default_hooks.allreduce_hook(None, bucket)

    ddp.register_comm_hook(None, counted)
    fn(ddp, *arguments)
    times = f"sent {len(sent)} times" if len(sent) > 1 else "sent once"
    if not same(torch.stack(gathered(gradient(ddp)))):
        times = "not the same"
    why = (
        "The ranks have different gradients: the last backward has not sent them."
        if times == "not the same"
        else f"The gradients are {times}."
    )
    return Seen(times, why), gradient(ddp)


def in_pieces(fn, count):
    """Go backward in `count` pieces of a batch of 12 images, other ones on each rank."""
    batch = Numbered(12, seed=dist.get_rank())
    return after_backward(fn, list(zip(batch.images.chunk(count), batch.labels.chunk(count), strict=True)))


def uneven(fn, count):
    """Go backward with a batch of `count` images; and say so if the result is the mean of the ranks' means."""
    batch = Numbered(count, seed=dist.get_rank())
    sent, found = after_backward(fn, batch.images, batch.labels)
    _, means = after_backward(lambda ddp, images, labels: cross_entropy(ddp(images), labels).backward(), *batch[:])
    if dist.get_world_size() > 1 and torch.allclose(found, means, atol=1e-6):
        return Seen("mean of means", "It is the mean of the ranks' means, and their numbers of images differ."), None
    return sent, found


def to_the_end(fn, count):
    """Train with `count` batches; how many were used, and the weights."""
    ddp, batch = DistributedDataParallel(Watched(0)), Numbered(12, seed=dist.get_rank())
    fn(ddp, list(zip(batch.images.split(2), batch.labels.split(2), strict=True))[:count])
    used = len(ddp.module.history)
    return Seen(f"{used} used", f"It uses {used} of {int(count)} batches."), flat(ddp.parameters())


def with_hook(fn, width):
    """Go backward through DDP with the hook: how it has sent its buckets, and the exact average if it is near that."""
    everyone, calls, kinds = gathered(Numbered(4, seed=dist.get_rank()).images), [], set()
    all_reduce, wait = dist.all_reduce, torch.Future.wait

    def noted(tensor, *args, async_op=False, **kwargs):
        calls.append((tensor.nbytes, async_op))
        return all_reduce(tensor, *args, async_op=async_op, **kwargs)

    def waited(self):
        calls.append((0, False))
        return wait(self)

    def unpacked(done):
        if isinstance(done.value(), list):
            kinds.add("Future of a list")
        return done.value()[0] if isinstance(done.value(), list) else done.value()

    def watched(state, bucket):
        with mock.patch.object(dist, "all_reduce", noted), mock.patch.object(torch.Future, "wait", waited):
            future = fn(state, bucket)
        kinds.add(type(future).__name__)
        return future.then(unpacked) if "Future" in kinds else default_hooks.allreduce_hook(None, bucket)

    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(2, width), nn.Linear(width, 2))
    net(torch.cat(everyone)).square().mean().backward()
    exact = gradient(net)
    net.zero_grad()
    ddp = DistributedDataParallel(net)
    ddp.register_comm_hook(None, watched)
    ddp(everyone[dist.get_rank()]).square().mean().backward()
    num_bytes, how = sum(size for size, _ in calls), Seen("in 16 bits, and does not wait")
    if kinds != {"Future"}:
        how = Seen("no Future", f"DDP needs a Future of the average, and the hook returns a {max(kinds)}.")
    elif not all(async_op for _, async_op in calls):
        how = Seen("waits", "The hook waits for its all-reduce, and backward stands still meanwhile.")
    elif num_bytes > 2 * len(exact):
        how = Seen(f"{num_bytes} bytes", f"For {len(exact)} numbers it gives {num_bytes} bytes to all_reduce.")
    return how, near(gradient(ddp), exact, exact.abs().max())


def near(found, exact, largest):
    """The exact average, if no number is wrong by more than 2 % of the largest; else what was found."""
    n, most = dist.get_world_size(), 0.02 * largest
    if n > 1 and (found / n - exact).abs().max() <= most:
        return Seen("the sum", "It is the sum of the ranks, and not their average.")
    wrong = (found - exact).abs()
    if wrong.max() > most or wrong.isnan().any():
        share = f"{wrong.max() / largest:.0%} of the largest value"
        return Seen(
            f"{int((wrong > most).sum())} of {len(wrong)} wrong", f"An average is wrong by {share}, and 2% is the most."
        )
    return exact


def noise(rank, n, length):
    """Numbers as of a gradient, larger ones on later ranks."""
    return (torch.randn(length, generator=torch.Generator().manual_seed(rank)) * (1 + rank),)


def in_bytes(fn, tensor):
    """Average a tensor; the exact average, if no number is wrong by more than 2 % of the largest of all."""
    n = dist.get_world_size()
    everyone = torch.stack([noise(rank, n, len(tensor))[0] for rank in range(n)])
    fn(tensor)
    return near(tensor, everyone.mean(0), everyone.abs().max())


def in_a_folder(fn, *files):
    """The name of the file that is found among `files`, of which the first is the newest."""
    model = nn.Linear(2, 2)
    with tempfile.TemporaryDirectory() as name:
        for age, file in enumerate(files):
            path = Path(name, file)
            checkpoints.save(path, nn.Linear(2, 3) if file.startswith("other") else model)
            if file.startswith("cut"):
                path.write_bytes(path.read_bytes()[:500])
            os.utime(path, (1e9 - age, 1e9 - age))
        found = fn(Path(name), model)
        name = "None" if found is None else Path(found).name
        whys = {"other.pt": "It is of another model.", "cut.pt": "It is damaged.", "None": "One of them is good."}
        return Seen(name, whys.get(name, "There is a newer one that is good."))
