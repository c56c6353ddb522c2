"""The exercises of lab 50: sharding with torch."""

import tempfile
from collections import OrderedDict

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from distlab.checking import Limits, Seen, exercise, gathered, numbers, question


def _shards_and_norm(rank, n, case):
    """A list of shards, none on rank 2, and the largest norm."""
    lengths, max_norm = case
    shards = []
    if rank != 2:
        for place, length in enumerate(lengths):
            shards += numbers(rank + place, n, length)
    return shards, max_norm


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

    Title: 2.1 No more than one layer
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

    Title: 2.2 Between forward and backward
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

    Title: 4.1 Save a divided model
    Hint: `get_model_state_dict(model)`, of `torch.distributed.checkpoint.state_dict`, has this
    rank's shards.
    Hint: `dcp.save({"model": ...}, checkpoint_id=folder)`, where dcp is
    `torch.distributed.checkpoint`: on all ranks.
    """
    import torch.distributed.checkpoint as dcp

    dcp.save({"model": model.state_dict()}, checkpoint_id=folder)


def _try_policy(fn, world_size, events):
    """The bytes of a number in each all-gather and reduce-scatter of a step, and in a shard."""
    blocks = nn.Sequential(*(nn.Linear(8, 8, bias=False) for _ in range(3)))
    layers = {"blocks": blocks, "head": nn.Linear(8, 8, bias=False)}
    model = nn.Sequential(OrderedDict(layers))
    fn(model, init_device_mesh("cpu", (world_size,)))
    begun = len(events)
    model(torch.ones(2, 8)).sum().backward()
    share = model.head.weight.numel() // world_size  # of each layer, in numbers
    sizes = {"all_gather": [], "reduce_scatter": []}
    for event in events[begun:]:
        if hasattr(event, "members"):  # a collective call
            sizes.setdefault(event.name, []).append(event.sent[0] // share)
    gathers = " ".join(map(str, sizes["all_gather"]))
    sums = " ".join(map(str, sizes["reduce_scatter"]))
    shard_bytes = model.head.weight.element_size()
    words = f"gathers {gathers} B, sums {sums} B, shards {shard_bytes} B"
    return Seen(words, _why_policy(sizes))


def _why_policy(sizes):
    """A question that leads to the cause of a wrong policy."""
    if len(sizes["all_gather"]) > 4:
        return "A block is gathered twice. After what should it stay whole?"
    if 2 in sizes["reduce_scatter"]:
        return "The gradients are summed in 16 bits. Which argument chooses another type?"
    return ""


@exercise("50", worlds=(2, 4), cases=(0,), given=_world_size, trial=_try_policy)
def mixed_zero_2(model, mesh):
    """Call `fully_shard` on each of `model.blocks` and on the model, for ZeRO-2 in mixed precision.

    In a step, each layer is gathered once, in bfloat16, and gradients are summed in float32. The
    shards stay in float32. The model also has `model.head`, which the root takes. The check counts
    the collective calls of a step and the bytes of each number in them.

    Title: 5.1 ZeRO-2 in mixed precision
    Hint: `mp_policy=MixedPrecisionPolicy(...)` is an argument of each call of `fully_shard`, also
    on the root.
    Hint: `param_dtype` is the type in which parameters are gathered, `reduce_dtype` that in which
    gradients are summed.
    Hint: `reshard_after_forward=False` keeps a block whole until its backward.
    """
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for part in (*model.blocks, model):
        fully_shard(part, mesh=mesh, mp_policy=policy, reshard_after_forward=False)


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

    Title: 5.2 Clip a divided gradient
    Hint: The norm is the root of the sum of all squares, and sums may be added over ranks.
    Hint: Scale by `max_norm / norm` only where that is below 1.

    Limit: Which single number do the others need from a rank?
    """
    squares = sum(shard.square().sum() for shard in shards)
    norm = sum(gathered(float(squares))) ** 0.5
    for shard in shards:
        shard *= min(1.0, max_norm / norm)
    return norm
