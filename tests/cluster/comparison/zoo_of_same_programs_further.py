"""Right programs that are hard to compare; test_same_programs.py compares them."""

import copy

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.nn.utils import parametrizations
from torch.optim.swa_utils import AveragedModel

from tests.cluster.comparison.zoo_of_same_programs import (
    descend,
    examples,
    my_examples,
    network,
    same,
    share,
)


def wide(features=200):
    """Matrices with more elements than a sketch has sums."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(8, features),
        nn.Tanh(),
        nn.Linear(features, features, bias=False),
        nn.Linear(features, 1),
    )


@same(parameters=5)
def with_wide_layers(rank, world_size):
    model = DDP(wide(), bucket_cap_mb=0.05)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    descend(model, optimizer, *my_examples(rank, world_size))


@same(parameters=5, worlds=(1, 2, 4))
def with_wide_layers_in_uneven_shards(rank, world_size):
    """Four ranks have 51, 51, 51 and 50 rows of each matrix."""
    model = wide(203)
    for layer in (model[0], model[2], model[3]):
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    descend(model, optimizer, *my_examples(rank, world_size))


@same(parameters=4)
def with_wide_layers_in_tensor_parallel(rank, world_size):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 1024), nn.ReLU(), nn.Linear(1024, 8))
    mesh = init_device_mesh("cpu", (world_size,))
    model = parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    inputs = examples()[0]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    descend(model, optimizer, inputs, inputs.flip(1))


@same(steps=40)
def for_forty_steps_with_a_high_rate(rank, world_size):
    """What rounds differently grows from step to step."""
    inputs, targets = my_examples(rank, world_size, 32)
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    descend(model, optimizer, inputs, targets, steps=40)


@same(steps=10, parameters=14)
def a_transformer_with_adam(rank, world_size):
    """The gradient of a key's bias is a sum that cancels, and Adam makes full steps of it."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    model = DDP(nn.Sequential(layer, nn.Linear(16, 4)))
    rows = torch.randn(8, 5, 16)
    labels = torch.randint(4, (8, 5))
    mine = share(rank, world_size, 8)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(10):
        optimizer.zero_grad()
        logits = model(rows[mine])
        F.cross_entropy(logits.flatten(0, 1), labels[mine].flatten()).backward()
        optimizer.step()


@same(parameters=12)
def a_transformer_with_dropout_and_the_time_first(rank, world_size):
    """Rows are in the second dimension, as nn.Transformer has them by default."""
    torch.manual_seed(0)
    model = DDP(nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1))
    rows = torch.randn(5, 8, 16)
    torch.manual_seed(50 + rank)
    mine = rows[:, share(rank, world_size, 8)]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        (model(mine) - mine.roll(1, 0)).square().mean().backward()
        optimizer.step()


@same()
def with_master_weights(rank, world_size):
    """The model is in bfloat16; the optimizer has a copy of the parameters in float32."""
    inputs, targets = my_examples(rank, world_size)
    model = network().bfloat16()
    masters = [p.detach().float().requires_grad_() for p in model.parameters()]
    optimizer = torch.optim.AdamW(masters, lr=0.01)
    for _ in range(3):
        model.zero_grad()
        F.mse_loss(model(inputs.bfloat16()).float(), targets).backward()
        for parameter, master in zip(model.parameters(), masters, strict=True):
            master.grad = parameter.grad.float()
            dist.all_reduce(master.grad)
            master.grad /= world_size
        optimizer.step()
        with torch.no_grad():
            for parameter, master in zip(model.parameters(), masters, strict=True):
                parameter.copy_(master)


@same()
def in_double_precision(rank, world_size):
    inputs, targets = my_examples(rank, world_size)
    model = DDP(network().double())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    descend(model, optimizer, inputs.double(), targets.double())


@same(parameters=3)
def with_sparse_gradients(rank, world_size):
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.EmbeddingBag(50, 8, sparse=True), nn.Linear(8, 3)))
    tokens = torch.randint(50, (16, 4))
    labels = torch.randint(3, (16,))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        F.cross_entropy(model(tokens[rank::world_size]), labels[rank::world_size]).backward()
        optimizer.step()


