"""The exercises of lab 20: averages that travel while backward runs, and what more ranks bring."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

from distlab.checking import Limits, Seen, as_they_are, exercise, formula, numbers
from distlab_course import data_parallel
from distlab_course.exercises.data_parallelism import try_averaging
from distlab_course.exercises.ddp_trials import SECONDS_WITH_DDP, noted_all_reduces


def _try_in_backward(fn, images):
    """The gradients, and whether all-reduces began in backward and continued beside it."""
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    for parameter in model.parameters():
        nn.init.constant_(parameter, 0.5)
    with noted_all_reduces() as begun:
        finish = fn(model)
        model(images.reshape(-1, 4)).sum().backward()
        waits = [one.waited for one in begun]
        if callable(finish):
            finish()
    how = "beside backward"
    if not waits:
        how = "after backward"
    elif any(waits):
        how = "that backward waits for"
    gradients = [parameter.grad for parameter in model.parameters()]
    return Seen(f"all-reduces {how}"), gradients


def _scaled_gradient(rank, n, case):
    """A gradient of some length, times a factor."""
    length, factor = case
    (gradient,) = numbers(rank, n, length)
    return (gradient * factor,)


def _in_halves(n, length, item):
    """The bytes of a tree that sends half of each number."""
    steps = (n - 1).bit_length()
    return Limits(steps * length * item // 2)


def _try_rounded(fn, gradient):
    """The dtype of the gradient, and the gradient rounded to the digits of bfloat16."""
    (average,) = try_averaging(fn, gradient)
    return average.dtype, average.to(torch.bfloat16)


@exercise("20", cases=(8, 4, 12), trial=_try_in_backward)
def average_in_backward(model):
    """Make every backward average the gradients of `model`; return a function that completes the
    averages.

    Each all-reduce begins as soon as its gradient is ready, and backward continues. The function
    that you return has no arguments, and is called after backward.

    Title: 2.1 While backward runs
    Hint: `parameter.register_post_accumulate_grad_hook(hook)` calls `hook(parameter)` when its
    gradient is ready.
    Hint: In the hook, `dist.all_reduce(parameter.grad, async_op=True)` returns a Work: keep it for
    later.
    Hint: The function that you return waits for each Work, and only then divides that gradient by
    `world_size`.
    """
    return data_parallel.OverlappedAverage(model, bucket_bytes=1).wait


BUCKETS = [(2.0, 1.0), (3.0, 2.5), (6.0, 1.0)]


@formula(
    "20",
    (6.0, BUCKETS),
    (6.0, [(6.0, 4.0)]),
    (9.0, [(1.0, 2.0), (2.0, 3.0)]),
    (1.0, [(0.2, 4.0), (0.9, 1.0)]),
)
def exposed_seconds(backward, buckets):
    """Return the exposed communication of a step: how long the rank still waits after backward has
    ended.

    Backward takes `backward` seconds. `buckets` lists (full, seconds) in the order in which they
    leave: when the bucket is full, in seconds after the start of backward, and how long its
    all-reduce takes. The all-reduces run one at a time. For a backward of 6 s and buckets (2, 1),
    (3, 2.5) and (6, 1) it is 1 s.

    Title: 2.2 Exposed communication
    Hint: A bucket starts when it is full, and when the one before it has arrived: `max(full,
    free)`.
    Hint: Nothing is exposed if the last bucket arrives before backward ends.
    """
    free = 0.0
    for full, seconds in buckets:
        free = max(full, free) + seconds
    return max(0.0, free - backward)


def _try_buckets(fn, width, depth):
    """How the gradients travel in the second step and where they are kept, and the gradients."""
    model = _layers(width, depth)
    images = torch.randn(2, width) + dist.get_rank()
    ddp = fn(model)
    sent = []
    places = set()

    def noted(state, bucket):
        sent.append(bucket.buffer().nbytes)
        places.update(gradient.data_ptr() for gradient in bucket.gradients())
        return default_hooks.allreduce_hook(None, bucket)

    ddp.register_comm_hook(None, noted)
    for _ in range(2):  # the buckets are rebuilt after the first
        sent.clear()
        places.clear()
        ddp.zero_grad()
        ddp(images).square().mean().backward()
    gradients = [parameter.grad for parameter in model.parameters()]
    stored = "once, in the buckets"
    if any(gradient.data_ptr() not in places for gradient in gradients):
        stored = "twice"
    facts = {
        "buckets": Seen(_words_for(sent, model)),
        "gradients": Seen(f"gradients stored {stored}"),
    }
    return facts, gradients


def _layers(width, depth):
    """A model of layers as in the lab."""
    torch.manual_seed(depth)
    parts = []
    for _ in range(depth):
        parts += [nn.Linear(width, width), nn.LayerNorm(width), nn.ReLU()]
    return nn.Sequential(*parts)


def _words_for(sent, model):
    """Whether buckets of these sizes hold one layer each."""
    layers = sum(isinstance(part, nn.Linear) for part in model)
    size = sum(parameter.nbytes for parameter in model.parameters()) / layers
    # a vector may travel with the next layer
    if max(sent) < 1.5 * size and len(sent) <= layers + 1:
        return "each layer in a bucket"
    return f"layers: {layers}, buckets: {len(sent)}"


@exercise(
    "20",
    cases=((30, 3), (8, 5), (100, 4)),
    given=as_they_are,
    trial=_try_buckets,
    seconds=SECONDS_WITH_DDP,
)
def quick_enough(model):
    """Return `model` in a DistributedDataParallel that sends the gradients of each layer in a
    bucket of its own.

    Nor may the gradients be stored twice. A layer is a `Linear` and a `LayerNorm`, and all layers
    of a model have the same size.

    Title: 3.1 Under 10 ms
    Hint: `bucket_cap_mb` need not be a whole number, and a MiB is 2**20 bytes.
    Hint: The gradient that reaches the cap closes its bucket. Which gradient of a layer should do
    that?
    Hint: `parameter.nbytes` is the size of a gradient, too. `gradient_as_bucket_view=True` stores
    each gradient once.
    """
    largest = max(parameter.nbytes for parameter in model.parameters())
    return DistributedDataParallel(
        model, bucket_cap_mb=largest / 2**20, gradient_as_bucket_view=True
    )


@formula("20", (1e-3, 50e-6, 2e-3), (0.0, 1e-4, 5e-3), (2e-3, 1e-5, 1e-3))
def smallest_batch(a, b, c):
    """Return the smallest global batch with which 2 ranks process at least 1.6 times the images per
    second of one.

    A step of one rank takes a + b * images seconds, and with 2 ranks averaging takes c seconds
    more. The result need not be a whole number. With a = 1 ms, b = 50 µs and c = 2 ms it is 380.

    Title: 4.1 When are two ranks worth it?
    Hint: What does a step of 2 ranks take, if each has half of the images?
    Hint: Solve a + b x = 1.6 (a + b x / 2 + c) for x.
    """
    return (3 * a + 8 * c) / b


@exercise(
    "20",
    cases=((8, 1), (1000, 1), (10, 10**5)),
    given=_scaled_gradient,
    trial=_try_rounded,
    limits=_in_halves,
)
def average_in_halves(model):
    """Replace every gradient by its mean over all ranks, and send 16 bits a number:
    `torch.bfloat16`.

    The gradients are float32 before and afterwards. No average may be off by more than 1 %.

    Title: 7.1 Half the bytes
    Hint: `parameter.grad.to(torch.bfloat16)` is a new tensor.
    Hint: Divide, convert and all-reduce; `parameter.grad.copy_(...)` then converts back.

    Limit: Which dtype does the tensor have that you send?
    """
    data_parallel.average_gradients(model)
