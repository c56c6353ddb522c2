"""The exercises of lab 50: the cost of a replica, and how its parts are divided."""

import tempfile
from collections import OrderedDict

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from distlab.checking import Limits, Seen, exercise, formula, gathered, numbers, question


def _state_of_rank(rank, n, shard):
    """Weights that every rank has, a gradient of this rank, and its shard of the momentum."""
    weights = torch.arange(float(n * shard))
    (gradient,) = numbers(rank, n, len(weights))
    momentum = weights.chunk(n)[rank] / 10
    return weights, gradient, momentum


def _two_halves_of_a_ring(n, length, item):
    """The bytes of a reduce-scatter and an all-gather."""
    return Limits(2 * (n - 1) * length // n * item)


def _try_step(fn, weights, gradient, momentum):
    """The weights and the momentum after a step, which may change the gradient."""
    fn(weights, gradient, momentum)
    return weights, momentum


def _shards_and_norm(rank, n, case):
    """A list of shards, none on rank 2, and the largest norm."""
    lengths, max_norm = case
    shards = []
    if rank != 2:
        for place, length in enumerate(lengths):
            shards += numbers(rank + place, n, length)
    return shards, max_norm


@formula("50", (1000, 4, 0), (1000, 4, 1), (1000, 4, 2), (1000, 4, 3), (2097152, 4, 3), (64, 1, 3))
def bytes_of_a_rank(parameters, ranks, stage):
    """Return the bytes of parameters, gradients and optimizer states on a rank, with float32 and
    Adam.

    `stage` is 0 for data parallelism and 1 to 3 for ZeRO, and everything divides evenly.

    Title: 1.1 Bytes per rank
    Hint: Without ZeRO a parameter takes 4 bytes, its gradient 4, and Adam's two means 8.
    Hint: Divide the 8 by the ranks from stage 1 on, the gradient's 4 from stage 2 on, and the
    parameter's 4 at stage 3.
    """
    whole = 16
    if stage >= 1:
        whole -= 8  # Adam's two means
    if stage >= 2:
        whole -= 4  # the gradient
    if stage >= 3:
        whole -= 4  # the parameter
    divided = 16 - whole
    return parameters * whole + parameters * divided // ranks


@exercise(
    "50", cases=(2, 3, 20), given=_state_of_rank, trial=_try_step, limits=_two_halves_of_a_ring
)
def zero_2_step(weights, gradient, momentum):
    """Make one step of SGD with momentum on `weights`, the same on all ranks; `momentum` is this
    rank's shard.

    The momentum becomes 0.9 times itself plus the average gradient of shard `rank`, and that
    shard of the weights loses 0.1 times it. All ranks end with all new weights; `gradient` may be
    changed.

    Title: 2.1 ZeRO-2
    Hint: `mine = torch.empty_like(momentum)`, and `dist.reduce_scatter(mine,
    list(gradient.chunk(world_size)))` leaves the sum of shard `rank` there.
    Hint: `momentum.mul_(0.9).add_(...)` changes the tensor that was given; `momentum = ...` makes
    another one.
    Hint: The shards are `weights.chunk(world_size)`, views of `weights`: `dist.all_gather` can
    write into them.

    Limit: Which part of the average does a rank need, and which of the weights?
    """
    world_size = dist.get_world_size()
    average = sum(gathered(gradient)) / world_size
    mine = average.chunk(world_size)[dist.get_rank()]
    momentum.mul_(0.9).add_(mine)
    weights -= 0.1 * torch.cat(gathered(momentum))


def _try_sharding(fn, world_size):
    """How many parameters are whole when each layer has run, and after the forward pass."""
    seen = []
    blocks = nn.Sequential(*(nn.Linear(4, 4, bias=False) for _ in range(3)))
    layers = {
        "embedding": nn.Linear(2, 4, bias=False),
        "blocks": blocks,
        "head": nn.Linear(4, 6, bias=False),
    }
    model = nn.Sequential(OrderedDict(layers))

    def look(layer, arguments, output):
        seen.append(_whole_parameters(model))

    for layer in model.modules():
        if isinstance(layer, nn.Linear):
            layer.register_forward_hook(look)
    fn(model, init_device_mesh("cpu", (world_size,)))
    model(torch.ones(2, 2))
    afterwards = _whole_parameters(model)
    why = ""
    if afterwards > 0:
        why = "Something stays whole after forward: which group does FSDP keep?"
    return Seen(f"whole at each layer {seen}, afterwards {afterwards}", why)


def _whole_parameters(model):
    """How many numbers of a model are not divided; a divided parameter is a DTensor."""
    whole = 0
    for parameter in model.parameters():
        if not hasattr(parameter, "to_local"):
            whole += parameter.numel()
    return whole


def _world_size(rank, n, case):
    """The number of ranks."""
    return (n,)


@exercise("50", worlds=(2, 4), cases=(0,), given=_world_size, trial=_try_sharding)
def shard_model(model, mesh):
    """Call `fully_shard` on the parts of a model, so that no more than one layer is whole at any
    time.

    The model has `model.embedding`, a sequence `model.blocks`, and `model.head`. While a layer
    runs, only its own parameters are whole, and between forward and backward none at all. The check
    counts the numbers that are whole after each layer has run, and at the end.

    Title: 4.1 No more than one layer
    Hint: A call `fully_shard(module, mesh=mesh)` makes one group of all parameters of the module
    that no call has taken before.
    Hint: Embedding and head are layers like any other: give each its own group.
    Hint: Call it on the model last, even if nothing is left for the root: without a root, each part
    is a root itself.
    """
    from torch.distributed.fsdp import fully_shard

    for part in (model.embedding, *model.blocks, model.head, model):
        fully_shard(part, mesh=mesh)


@question("50", 3.5)
def whole_after_forward(answer):
    """A model has 10 blocks with 1 GB of parameters each, and 2 GB in its embeddings and output
    layer. On 8 ranks `fully_shard` is called on each block, and then on the model. How many GB of
    parameters are on a rank between forward and backward?

    Title: 4.2 Between forward and backward
    Hint: Each rank keeps its shards of everything, all the time.
    Hint: Which parameters are also whole when the last block has been freed?

    Not 1.5: Those are the shards. Is nothing whole after forward?
    Not 2.0: Those are the root's own. Where are the shards of the blocks?
    Not 3.25: The root's shard stays where it is while the root is whole.
    Not 4.5: The last block was freed when its forward ended.
    Not 12.0: That would be one group for the whole model.

    Why: The shards are 12 / 8 = 1.5 GB, and in addition the root's 2 GB are whole until backward.
    """


def _try_saving_shards(fn, world_size):
    """In how many pieces the weight of a divided layer was saved, and what a whole layer loads."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.fsdp import fully_shard

    # with a name of its own: of equal meshes, DTensor caches the groups of the first, which may be
    # gone
    mesh = init_device_mesh("cpu", (world_size,), mesh_dim_names=(dist.group.WORLD.group_name,))
    layer = nn.Embedding.from_pretrained(torch.arange(24.0).view(8, 3), freeze=False)
    with tempfile.TemporaryDirectory() as own:
        folder = gathered(own)[0]
        fn(fully_shard(layer, mesh=mesh), folder)
        dist.barrier()  # where the others wait for a rank that saves alone
        whole = {"model": {"weight": torch.zeros(8, 3)}}
        dcp.load(whole, checkpoint_id=folder)
        metadata = dcp.FileSystemReader(folder).read_metadata()
        saved = metadata.state_dict_metadata["model.weight"]
        # all ranks say what rank 0 has read
        pieces = gathered(Seen(f"saved in pieces: {len(saved.chunks)}"))[0]
        return pieces, whole["model"]["weight"]


@exercise(
    "50",
    worlds=(2, 4),
    cases=(0,),
    given=_world_size,
    trial=_try_saving_shards,
    seconds=30.0,
)
def save_shards(model, folder):
    """Save the parameters of a model that `fully_shard` has divided, as "model", each rank its own
    shards.

    `folder` is the checkpoint's, the same on every rank. The check loads it into a model that is
    whole.

    Title: 5.1 Save a divided model
    Hint: `get_model_state_dict(model)`, of `torch.distributed.checkpoint.state_dict`, has this
    rank's shards.
    Hint: `dcp.save({"model": ...}, checkpoint_id=folder)`, where dcp is
    `torch.distributed.checkpoint`: on all ranks.
    """
    import torch.distributed.checkpoint as dcp

    dcp.save({"model": model.state_dict()}, checkpoint_id=folder)


@exercise(
    "50",
    cases=(((3, 2), 1.0), ((4,), 1e3), ((1, 5), 12.0)),
    given=_shards_and_norm,
    limits=Limits(calls=1, largest=8),
)
def clip_shards(shards, max_norm):
    """Scale the shards of all ranks in place so that the norm of the whole gradient is at most
    `max_norm`.

    If the norm is not larger, nothing changes. Return the norm before the scaling, as a number. A
    rank may have no shard. One collective call with a single number must be enough.

    Title: 6.1 Clip a divided gradient
    Hint: The norm is the root of the sum of all squares, and sums may be added over ranks.
    Hint: Scale by `max_norm / norm` only where that is below 1.

    Limit: Which single number do the others need from a rank?
    """
    squares = sum(shard.square().sum() for shard in shards)
    norm = sum(gathered(float(squares))) ** 0.5
    for shard in shards:
        shard *= min(1.0, max_norm / norm)
    return norm
