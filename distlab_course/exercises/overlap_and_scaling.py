"""The exercises of lab 20: averages that travel while backward runs, and what more ranks bring."""

import torch
from torch import nn

from distlab.checking import Limits, Seen, exercise, formula, numbers, question
from distlab_course import data_parallel
from distlab_course.exercises.data_parallelism import try_averaging
from distlab_course.exercises.ddp_trials import noted_all_reduces


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


VECTOR_BYTES = 3 * 900 * 4  # of a layer of the large model
LAYER_BYTES = 900 * 900 * 4 + VECTOR_BYTES
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


@question("20")
def quick_enough(answer):
    """Give a limit in MiB with which a step of the large model takes less than 10 virtual ms.

    Title: 3.1 Under 10 ms
    Hint: `step_ms(5)` is too slow. What is left to be sent when backward has ended?
    Hint: A layer's gradients take 3.1 MiB. Which limits put each layer into a separate bucket?

    Not 10: That takes more than 10 ms: the last buckets hold several layers.
    Not 25: That takes more than 10 ms: there are only three buckets.

    Why: With one layer in each bucket, an all-reduce takes about as long as the backward of a
    layer, which hides it.
    """
    num_bytes = int(answer * 2**20)
    if num_bytes > LAYER_BYTES:
        return "That takes more than 10 ms: the last buckets hold several layers, and fill late."
    if num_bytes <= VECTOR_BYTES:
        return "That takes more than 10 ms: short vectors travel alone, with a latency each."
    return True


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
