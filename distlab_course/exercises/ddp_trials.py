"""How the answers of labs 07 and 21 to 23 are tried, with facts about what they leave behind.

They leave behind a trained model, gradients, or a file. Facts are compared as words (`Seen`), and
numbers as tensors.

Runs on every rank of the small world, called by distlab's check; the exercises are in
distributed_data_parallel.py, fewer_bytes.py, stop_and_resume.py and silent_mistakes.py.
"""

import contextlib
import os
import shutil
import tempfile
import time
from pathlib import Path
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset

from distlab.checking import Seen, gathered
from distlab_course import checkpoints

SECONDS_WITH_DDP = 20.0  # for a call, because the first DDP on a rank imports for seconds
RATE = 0.1  # at which all of them learn
BATCH = 3  # samples of a rank in a step
EPOCHS = 2
ROUNDS = 8  # of averages with one residual


class Numbered(TensorDataset):
    """Images of 2 numbers with labels 0 and 1, which remembers which of them were read."""

    def __init__(self, count, seed=0):
        generator = torch.Generator().manual_seed(seed)
        self.images = 5 * torch.randn(count, 2, generator=generator)
        self.labels = torch.randint(2, (count,), generator=generator)
        self.read = []
        super().__init__(self.images, self.labels)

    def __getitem__(self, number):
        """An image and its label, or some of them."""
        self.read.append(number)
        return super().__getitem__(number)


def flat(tensors):
    """A copy of all numbers, in one dimension."""
    return nn.utils.parameters_to_vector(tensors).detach().clone()


def watched_layer(seed):
    """A layer for images of 2 numbers and 2 classes, which keeps its weights of each forward."""
    torch.manual_seed(seed)
    model = nn.Linear(2, 2)
    model.history = []

    def keep_weights(module, arguments):
        model.history.append(flat(model.parameters()))

    model.register_forward_pre_hook(keep_weights)
    return model


def gradients_of(model):
    """The gradients of all parameters, zeros where there are none."""
    gradients = []
    for parameter in model.parameters():
        if parameter.grad is None:
            gradients.append(torch.zeros_like(parameter))
        else:
            gradients.append(parameter.grad)
    return flat(gradients)


def exact_if_near(found, exact, largest):
    """The exact values if what was found is near them; else what was found.

    Near means that none differs by more than 2 % of the largest. An answer that rounds no more than
    it may is then equal to the reference.
    """
    error = (found - exact).abs().max()
    if error <= 0.02 * largest:
        return exact
    return found


def facts_of_training(model, samples):
    """Facts about a training of two epochs."""
    middle = len(samples.read) // EPOCHS
    first = gathered(samples.read[:middle])
    second = gathered(samples.read[middle:])
    count = sum(len(read_by_rank) for read_by_rank in first)
    order = "shuffled in each epoch"
    if first == second:
        order = "one order for both epochs"
    weights_by_rank = gathered(flat(model.parameters()).tolist())
    models = {tuple(weights) for weights in weights_by_rank}
    end = "one model"
    if len(models) > 1:
        end = f"{len(models)} different models"
    return {
        "samples": Seen(f"{count} samples an epoch"),
        "order": Seen(order),
        "end": Seen(f"{end} in the end"),
    }


def try_training(fn, count):
    """Train with `count` samples, each rank with other weights; facts, and the weights."""
    model = watched_layer(dist.get_rank())
    samples = Numbered(count)
    fn(model, samples, BATCH, EPOCHS)
    return facts_of_training(model, samples), flat(model.parameters())


def try_script(fn, count):
    """Run a script that had faults: facts about its training, first step and file."""
    return _facts_of_script(fn, count, max_norm=float("inf"))


def try_clipping_script(fn, count):
    """Run a script that had faults and clips its gradient to a norm of 1: facts, as above."""
    return _facts_of_script(fn, count, max_norm=1.0)


