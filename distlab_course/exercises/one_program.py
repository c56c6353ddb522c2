"""The exercises of lab 54: a plan, accumulation, clipping, and resuming on a mesh of ranks."""

import tempfile
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from distlab.checking import Seen, exercise, gathered, nothing, question
from distlab_course.sizes import Size

SMALL = Size(width=16, layers=1, heads=4, hidden=32, kv_heads=4, vocabulary=8)
# sizes of the gradients of the two stages in `clip_across_stages`
FIRST_NORM = 3.0
SECOND_NORM = 4.0


def _own_name():
    """A name for a dimension of a mesh that no mesh before had.

    Of equal meshes, DTensor caches the groups of the first, which may be gone.
    """
    return dist.group.WORLD.group_name


def _attention_plan():
    """The plan of the first half of a block, as in the lab."""
    from torch.distributed.tensor import Replicate, Shard, parallel

    column = parallel.ColwiseParallel()
    return {
        "attention_norm": parallel.SequenceParallel(),
        "attention": parallel.PrepareModuleInput(
            input_layouts=Shard(1), desired_input_layouts=Replicate()
        ),
        "attention.wq": column,
        "attention.wk": column,
        "attention.wv": column,
        "attention.wo": parallel.RowwiseParallel(output_layouts=Shard(1)),
    }


def _try_plan(fn):
    """A rank's positions of the output of a block, and what the block sends and divides."""
    from torch.distributed.tensor.debug import CommDebugMode
    from torch.distributed.tensor.parallel import parallelize_module

    # with DTensor, which takes a second to import: whoever checks any exercise imports this file
    from distlab_course.llama import Block

    n = dist.get_world_size()
    mesh = init_device_mesh("cpu", (n,), mesh_dim_names=(_own_name(),))
    torch.manual_seed(5)
    block = Block(SMALL)
    parallelize_module(block, mesh, _attention_plan() | fn())
    x = torch.arange(2.0 * 8 * SMALL.width).sin().reshape(2, 8, SMALL.width)
    with CommDebugMode() as comm:
        y = block(x.chunk(n, dim=1)[dist.get_rank()])
    weights = [layer.weight for layer in block.feed_forward.children()]
    divided = [weight for weight in weights if hasattr(weight, "to_local")]
    return y, Seen(
        f"collectives in forward: {comm.get_total_counts()}; "
        f"matrices divided: {len(divided)} of {len(weights)}"
    )


@exercise("54", worlds=(2, 4), cases=(0,), given=nothing, trial=_try_plan)
def feed_forward_plan():
    """Return the plan for the second half of a block: `ffn_norm`, `feed_forward`, and its matrices
    `w1`, `w2` and `w3`.

    The half gets this rank's positions and returns this rank's positions. It computes
    `w2(silu(w1(x)) * w3(x))`, and a forward pass of the whole block makes four collective calls.

    Title: 3.1 The other half of the plan
    Hint: The plan of attention has the same shape. Which of `w1`, `w2` and `w3` are like `wq`, and
    which one is like `wo`?
    Hint: `ffn_norm` works on each position by itself, so it needs no other rank:
    `SequenceParallel()`.
    Hint: `"feed_forward"` gathers the positions with `PrepareModuleInput`, and
    `"feed_forward.w2"` scatters their sums.
    """
    from torch.distributed.tensor import Replicate, Shard, parallel

    column = parallel.ColwiseParallel()
    return {
        "ffn_norm": parallel.SequenceParallel(),
        "feed_forward": parallel.PrepareModuleInput(
            input_layouts=Shard(1), desired_input_layouts=Replicate()
        ),
        "feed_forward.w1": column,
        "feed_forward.w3": column,
        "feed_forward.w2": parallel.RowwiseParallel(output_layouts=Shard(1)),
    }


