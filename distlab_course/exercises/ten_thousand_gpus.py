"""The exercises of lab 63: the cost of a step on thousands of devices, and a plan for 70B."""

import torch
import torch.distributed as dist
from torch import nn

from distlab.checking import Limits, Seen, exercise, formula, gathered, nothing, question, returned
from distlab.errors import DistlabError
from distlab_course.sizes import Size

BLOCK = 218_112_000
ETHERNET = (5e-6, 50e9)
NVLINK = (1e-6, 450e9)


def _batch_of_rank(rank, n, case):
    """Sequences of tokens, as long as this rank's longest, and a number to pad them with."""
    sequences, length, padding = case
    longest = length + 3 * ((rank + 1) % n)
    tokens = torch.arange(sequences * longest).reshape(sequences, longest) + 1
    return tokens + 100 * rank, padding


@exercise(
    "63",
    cases=((1, 2, 0), (2, 1, -1)),
    given=_batch_of_rank,
    trial=returned,
    limits=Limits(calls=1, largest=8),
)
def pad_to_longest(tokens, padding):
    """Return this rank's tokens, padded at the end to the length of the longest rank.

    `tokens` has the shape (sequences, length), and the length differs between the ranks. Fill with
    the number `padding`, so that all ranks run the same program. Make one collective call, with a
    single number.

    Title: 1.1 The same length on every rank
    Hint: Which reduction of all lengths does each rank need? `dist.all_reduce(length, op=...)`
    takes a tensor.
    Hint: `torch.nn.functional.pad(tokens, (0, more), value=padding)` adds `more` numbers at the end
    of each sequence.

    Limit: Which single number do the others need from a rank?
    """
    longest = max(gathered(tokens.shape[1]))
    return nn.functional.pad(tokens, (0, longest - tokens.shape[1]), value=padding)