def _facts_of_script(fn, count, max_norm):
    """Facts about a training of two epochs, its first step, and the file that it writes."""
    model = watched_layer(0)
    samples = Numbered(count)
    with mock.patch.object(torch, "save") as save:
        fn(model, samples, BATCH, EPOCHS, "model.pt")
    before, after = model.history[:2]
    average = torch.stack(gathered(_first_gradients(before, samples))).mean(0)
    words = "the average"
    if max_norm < float("inf"):
        average = average / (average.norm() / max_norm).clamp(min=1)
        words = "the clipped average"
    follows = torch.allclose((before - after) / RATE, average, atol=1e-3)
    verb = "follows" if follows else "does not follow"
    written = gathered(save.call_count)
    writers = [rank for rank, times in enumerate(written) if times > 0]
    return facts_of_training(model, samples) | {
        "step": Seen(f"step 0 {verb} {words}"),
        "file": Seen(f"times written: {sum(written)}, by {len(writers)} of the ranks"),
    }


def _first_gradients(weights, samples):
    """The gradients of the first batch that this rank has read, with these weights."""
    model = watched_layer(0)
    nn.utils.vector_to_parameters(weights, model.parameters())
    batch = samples.read[:BATCH]
    loss = nn.functional.cross_entropy(model(samples.images[batch]), samples.labels[batch])
    loss.backward()
    return gradients_of(model)


def try_share(fn, count):
    """Let the ranks look at `count` samples; how often they did, and the share that comes out."""
    model = watched_layer(0)
    samples = Numbered(count)
    share = fn(model, samples)
    looks = [len(read) for read in gathered(samples.read)]
    return Seen(f"{sum(looks)} looks, at most {max(looks)} by a rank"), share


def after_backward(fn, *arguments):
    """What a backward through DDP leaves: how often it has sent gradients, and the gradients."""
    ddp = DistributedDataParallel(watched_layer(0))
    sent = []

    def counted(state, bucket):
        sent.append(bucket)
        return default_hooks.allreduce_hook(None, bucket)

    ddp.register_comm_hook(None, counted)
    fn(ddp, *arguments)
    words = "sent once"
    if len(sent) != 1:
        words = f"sent {len(sent)} times"
    return Seen(words), gradients_of(ddp)


def try_pieces(fn, count):
    """Go backward in `count` pieces of a batch of 12 images, other ones on each rank."""
    batch = Numbered(12, seed=dist.get_rank())
    pieces = zip(batch.images.chunk(count), batch.labels.chunk(count), strict=True)
    return after_backward(fn, list(pieces))


def try_uneven_batch(fn, count):
    """Go backward with a batch of `count` images."""
    batch = Numbered(count, seed=dist.get_rank())
    return after_backward(fn, batch.images, batch.labels)


def try_all_batches(fn, count):
    """Train with `count` batches; how many were used, and the weights."""
    ddp = DistributedDataParallel(watched_layer(0))
    batch = Numbered(12, seed=dist.get_rank())
    batches = list(zip(batch.images.split(2), batch.labels.split(2), strict=True))
    fn(ddp, batches[:count])
    used = len(ddp.module.history)  # a forward each
    return Seen(f"batches used: {used}"), flat(ddp.parameters())


def gradients_with_hook(hook, state, width):
    """Go backward through DDP with a hook: the gradients, exact if they are near."""
    mine = Numbered(4, seed=dist.get_rank()).images
    everyone = torch.cat(gathered(mine))
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(2, width), nn.Linear(width, 2))
    net(everyone).square().mean().backward()
    exact = gradients_of(net)
    net.zero_grad()
    ddp = DistributedDataParallel(net)
    ddp.register_comm_hook(state, hook)
    ddp(mine).square().mean().backward()
    return exact_if_near(gradients_of(ddp), exact, largest=exact.abs().max())


class BegunAllReduce:
    """What an all-reduce of a tensor returns, which notes that it is waited for.

    One that is not asynchronous waits at once.
    """

    def __init__(self, tensor, work):
        self.num_bytes = tensor.nbytes
        self.waited = work is None
        self._work = work

    def wait(self, *limit):
        """Wait for the all-reduce."""
        self.waited = True
        return self._work.wait(*limit)

    def __getattr__(self, name):
        return getattr(self._work, name)


@contextlib.contextmanager
def noted_all_reduces():
    """A list of the all-reduces that begin meanwhile."""
    begun = []
    all_reduce = dist.all_reduce

    def begin(tensor, *more, **options):
        work = all_reduce(tensor, *more, **options)
        noted = BegunAllReduce(tensor, work)
        begun.append(noted)
        return None if work is None else noted

    with mock.patch.object(dist, "all_reduce", begin):
        yield begun