@same(parameters=5)
def with_parametrized_layers(rank, world_size):
    torch.manual_seed(0)
    model = nn.Sequential(
        parametrizations.weight_norm(nn.Linear(8, 16)),
        nn.Tanh(),
        parametrizations.spectral_norm(nn.Linear(16, 1)),
    )
    model = DDP(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    descend(model, optimizer, *my_examples(rank, world_size))


@same(parameters=6)
def with_frozen_batch_normalisation(rank, world_size):
    """Its statistics stay as they are, so the rows of others do not matter."""
    inputs, targets = my_examples(rank, world_size)
    torch.manual_seed(0)
    norm = nn.BatchNorm1d(16)
    norm.running_mean.normal_()
    model = DDP(nn.Sequential(nn.Linear(8, 16), norm, nn.Tanh(), nn.Linear(16, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        model.train()
        norm.eval()
        descend(model, optimizer, inputs, targets, steps=1)


@same()
def with_noise_from_a_common_seed(rank, world_size):
    """Langevin dynamics: all ranks add the same noise to the averaged gradient."""
    inputs, targets = my_examples(rank, world_size)
    model = DDP(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(77)
    for _ in range(3):
        optimizer.zero_grad()
        F.mse_loss(model(inputs), targets).backward()
        for parameter in model.parameters():
            parameter.grad += 0.01 * torch.randn_like(parameter)
        optimizer.step()


@same()
def with_equal_dropout_in_tensor_parallel(rank, world_size):
    """Ranks that share the work of a row must drop the same features of it."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8), nn.Dropout(0.3))
    mesh = init_device_mesh("cpu", (world_size,))
    model = parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    inputs = examples()[0]
    torch.manual_seed(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    descend(model, optimizer, inputs, inputs.flip(1))


@same()
def called_twice_for_each_step(rank, world_size):
    """Siamese: one network, two halves of each row."""
    inputs, targets = my_examples(rank, world_size)
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 2)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        left, right = model(inputs[:, :4]), model(inputs[:, 4:])
        F.mse_loss((left * right).sum(1, keepdim=True), targets).backward()
        optimizer.step()


@same()
def with_two_losses_and_two_backward_passes(rank, world_size):
    inputs, targets = my_examples(rank, world_size)
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 2)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        for column in range(2):
            output = model(inputs)[:, column : column + 1]
            F.l1_loss(output, targets * (column + 1)).backward()
        nn.utils.clip_grad_value_(model.parameters(), 0.05)
        optimizer.step()


class Temperature(nn.Module):
    def __init__(self):
        super().__init__()
        self.network = network()
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.never_used = nn.Parameter(torch.ones(3))

    def forward(self, batch):
        return self.network(batch["rows"]) * self.scale


@same(parameters=6)
def with_a_single_number_and_a_dictionary(rank, world_size):
    """A parameter without dimensions, one without a gradient, and a batch that is a dictionary."""
    inputs, targets = my_examples(rank, world_size, 4)
    model = DDP(Temperature(), find_unused_parameters=True)
    average = AveragedModel(model.module)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        F.mse_loss(model({"rows": inputs}), targets).backward()
        optimizer.step()
        average.update_parameters(model.module)


class Experts(nn.Module):
    """Each row goes to one of four experts."""

    def __init__(self):
        super().__init__()
        self.router = nn.Linear(8, 4)
        self.experts = nn.ModuleList(nn.Linear(8, 1) for _ in range(4))

    def forward(self, x):
        weights, chosen = self.router(x).softmax(-1).max(-1)
        outputs = torch.stack([expert(x) for expert in self.experts])
        return outputs[chosen, torch.arange(len(x))] * weights[:, None]


@same(steps=8, parameters=10)
def with_a_mixture_of_experts(rank, world_size):
    inputs, targets = my_examples(rank, world_size)
    torch.manual_seed(0)
    model = DDP(Experts())
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    descend(model, optimizer, inputs, targets, steps=8)


@same()
def with_a_functional_call(rank, world_size):
    """The module is only a formula; its parameters are in a dictionary."""
    inputs, targets = my_examples(rank, world_size)
    model = network()
    weights = {name: p.detach().clone().requires_grad_() for name, p in model.named_parameters()}
    optimizer = torch.optim.SGD(weights.values(), lr=0.1)
    for _ in range(3):
        output = torch.func.functional_call(model, weights, (inputs,))
        optimizer.zero_grad()
        F.mse_loss(output, targets).backward()
        for weight in weights.values():
            dist.all_reduce(weight.grad)
            weight.grad /= world_size
        optimizer.step()


@same()
def with_objects_from_rank_0(rank, world_size):
    """Rank 0 makes the model, and sends its state as an object."""
    inputs, targets = my_examples(rank, world_size)
    states = [network().state_dict() if rank == 0 else None]
    dist.broadcast_object_list(states, src=0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    model.load_state_dict(states[0])
    model = DDP(model)
    before = copy.deepcopy(model.module)
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.05)
    descend(model, optimizer, inputs, targets)
    assert not torch.equal(before[0].weight, model.module[0].weight)


@same(parameters=1)
def with_a_flat_shard_for_the_optimizer(rank, world_size):
    """ZeRO-1 by hand: gradients are scattered, each rank steps its part of one long vector."""
    inputs, targets = my_examples(rank, world_size)
    model = network()
    flat = nn.utils.parameters_to_vector(model.parameters()).detach()
    flat = F.pad(flat, (0, -len(flat) % 4))
    shard = flat.chunk(world_size)[rank].clone().requires_grad_()
    optimizer = torch.optim.Adam([shard], lr=0.01)
    for _ in range(3):
        model.zero_grad()
        F.mse_loss(model(inputs), targets).backward()
        gradient = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
        gradient = F.pad(gradient, (0, len(flat) - len(gradient)))
        dist.all_reduce(gradient)
        shard.grad = gradient.chunk(world_size)[rank] / world_size
        optimizer.step()
        pieces = [torch.empty_like(shard) for _ in range(world_size)]
        dist.all_gather(pieces, shard.detach())
        whole = torch.cat(pieces)[: sum(parameter.numel() for parameter in model.parameters())]
        nn.utils.vector_to_parameters(whole, model.parameters())