class _Chain(nn.Module):
    """Blocks and an output matrix, all with the same number of parameters."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(5)
        self.blocks = nn.ModuleList([nn.Linear(8, 8, bias=False) for _ in range(3)])
        self.output = nn.Linear(8, 8, bias=False)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.output(x)


def _no_arguments(rank, n, case):
    """Nothing but the number of ranks of a group."""
    return (case,)


def _calls_of(events):
    """The collective calls that a rank has noted."""
    return [event for event in events if hasattr(event, "members")]


def _whole_blocks(model):
    """The numbers of the blocks whose parameters this rank has as a whole."""
    found = []
    for number, block in enumerate(model.blocks):
        if not hasattr(block.weight, "to_local"):
            found.append(number)
    return found


def _try_last_block(fn, _, events):
    """Which blocks stay whole after the forward pass, and how often a step gathers and reduces."""
    from torch.distributed.device_mesh import init_device_mesh

    # with a name of its own: of equal meshes, DTensor caches the groups of the first, which may be
    # gone
    name = dist.group.WORLD.group_name
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=(name,))
    model = _Chain()
    fn(model, list(model.blocks), mesh)
    begun = len(events)
    y = model(torch.ones(2, 8))
    whole = _whole_blocks(model)
    y.sum().backward()
    names = [call.name for call in _calls_of(events[begun:])]
    why = ""
    if whole == []:
        why = "The last block is freed, and gathered again at once: see `reshard_after_forward`."
    elif whole != [2]:
        why = f"Blocks {whole} are whole after the forward pass. Which one is needed first?"
    gathers = names.count("all_gather")
    reduces = names.count("reduce_scatter")
    return Seen(f"{gathers} all-gathers, {reduces} reduce-scatters; whole: {whole}", why)


@exercise("63", worlds=(2, 4), cases=(0,), given=_no_arguments, trial=_try_last_block)
def keep_last_block(model, blocks, mesh):
    """Call `fully_shard` on the parts of a model so that its last block is gathered only once.

    Of all blocks, the backward pass needs the last one first, so it stays whole after its forward
    pass. All other blocks are freed after theirs. `blocks` is the list of the model's blocks, and
    the root takes the rest. The check counts the calls of a step.

    Title: 2.1 One all-gather less
    Hint: `fully_shard(block, mesh=mesh)` frees a block after its forward pass, and
    `reshard_after_forward=False` does not.
    Hint: Call it on the model after its blocks; the root stays whole after the forward pass anyway.
    """
    from torch.distributed.fsdp import fully_shard

    *others, last = blocks
    for block in others:
        fully_shard(block, mesh=mesh)
    fully_shard(last, mesh=mesh, reshard_after_forward=False)
    fully_shard(model, mesh=mesh)


LARGE = (855_654_400, 1024, 5e-6, 400e9, 500e12)


@formula(
    "63",
    (BLOCK, 64, *ETHERNET, 400e12),
    (BLOCK, 8, *NVLINK, 400e12),
    LARGE,
    (10**6, 4, 0.0, 1e9, 1e12),
)
def tokens_to_hide(parameters, ranks, latency, bandwidth, flops):
    """Return how many tokens each device must have, so that the backward pass of a block hides
    FSDP's messages.

    Meanwhile a ring gathers the parameters of the next block in 16 bits, and then another one
    reduces and scatters the gradients of the block that was just finished, in 32 bits. The backward
    pass needs 4 FLOPs for each parameter and token, and the device does `flops` a second. For a
    block of 8B on 64 ranks, 5 us, 50 GB/s and 400 TFLOP/s it takes 12,101 tokens.

    Title: 3.1 Tokens to hide the messages
    Hint: Each of the two rings has `ranks - 1` steps, and pays for the latency in each.
    Hint: Together they send `2 + 4` bytes of each parameter.
    Hint: Set their seconds equal to 4 * parameters * tokens / flops, and solve for the tokens.
    """
    share = 6 * parameters / ranks  # bytes, of both rings
    seconds = (ranks - 1) * (2 * latency + share / bandwidth)
    return seconds * flops / (4 * parameters)


def _try_groups(fn, size, events):
    """Among which ranks each call of a step is made, and a gradient."""
    model = _Chain()
    # names of their own: of equal meshes, DTensor caches the groups of the first
    name = dist.group.WORLD.group_name
    fn(model, list(model.blocks), size, (f"copies_{name}", f"shards_{name}"))
    rank = dist.get_rank()
    begun = len(events)
    model(torch.full((1, 8), rank + 1.0)).sum().backward()
    calls = _calls_of(events[begun:])
    names = [call.name for call in calls]
    groups = {call.name: sorted(call.members) for call in calls}
    gradient = model.blocks[0].weight.grad
    if hasattr(gradient, "full_tensor"):
        gradient = gradient.full_tensor()
    why = ""
    if "all_reduce" not in groups:
        why = "Nothing is summed between copies: is the mesh one of two dimensions?"
    elif names.count("reduce_scatter") == 1:
        why = "All parameters are in one group: does each block have its own call?"
    words = [f"{names.count(name)} {name} {groups[name]}" for name in sorted(groups)]
    return Seen(", ".join(words), why), gradient


@exercise("63", worlds=(4,), cases=(2, 4), given=_no_arguments, trial=_try_groups)
def shard_in_groups(model, blocks, size, names):
    """Shard a model inside groups of `size` neighbouring ranks; each group has a copy of it.

    Call `fully_shard` on each of its `blocks` and on the model. All-gathers and reduce-scatters
    then stay in a group, and only shards of the gradients are summed between the groups. The number
    of ranks can be divided by `size`. With 4 ranks and a size of 2, ranks 0 and 1 are a group.
    `names` are the names of the mesh's two dimensions, that of the copies first.

    Title: 3.2 Short rings
    Hint: `init_device_mesh("cpu", (copies, size), mesh_dim_names=names)` arranges the ranks in
    rows. How many copies are there?
    Hint: With a mesh of two dimensions, `fully_shard` copies along the first and divides along the
    second.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    shape = (dist.get_world_size() // size, size)
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
    for part in (*blocks, model):
        fully_shard(part, mesh=mesh)


@formula("63", (4, 4, 1), (4, 8, 1), (4, 8, 2), (8, 64, 4), (1, 8, 1))
def waiting_share(ranks, microbatches, stages):
    """Return which share of a step a rank of a pipeline waits.

    A pipeline of p ranks with m micro-batches takes as long as m + p - 1 micro-batches on one rank,
    and each rank works on m of them. With v interleaved stages on each rank, the rank waits for a
    v-th of that time. With 4 ranks, 8 micro-batches and 2 stages the share is 3/19.

    Title: 5.1 The bubble
    Hint: With one stage the share is (p - 1) / (m + p - 1).
    Hint: With v stages, count in units of a micro-batch on one stage: a rank works for v m of them.
    """
    waiting = ranks - 1
    working = stages * microbatches
    return waiting / (working + waiting)


@question("63")
def plan_for_70b(answer):
    """Train Llama 70B with 1.4 trillion tokens on 512 devices of 80 GB, in at most 53 days, with 5
    % to spare in both. A step has 256 sequences of 8,192 tokens. Answer with the arguments of
    `planning.plan`, such as {"tensor": 8, "recompute": "full"}.

    Title: 7.1 Your plan
    Hint: Which `tensor` is the smallest that 256 sequences allow, if each rank of FSDP has at least
    one?
    Hint: A pipeline waits, and so few micro-batches cannot fill it. What does recomputing save, and
    what does it cost?
    Hint: Try all three ways of recomputing with that `tensor` and no pipeline.

    Why: The smallest group of tensor parallelism sends the least, and recomputing all blocks makes
    room for the rest.
    """
    from distlab_course.planning import plan

    if not isinstance(answer, dict):
        return (
            "Give the arguments of `planning.plan` as a dict, "
            'such as {"tensor": 8, "recompute": "full"}.'
        )
    try:
        found = plan(**answer)
    except (DistlabError, TypeError) as error:
        return f"There is no such plan. {error}"
    if found.fits is False:
        return f"It does not fit: a device would need {found.num_bytes / 1e9:.0f} GB."
    if found.in_time is False:
        return f"It takes {found.days:.1f} days."
    if found.fits is None or found.in_time is None:
        return f"It is too close to a limit, and only a measurement could tell: {found}."
    return True


SMALL_PIPELINE = {
    "size": Size(width=16, layers=2, heads=2, hidden=32, kv_heads=2, vocabulary=32),
    "stages": 2,
    "microbatches": 3,
    "length": 4,
    "dtype": torch.float32,
}


def _try_order(fn, events):
    """The norms of a stage's gradients after a step, and when it averaged them."""
    # with DTensor, which takes a second to import: whoever checks any exercise imports this file
    from distlab_course import staircase

    begun = len(events)
    stage = staircase.train(dist.get_rank(), dist.get_world_size(), step=fn, **SMALL_PIPELINE)
    made = events[begun:]
    averages = [number for number, event in enumerate(made) if hasattr(event, "members")]
    sends = [number for number, event in enumerate(made) if getattr(event, "sends", False)]
    order = "sends, then averages"
    why = ""
    if len(averages) != 1:
        order = f"averages {len(averages)} times"
        why = "Each stage averages once, when its gradients are complete."
    elif sends and averages[0] < sends[-1]:
        order = "averages, then sends"
        why = "The stage before waits for the last gradient, while this one averages its own."
    norms = [parameter.grad.norm() for parameter in stage.model.parameters()]
    return Seen(order, why), torch.stack(norms)


@exercise("63", worlds=(4,), cases=(0,), given=nothing, trial=_try_order)
def step_without_stairs(stage, microbatches):
    """Take the step of `found`, with the same gradients, so that no stage waits for another one's
    average.

    Title: 8.1 The line that makes the stairs
    Hint: Which call of a stage does the stage before it wait for?
    Hint: That call needs the gradient of the micro-batch, and not the average of all.
    """
    from distlab_course import staircase

    staircase.mended(stage, microbatches)