@question("54", 260)
def gathers_of_a_step(answer):
    """A model has 32 blocks. `fully_shard(block, reshard_after_forward=True)` was called on each of
    them, and then `fully_shard(model)`, which keeps what is outside the blocks until the end of the
    backward pass. A step has 4 micro-batches, one forward and backward pass each. How many
    all-gathers does a rank call in the step?

    Title: 5.1 All-gathers of a step
    Hint: How many groups of parameters are there, and how often is each of them gathered for one
    micro-batch?
    Hint: Section 5 counted 9 for 4 blocks.

    Not 65: That is one micro-batch.
    Not 256: What is outside the blocks is gathered as well.
    Not 264: What is outside the blocks is not gathered again for the backward pass.
    Not 132: That is what `reshard_after_forward=False` needs.
    Not 33: That would need memory for all parameters from the first micro-batch to the last.
    Otherwise: Count the groups, the gathers of each in one micro-batch, and the micro-batches.

    Why: 32 blocks twice and the rest once are 65 for each of the 4 micro-batches.
    """


def _try_accumulating(fn, count):
    """How often gradients were reduced too early, and the gradient of a weight."""
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=(_own_name(),))
    model = fully_shard(nn.Linear(1, 4, bias=False), mesh=mesh)
    early = []

    def look(*_):
        if model.weight.grad is not None:
            early.append(True)

    # before FSDP's own hook, after which the weight is whole
    model.register_forward_pre_hook(look, prepend=True)
    fn(model, _micro_batches(count), _mean_product)
    if model.weight.grad is None:
        return Seen("no gradient", "Which backward pass reduces it?"), None
    why = ""
    if early:
        why = "Only the last backward pass may reduce and scatter."
    seen = Seen(f"reductions before the last micro-batch: {len(early)}", why)
    return seen, model.weight.grad.full_tensor()[0]


def _micro_batches(count):
    """A rank's micro-batches: the gradient of micro-batch i is 10 * rank + i + 1."""
    pairs = []
    for number in range(count):
        inputs = torch.full((2, 1), 10.0 * dist.get_rank() + number + 1)
        pairs.append((inputs, torch.ones(2, 4)))
    return pairs


def _mean_product(scores, targets):
    """A loss whose gradient is easy to read: the mean of scores times targets."""
    return (scores * targets).sum(dim=1).mean()


def _one_argument(rank, n, case):
    """The case alone."""
    return (case,)


@exercise("54", worlds=(2, 4), cases=(3, 5), given=_one_argument, trial=_try_accumulating)
def accumulate(model, micro_batches, loss_of):
    """Leave the gradient of the mean loss over all micro-batches in a model that `fully_shard` has
    divided.

    `micro_batches` are pairs of inputs and targets of equal size, this rank's own, and
    `loss_of(model(inputs), targets)` is the mean of one of them. Gradients may be reduced and
    scattered only in the last backward pass. The check uses 3 and 5 micro-batches.

    Title: 7.1 Accumulate
    Hint: `model.set_requires_gradient_sync(False)` before a backward pass keeps its gradients on
    the rank.
    Hint: The gradients of several backward passes are added. What must each loss be divided by?
    Hint: The last backward pass must reduce: `model.set_requires_gradient_sync(True)`.
    """
    count = len(micro_batches)
    for number, (inputs, targets) in enumerate(micro_batches):
        model.set_requires_gradient_sync(number == count - 1)
        loss = loss_of(model(inputs), targets) / count
        loss.backward()


def _try_clipping(fn, most):
    """The norm that a clipping function returns, and the whole gradient of a stage afterwards."""
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import distribute_tensor

    data = _own_name()
    shape = (2, dist.get_world_size() // 2)
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("pipeline", data))
    norm = (FIRST_NORM, SECOND_NORM)[mesh.get_local_rank("pipeline")]
    stage = fully_shard(nn.Linear(1, 4, bias=False), mesh=mesh[data])
    whole = torch.full((4, 1), norm / 2)
    weight = stage.weight
    weight.grad = distribute_tensor(
        whole, weight.device_mesh, weight.placements, src_data_rank=None
    )
    found = fn(list(stage.parameters()), mesh, most)
    if hasattr(found, "to_local"):
        found = found.to_local()
    return torch.as_tensor(found, dtype=torch.float32), weight.grad.full_tensor()


