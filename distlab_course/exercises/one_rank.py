"""The exercises of lab 55: profiles, graphs, memory, and numbers of 16 and 8 bits."""

import math

import torch
import torch.distributed as dist

from distlab.checking import Limits, Seen, exercise, formula, gathered, numbers

REDUCTIONS_BY_STEP = (5, 4, 1, 2, 7, 3, 6)  # of the step that the answer profiles
LARGEST_FLOAT8 = 448.0  # of torch.float8_e4m3fn


# --- 1 a profile ---


def _try_profile(fn):
    """What a profile holds of a step that makes another number of all-reduces at each call."""
    made = []

    def step():
        reductions = REDUCTIONS_BY_STEP[len(made) % len(REDUCTIONS_BY_STEP)]
        for _ in range(reductions):
            dist.all_reduce(torch.ones(2))
        made.append(reductions)

    found = fn(step)
    why = ""
    if found == sum(made):
        why = "That is every step. Which of them does `active` record?"
    elif found == sum(made[1:3]):
        why = (
            "The second step is there, and the fourth is not. Where does `profiler.step()` belong?"
        )
    return Seen(f"{len(made)} steps, {found} all-reduces in the profile", why)


def _no_arguments(rank, n, case):
    """The exercise makes the step itself."""
    return ()


@exercise("55", worlds=(1, 2), cases=(0,), given=_no_arguments, trial=_try_profile, seconds=30.0)
def profile_two_steps(step):
    """Call `step()` four times, record only the third and the fourth with `torch.profiler`, and
    return how many all-reduces of gloo the profile holds.

    The first step is skipped, and the second warms the profiler up. In the profile, an all-reduce
    is called "gloo:all_reduce".

    Title: 1.1 Two steps of four
    Hint: `schedule(wait=1, warmup=1, active=2)`, and `profiler.step()` after each step.
    Hint: `profiler.events()` has all events that were recorded, each with a `name`.
    """
    from torch.profiler import profile, schedule

    with profile(schedule=schedule(wait=1, warmup=1, active=2)) as profiler:
        for _ in range(4):
            step()
            profiler.step()
    return sum(event.name == "gloo:all_reduce" for event in profiler.events())


# --- 2 one graph ---


def _part_of_gradient(rank, n, case):
    """This rank's part of a gradient, and the largest norm."""
    length, max_norm = case
    (part,) = numbers(rank, n, length)
    return part, max_norm


def _try_compiled(fn, gradient, max_norm):
    """What the compiled function returns, and of how many graphs it is made."""
    import torch._dynamo as dynamo
    from torch._dynamo.backends.registry import lookup_backend

    graphs = []
    run_eagerly = lookup_backend("eager")

    def counting(graph, inputs):
        graphs.append(graph)
        return run_eagerly(graph, inputs)

    dynamo.reset()
    clipped = torch.compile(fn, backend=counting)(gradient, max_norm)
    dynamo.reset()
    why = ""
    if len(graphs) > 1:
        why = "Something asks for a number in the middle: what can a graph not know in advance?"
    return clipped, Seen(f"graphs: {len(graphs)}", why)


@exercise(
    "55",
    worlds=(1, 2),
    cases=((4, 1.0), (4, 1e3)),
    given=_part_of_gradient,
    trial=_try_compiled,
    seconds=60.0,
)
def clip_in_one_graph(gradient, max_norm):
    """Return this rank's part of a gradient, scaled so that the norm of the whole is at most
    `max_norm`.

    If the norm is not larger, nothing changes. `torch.compile` has to make one graph of it.

    Title: 2.1 One graph
    Hint: `if`, `.item()` and `float()` need the number itself. Which operator on tensors takes the
    smaller of two values?
    Hint: The factor is `max_norm / norm`, but never more than 1, and `clamp` is an operator.
    Hint: `dist.all_reduce(squares)` may stay: torch makes it part of the graph.
    """
    squares = gradient.square().sum()
    dist.all_reduce(squares)
    return gradient * (max_norm / squares.sqrt()).clamp(max=1)


# --- 3 memory ---