def try_half_hook(fn, width):
    """How many bytes a hook sends, whether it waits for them, and the gradients."""
    waits = []

    def hook(state, bucket):
        future = fn(state, bucket)
        # before it returns; later DDP waits for the future
        waits.extend(one.waited for one in begun)
        return future

    with noted_all_reduces() as begun:
        found = gradients_with_hook(hook, None, width)
    num_bytes = sum(one.num_bytes for one in begun)
    words = f"sends {num_bytes} bytes"
    if any(waits):
        words += " and waits"
    return Seen(words), found


def try_hook_with_own_sum(fn, width):
    """How many numbers a hook adds up with the all-reduce that it was given, and the gradients."""
    sizes = []

    def own_sum(tensor):
        sizes.append(tensor.numel())
        dist.all_reduce(tensor)

    found = gradients_with_hook(fn, own_sum, width)
    return Seen(f"{sum(sizes)} numbers added up with `state`"), found


def gradient_of_rank(rank, n, length):
    """Numbers as of a gradient, larger ones on later ranks."""
    generator = torch.Generator().manual_seed(rank)
    numbers = torch.randn(length, generator=generator)
    return (numbers * (1 + rank),)


def try_once(fn, tensor):
    """Average a tensor; the exact average, if the result is near it."""
    return try_rounds(lambda gradient, residual: fn(gradient), tensor, rounds=1)


def try_rounds(fn, tensor, rounds=ROUNDS):
    """Average the same tensor in several rounds with one residual.

    Returns the exact sum of the averages, if it is near.
    """
    n = dist.get_world_size()
    gradients = []
    for rank in range(n):
        gradients += gradient_of_rank(rank, n, len(tensor))
    everyone = torch.stack(gradients)
    exact = rounds * everyone.mean(0)
    residual = torch.zeros_like(tensor)
    averages = tensor.repeat(rounds, 1)
    for gradient in averages:  # which its average replaces
        fn(gradient, residual)
    return exact_if_near(averages.sum(0), exact, largest=everyone.abs().max())


def try_saving(fn, epoch):
    """Save a checkpoint, slowly: facts about the file.

    They are how often and where it was written, whether all have waited, and what is in it.
    """
    written = []  # where, each time
    save = torch.save
    ddp = DistributedDataParallel(watched_layer(0))
    optimizer = torch.optim.SGD(ddp.parameters(), lr=RATE)
    folder = None
    if dist.get_rank() == 0:
        folder = tempfile.mkdtemp()
    folder = gathered(folder)[0]
    path = Path(folder, "run.pt")

    def save_slowly(state, file, **options):
        time.sleep(0.1)
        save(state, file, **options)
        if str(file) == str(path):
            written.append("over the old one")
        else:
            written.append("beside the old one")

    with mock.patch.object(torch, "save", save_slowly):
        fn(path, ddp, optimizer, epoch)
    end = "is there when every rank returns"
    if not all(gathered(path.exists())):
        end = "is not there yet when a rank returns"
    places = []
    for places_of_rank in gathered(written):
        places += places_of_rank
    different_places = ", ".join(sorted(set(places)))
    content = _content_of(path)
    dist.barrier()
    shutil.rmtree(folder, ignore_errors=True)
    return {
        "file": Seen(f"times written: {len(places)}, {different_places}"),
        "end": Seen(end),
        "content": Seen(content),
    }


def _content_of(path):
    """The names in a checkpoint, in words."""
    state = {}
    if path.exists():
        state = torch.load(path)
    names = ", ".join(sorted(state))
    weights = ", ".join(state.get("model", ()))
    return f"{names}; weights: {weights}"


def try_folder(fn, *files):
    """The name of the file that is found among `files`, of which the first is the newest.

    A file "other..." belongs to another model, and the end of a file "cut..." is missing.
    """
    model = nn.Linear(2, 2)
    other_model = nn.Linear(2, 3)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for age, file in enumerate(files):
            path = folder / file
            if file.startswith("other"):
                checkpoints.save(path, other_model)
            else:
                checkpoints.save(path, model)
            if file.startswith("cut"):
                beginning = path.read_bytes()[:500]
                path.write_bytes(beginning)
            changed = 1e9 - age
            os.utime(path, (changed, changed))
        found = fn(folder, model)
    if found is None:
        return Seen("None")
    return Seen(Path(found).name)
