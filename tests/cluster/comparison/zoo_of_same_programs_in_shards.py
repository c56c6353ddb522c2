"""Right programs whose model is sharded or in stages; test_same_programs.py compares them."""

import copy

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
)
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)

from tests.cluster.comparison.zoo_of_same_programs import (
    LanguageModel,
    descend,
    examples,
    my_examples,
    network,
    same,
    share,
)


def sharded(model, **options):
    """Each layer with parameters, and the rest, in units of FSDP2."""
    for layer in model.children():
        if list(layer.parameters()):
            fully_shard(layer, **options)
    return fully_shard(model, **options)


@same(worlds=(1, 2, 4))
def with_fsdp(rank, world_size):
    inputs, targets = my_examples(rank, world_size)
    model = network()
    fully_shard(model[0])
    fully_shard(model[2])
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for _ in range(3):
        optimizer.zero_grad()
        loss = F.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()


@same()
def with_fsdp_that_keeps_parameters(rank, world_size):
    """Parameters are gathered once for forward and backward: ZeRO-2."""
    model = sharded(network(), reshard_after_forward=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    descend(model, optimizer, *my_examples(rank, world_size))


@same()
def with_fsdp_in_one_unit(rank, world_size):
    model = fully_shard(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    descend(model, optimizer, *my_examples(rank, world_size))


@same()
def with_fsdp_in_replicas(rank, world_size):
    """HSDP: shards within a pair of ranks, replicas of both pairs."""
    replicas = min(2, world_size)
    mesh = init_device_mesh(
        "cpu", (replicas, world_size // replicas), mesh_dim_names=("replicas", "shards")
    )
    model = sharded(network(), mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    descend(model, optimizer, *my_examples(rank, world_size))


@same()
def with_fsdp_in_mixed_precision(rank, world_size):
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    inputs, targets = my_examples(rank, world_size)
    model = sharded(network(), mp_policy=policy)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        F.mse_loss(model(inputs).float(), targets).backward()
        optimizer.step()


@same()
def with_fsdp_and_clipped_gradients(rank, world_size):
    inputs, targets = my_examples(rank, world_size)
    model = sharded(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(3):
        optimizer.zero_grad()
        F.mse_loss(model(inputs), targets).backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), max_norm=0.1)
        assert norm.full_tensor() > 0.1
        optimizer.step()


@same()
def with_fsdp_that_accumulates(rank, world_size):
    inputs, targets = my_examples(rank, world_size)
    model = sharded(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        for number in range(2):
            model.set_requires_gradient_sync(number == 1)
            output = model(inputs.chunk(2)[number])
            (F.mse_loss(output, targets.chunk(2)[number]) / 2).backward()
        optimizer.step()


@same(parameters=3)
def with_fsdp_and_tied_embeddings(rank, world_size):
    torch.manual_seed(3)
    tokens = torch.randint(20, (8, 6))
    mine = tokens[share(rank, world_size, 8)]
    model = fully_shard(LanguageModel())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for _ in range(3):
        optimizer.zero_grad()
        logits = model(mine[:, :-1])
        F.cross_entropy(logits.flatten(0, 1), mine[:, 1:].flatten()).backward()
        optimizer.step()


@same(worlds=(1, 2, 4))
def with_tensor_parallel_layers(rank, world_size):
    """All ranks have all rows, and of each matrix a part of its columns or rows."""
    mesh = init_device_mesh("cpu", (world_size,))
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    model = parallelize_module(network(), mesh, plan)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    descend(model, optimizer, *examples())


class Block(nn.Module):
    """What a transformer does to each position: a norm and two layers, around which x passes."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.up = nn.Linear(8, 16)
        self.down = nn.Linear(16, 8)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))


@same(parameters=6)
def with_sequence_parallel_norms(rank, world_size):
    """Between the sharded matrices, each rank has a part of the positions."""
    mesh = init_device_mesh("cpu", (world_size,))
    torch.manual_seed(0)
    plan = {
        "": PrepareModuleInput(input_layouts=Shard(1), desired_input_layouts=Shard(1)),
        "norm": SequenceParallel(),
        "up": ColwiseParallel(input_layouts=Shard(1)),
        "down": RowwiseParallel(output_layouts=Shard(1), use_local_output=False),
    }
    model = parallelize_module(Block(), mesh, plan)
    sequences = torch.randn(3, 8, 8)
    mine = sequences[:, share(rank, world_size, 8)]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        loss = model(mine).square().mean()
        loss.backward()
        optimizer.step()


@same()
def with_tensor_parallel_and_fsdp(rank, world_size):
    """Pairs of ranks share each row's work; both pairs have rows of their own."""
    model_ranks = min(2, world_size)
    mesh = init_device_mesh(
        "cpu", (world_size // model_ranks, model_ranks), mesh_dim_names=("data", "model")
    )
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    model = parallelize_module(network(), mesh["model"], plan)
    model = sharded(model, mesh=mesh["data"])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    part = mesh["data"].get_local_rank()
    descend(model, optimizer, *my_examples(part, mesh["data"].size()))


@same(parameters=2)
def with_distributed_tensors(rank, world_size):
    """Weights that are DTensors, without a module."""
    mesh = init_device_mesh("cpu", (world_size,))
    torch.manual_seed(0)
    first = distribute_tensor(torch.randn(8, 16), mesh, [Shard(1)]).requires_grad_()
    second = distribute_tensor(torch.randn(16, 1), mesh, [Shard(0)]).requires_grad_()
    inputs, targets = (distribute_tensor(one, mesh) for one in examples())
    optimizer = torch.optim.SGD([first, second], lr=0.01)
    for _ in range(3):
        optimizer.zero_grad()
        loss = ((torch.relu(inputs @ first) @ second - targets) ** 2).mean()
        loss.backward()
        optimizer.step()
        assert isinstance(first, DTensor)


def stage_of(rank, world_size):
    """This rank's part of four layers."""
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(4)]
    return nn.Sequential(*layers[share(rank, world_size, 4)])


def take_step(schedule, rank, world_size, inputs, targets):
    """One step of a pipeline."""
    if world_size == 1:
        schedule.step(inputs, target=targets)
    elif rank == 0:
        schedule.step(inputs)
    elif rank == world_size - 1:
        schedule.step(target=targets)
    else:
        schedule.step()


@same(parameters=8)
def a_pipeline_by_gpipe(rank, world_size):
    inputs = examples()[0]
    model = stage_of(rank, world_size)
    stage = PipelineStage(model, rank, world_size, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, n_microbatches=4, loss_fn=F.mse_loss)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        take_step(schedule, rank, world_size, inputs, inputs.flip(0))
        optimizer.step()


@same(parameters=8)
def a_pipeline_with_one_forward_and_one_backward(rank, world_size):
    inputs = examples()[0]
    model = stage_of(rank, world_size)
    stage = PipelineStage(model, rank, world_size, torch.device("cpu"))
    schedule = Schedule1F1B(stage, n_microbatches=4, loss_fn=F.mse_loss)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(3):
        take_step(schedule, rank, world_size, inputs, inputs.flip(0))
        optimizer.step()
        optimizer.zero_grad()


@same(parameters=8)
def a_pipeline_in_two_replicas(rank, world_size):
    """Two pipelines of two stages, each with half of the rows; replicas average by hand."""
    replicas = min(2, world_size)
    mesh = init_device_mesh(
        "cpu", (replicas, world_size // replicas), mesh_dim_names=("data", "stages")
    )
    place = mesh["stages"].get_local_rank()
    stages = mesh["stages"].size()
    inputs = examples()[0]
    targets = inputs.flip(0)
    mine = share(mesh["data"].get_local_rank(), replicas)
    model = stage_of(place, stages)
    group = mesh["stages"].get_group()
    stage = PipelineStage(model, place, stages, torch.device("cpu"), group=group)
    schedule = ScheduleGPipe(stage, n_microbatches=2, loss_fn=F.mse_loss)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        take_step(schedule, place, stages, inputs[mine], targets[mine])
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad, group=mesh["data"].get_group())
            parameter.grad /= replicas
        optimizer.step()


@same(parameters=24)
def a_pipeline_of_equal_layers(rank, world_size):
    """Copies of one block, as nn.TransformerEncoder makes them; a norm begins with ones."""
    torch.manual_seed(0)
    block = Block()
    blocks = [copy.deepcopy(block) for _ in range(4)]
    model = nn.Sequential(*blocks[share(rank, world_size, 4)])
    stage = PipelineStage(model, rank, world_size, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, n_microbatches=4, loss_fn=F.mse_loss)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    inputs = examples()[0]
    for _ in range(3):
        optimizer.zero_grad()
        take_step(schedule, rank, world_size, inputs, inputs.flip(0))
        optimizer.step()


class Tokens(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(16, 8)
        self.output = nn.Linear(8, 16)

    def forward(self, tokens):
        return self.output(torch.relu(self.embedding(tokens)))


@same(parameters=3)
def with_a_vocabulary_in_shards(rank, world_size):
    """Embedding, output and cross entropy are split over the ranks."""
    mesh = init_device_mesh("cpu", (world_size,))
    torch.manual_seed(0)
    plan = {
        "embedding": RowwiseParallel(input_layouts=Replicate()),
        "output": ColwiseParallel(output_layouts=Shard(-1), use_local_output=False),
    }
    model = parallelize_module(Tokens(), mesh, plan)
    tokens = torch.randint(16, (4, 7))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        with loss_parallel():
            logits = model(tokens[:, :-1]).flatten(0, 1)
            F.cross_entropy(logits, tokens[:, 1:].flatten()).backward()
        optimizer.step()


@same(parameters=16)
def a_pipeline_with_two_stages_on_each_rank(rank, world_size):
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(8)]
    count = 2 * world_size
    models = []
    for place in (rank, rank + world_size):
        models.append(nn.Sequential(*layers[share(place, count, 8)]))
    stages = [
        PipelineStage(model, rank + number * world_size, count, torch.device("cpu"))
        for number, model in enumerate(models)
    ]
    schedule = ScheduleInterleaved1F1B(stages, n_microbatches=4, loss_fn=F.mse_loss)
    parameters = [parameter for model in models for parameter in model.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    inputs, _ = examples()
    for _ in range(3):
        optimizer.zero_grad()
        given = [inputs] if rank == 0 else []
        if rank == world_size - 1:
            schedule.step(*given, target=inputs.flip(0))
        else:
            schedule.step(*given)
        optimizer.step()


@same()
def with_fsdp_that_is_compiled(rank, world_size):
    model = fully_shard(network())
    compiled = torch.compile(model, backend="eager")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    descend(compiled, optimizer, *my_examples(rank, world_size))