@formula(
    "55",
    (2**20, 10_000, 2**24),
    (2**20, 10_000, 2**24 - 1),
    (2**20, 10_000, 13 * 2**20),
    (2_097_152, 8_192, 35_000_000),
    (1000, 100, 15_999),
    (1000, 100, 16_000),
)
def largest_batch(parameters, kept, memory):
    """Return the largest number of samples with which a step in float32 with Adam fits into
    `memory` bytes, and 0 if not even the model fits.

    Autograd keeps `kept` numbers for each sample. At the end of forward there are parameters,
    Adam's states and everything that is kept; at the end of backward there are parameters, states
    and all gradients. Temporary tensors and the batch are left out.

    Title: 3.1 The largest batch
    Hint: 12 bytes for each parameter at the end of forward, and 16 at the end of backward.
    Hint: Where 16 bytes do not fit, no batch does.
    """
    if 16 * parameters > memory:
        return 0
    return (memory - 12 * parameters) // (4 * kept)


# --- 4 sixteen bits ---


def _scaled_shard(rank, n, case):
    """A shard of weights, and of a gradient times a scale; a value of it may be spoilt."""
    scale, spoilt_on, value = case
    weight = torch.arange(3.0) + rank
    gradient = scale * (torch.arange(3.0) + 1)
    if rank == spoilt_on % n:
        gradient[1] = value
    return weight, gradient, scale


def _try_scaled(fn, weight, gradient, scale):
    """The scale that is returned, and the weight afterwards."""
    return fn(weight, gradient, scale), weight


@exercise(
    "55",
    worlds=(1, 2),
    cases=((1024.0, 0, 2.0), (1024.0, -1, math.inf), (64.0, 0, math.nan), (2.0, 0, -math.inf)),
    given=_scaled_shard,
    trial=_try_scaled,
    limits=Limits(calls=1, largest=8),
)
def scaled_step(weight, gradient, scale):
    """Make a step of SGD with a learning rate of 0.1 on this rank's shard of the weights, in place,
    unless the gradient has overflowed on any rank. Return the scale of the next step.

    `gradient` is this rank's shard of the gradient times `scale`. If a number of it is infinite or
    not a number on any rank, no rank changes its weights, and the next scale is half of this one.
    Otherwise the scale stays. One collective call with a single number must be enough.

    Title: 4.1 All skip or none
    Hint: `gradient.isfinite().all()` says whether this shard is fine.
    Hint: An all-reduce with `op=dist.ReduceOp.MAX` of 0 or 1 says whether any rank has overflowed.
    Hint: `weight -= ...` or `weight.sub_(...)` change the tensor in place. Divide by the scale.

    Limit: Which single number do the others need from a rank?
    """
    overflowed = 1.0 - float(gradient.isfinite().all())
    if max(gathered(overflowed)) > 0:
        return scale / 2
    weight -= 0.1 * gradient / scale
    return scale


# --- 5 eight bits ---


def _rows_of_matrix(rank, n, case):
    """This rank's rows; the largest number is on the last rank."""
    rows, columns, largest = case
    matrix = torch.linspace(-0.7, 0.9, rows * columns).reshape(rows, columns)
    return (matrix * largest * (rank + 1) / n,)


def _a_byte_each(n, length, item):
    """The bytes of an all-gather of a byte for each number, and of an all-reduce of one number."""
    steps = (n - 1).bit_length()
    return Limits((n - 1) * length + 8 * steps, calls=2)


@exercise(
    "55",
    worlds=(1, 2),
    cases=((1, 4, 3.0), (3, 5, 2e4)),
    given=_rows_of_matrix,
    limits=_a_byte_each,
)
def gather_in_float8(rows):
    """Return the whole matrix in float32, on every rank, after its numbers have travelled as
    `torch.float8_e4m3fn`, one byte each.

    The scale is the same for all ranks, `448 / largest`, where `largest` is the largest absolute
    number of the whole matrix. Each number is multiplied by the scale, rounded to float8, and
    divided by the scale when it has arrived. gloo refuses float8, so send a view as
    `torch.uint8`.

    Title: 5.1 One scale for all
    Hint: First an all-reduce of `rows.abs().max()`, with `op=dist.ReduceOp.MAX`.
    Hint: `numbers.to(torch.float8_e4m3fn).view(torch.uint8)` are bytes, and
    `.view(torch.float8_e4m3fn).float()` is the way back.
    Hint: `dist.all_gather(parts, mine)` fills a list of tensors, which `torch.cat` joins.

    Limit: How many bytes does a number take, and which single number must all ranks agree on?
    """
    matrix = torch.cat(gathered(rows))
    scale = LARGEST_FLOAT8 / matrix.abs().max()
    return (matrix * scale).to(torch.float8_e4m3fn).float() / scale