@exercise("54", worlds=(2, 4), cases=(2.5, 3.5, 10.0), given=_one_argument, trial=_try_clipping)
def clip_across_stages(parameters, mesh, most):
    """Scale the gradients of all stages of a pipeline by one factor, so that their norm is at most
    `most`, and return the norm before.

    `parameters` are those of this rank's stage, and their gradients are DTensors over the other
    dimensions of the mesh. `mesh.get_group("pipeline")` is the group of the ranks that have the
    other stages.

    Title: 7.2 Clip across the pipeline
    Hint: `nn.utils.get_total_norm(gradients)` is the norm of this stage, as a DTensor.
    Hint: Its local number is only this rank's share: `full_tensor()` makes it the norm of the
    stage.
    Hint: Norms cannot be added, but their squares can: one all-reduce over the pipeline's group.
    Hint: `nn.utils.clip_grads_with_norm_(parameters, most, norm)` scales by a norm that is known.
    """
    gradients = [parameter.grad for parameter in parameters]
    squared = nn.utils.get_total_norm(gradients).full_tensor().square()
    dist.all_reduce(squared, group=mesh.get_group("pipeline"))
    norm = squared.sqrt()
    nn.utils.clip_grads_with_norm_(parameters, most, norm)
    return norm


def _trained():
    """Two layers and their optimizer after a step, the same wherever they are made."""
    torch.manual_seed(7)
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model(torch.ones(3, 4)).square().sum().backward()
    optimizer.step()
    return model, optimizer


def _save(model, optimizer, folder):
    """Save all of it, as one process does."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict

    flat = StateDictOptions(flatten_optimizer_state_dict=True)
    model_states, optimizer_states = get_state_dict(model, optimizer, options=flat)
    states = {"model": model_states, "optimizer": optimizer_states}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that one process saves, which is meant
        dcp.save(states, checkpoint_id=folder, no_dist=True)


def _divided():
    """Two layers that are new and divided over all ranks, and their optimizer."""
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=(_own_name(),))
    torch.manual_seed(4)
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model, torch.optim.AdamW(model.parameters(), lr=0.1)


def _try_resuming(fn):
    """Whether divided layers and their optimizer are those of a checkpoint."""
    saved, its_optimizer = _trained()
    with tempfile.TemporaryDirectory() as own:
        folder = Path(gathered(own)[0]) / "step_1"
        if dist.get_rank() == 0:
            _save(saved, its_optimizer, folder)
        dist.barrier()
        model, optimizer = _divided()
        fn(model, optimizer, folder)
        dist.barrier()  # where the others still read
    found = {"weights": [], "averages": []}
    for parameter, right in zip(model.parameters(), saved.parameters(), strict=True):
        found["weights"].append(torch.equal(parameter.detach().full_tensor(), right))
        average = optimizer.state.get(parameter, {}).get("exp_avg")
        is_right = False
        if average is not None:
            is_right = torch.equal(average.full_tensor(), its_optimizer.state[right]["exp_avg"])
        found["averages"].append(is_right)
    loaded = [name for name, each in found.items() if all(each)]
    why = ""
    if loaded == ["weights"]:
        why = "The next steps of Adam begin without the averages that it had."
    return Seen(f"loaded: {', '.join(loaded) or 'nothing'}", why)


@exercise("54", worlds=(2, 4), cases=(0,), given=nothing, trial=_try_resuming, seconds=30.0)
def resume(model, optimizer, folder):
    """Load the model and the optimizer from a checkpoint that another number of ranks has saved.

    The checkpoint in `folder` has the entries "model" and "optimizer", as `get_state_dict` makes
    them with `StateDictOptions(flatten_optimizer_state_dict=True)`. `fully_shard` has divided this
    model over all ranks, and its optimizer has not made a step yet.

    Title: 8.1 Resume on another mesh
    Hint: `dcp.load` fills the tensors of a state dict that it is given, each rank its own parts, so
    begin with `get_state_dict(model, optimizer, options=...)`.
    Hint: Afterwards `set_state_dict` gives what was loaded to the model and the optimizer.
    Hint: Its arguments are `model_state_dict=` and `optim_state_dict=`.
    """
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import (
        StateDictOptions,
        get_state_dict,
        set_state_dict,
    )

    flat = StateDictOptions(flatten_optimizer_state_dict=True)
    model_states, optimizer_states = get_state_dict(model, optimizer, options=flat)
    states = {"model": model_states, "optimizer": optimizer_states}
    dcp.load(states, checkpoint_id=folder)
    set_state_dict(
        model,
        optimizer,
        model_state_dict=states["model"],
        optim_state_dict=states["optimizer"],
        options=flat,
    )
