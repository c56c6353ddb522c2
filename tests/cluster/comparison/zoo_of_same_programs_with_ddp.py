"""Right programs with DistributedDataParallel; test_same_programs.py compares them."""

import copy

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.checkpoint import checkpoint

from tests.cluster.comparison.zoo_of_same_programs import (
    LanguageModel,
    descend,
    examples,
    my_examples,
    network,
    same,
    share,
)


@same(worlds=(1, 2, 4))
def with_ddp(rank, world_size):
    inputs, targets = my_examples(rank, world_size)
    model = DDP(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        loss = F.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()


@same()
def with_adam_momentum_and_decay(rank, world_size):
    model = DDP(network())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)
    descend(model, optimizer, *my_examples(rank, world_size))


@same()
def with_momentum_of_nesterov(rank, world_size):
    model = DDP(network(), gradient_as_bucket_view=True, static_graph=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
    descend(model, optimizer, *my_examples(rank, world_size))


@same(worlds=(1, 2, 4))
def accumulating_without_sync(rank, world_size):
    """Only the last of four micro-batches averages the gradients."""
    inputs, targets = my_examples(rank, world_size)
    model = DDP(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    micro_batches = list(zip(inputs.chunk(4), targets.chunk(4), strict=True))
    for _ in range(3):
        optimizer.zero_grad()
        with model.no_sync():
            for rows, expected in micro_batches[:-1]:
                (F.mse_loss(model(rows), expected) / 4).backward()
        rows, expected = micro_batches[-1]
        (F.mse_loss(model(rows), expected) / 4).backward()
        optimizer.step()


@same()
def accumulating_with_sync_each_time(rank, world_size):
    """Slower than with no_sync(), and as right."""
    inputs, targets = my_examples(rank, world_size)
    model = DDP(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        for rows, expected in zip(inputs.chunk(2), targets.chunk(2), strict=True):
            loss = F.mse_loss(model(rows), expected) / 2
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()


@same(worlds=(1, 2, 4))
def accumulating_less_on_more_ranks(rank, world_size):
    """The batch has eight micro-batches, so a rank of four has two of them."""
    passes = 8 // world_size
    inputs, targets = examples(32)
    micro_batches = list(zip(inputs.chunk(8), targets.chunk(8), strict=True))[rank::world_size]
    model = DDP(network())
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(3):
        optimizer.zero_grad()
        for number, (rows, expected) in enumerate(micro_batches):
            model.require_backward_grad_sync = number == passes - 1
            loss = F.mse_loss(model(rows), expected) / passes
            loss.backward()
        optimizer.step()


@same()
def with_clipped_gradients(rank, world_size):
    inputs, targets = my_examples(rank, world_size)
    model = DDP(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(3):
        optimizer.zero_grad()
        F.mse_loss(model(inputs), targets).backward()
        nn.utils.clip_grad_norm_(model.parameters(), max_norm=0.1)
        optimizer.step()


@same()
def in_bfloat16_by_autocast(rank, world_size):
    inputs, targets = my_examples(rank, world_size)
    model = DDP(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()


def average_in_bfloat16(_, bucket):
    """As bf16_compress_hook, which wants a GPU."""
    tensor = bucket.buffer().to(torch.bfloat16) / dist.get_world_size()
    future = dist.all_reduce(tensor, async_op=True).get_future()
    return future.then(lambda done: bucket.buffer().copy_(done.value()[0]))


@same()
def with_gradients_sent_in_bfloat16(rank, world_size):
    model = DDP(network())
    model.register_comm_hook(None, average_in_bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    descend(model, optimizer, *my_examples(rank, world_size))


@same()
def with_gradients_sent_in_float16(rank, world_size):
    model = DDP(network())
    model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    descend(model, optimizer, *my_examples(rank, world_size))


@same()
def with_an_optimizer_in_shards(rank, world_size):
    """ZeRO-1: each rank steps a part of the parameters, and all broadcast theirs."""
    model = DDP(network())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.01)
    descend(model, optimizer, *my_examples(rank, world_size))


@same()
def with_a_schedule_of_the_learning_rate(rank, world_size):
    inputs, targets = my_examples(rank, world_size)
    model = DDP(network())
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=3)
    for _ in range(3):
        descend(model, optimizer, inputs, targets, steps=1)
        schedule.step()


@same()
def with_dropout_of_its_own_on_each_rank(rank, world_size):
    inputs, targets = my_examples(rank, world_size)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 1))
    model = DDP(model)
    torch.manual_seed(100 + rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    descend(model, optimizer, inputs, targets)


@same()
def compiled(rank, world_size):
    model = torch.compile(DDP(network()), backend="eager")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    descend(model, optimizer, *my_examples(rank, world_size))


@same()
def compiled_inside_of_ddp(rank, world_size):
    model = DDP(torch.compile(network(), backend="eager"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    descend(model, optimizer, *my_examples(rank, world_size))


@same()
def with_checkpointed_activations(rank, world_size):
    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, _, self.last = network()

        def forward(self, x):
            return self.last(checkpoint(self.hidden, x, use_reentrant=False))

        def hidden(self, x):
            return torch.tanh(self.first(x))

    model = DDP(Network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    descend(model, optimizer, *my_examples(rank, world_size))


@same(parameters=3)
def with_tied_embeddings(rank, world_size):
    torch.manual_seed(3)
    tokens = torch.randint(20, (8, 6))
    model = DDP(LanguageModel())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    mine = tokens[share(rank, world_size, 8)]
    for _ in range(3):
        logits = model(mine[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), mine[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


@same()
def evaluated_by_one_rank(rank, world_size):
    """Rank 0 alone evaluates, without DDP."""
    inputs, targets = my_examples(rank, world_size)
    validation, expected = examples(10)
    model = DDP(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        model.train()
        descend(model, optimizer, inputs, targets, steps=1)
        if rank == 0:
            model.module.eval()
            with torch.no_grad():
                F.mse_loss(model.module(validation), expected).item()
        dist.barrier()


@same()
def evaluated_together(rank, world_size):
    """Each rank evaluates its rows, and they add up errors and rows; the last has fewer."""
    inputs, targets = my_examples(rank, world_size)
    validation, expected = (one[rank::world_size] for one in examples(10))
    model = DDP(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        model.train()
        descend(model, optimizer, inputs, targets, steps=1)
        model.eval()
        with torch.no_grad():
            error = F.mse_loss(model.module(validation), expected, reduction="sum")
        total = torch.tensor([error.item(), len(validation)])
        dist.all_reduce(total)
        assert total[1] == 10


@same()
def evaluated_by_all_ranks(rank, world_size):
    """Each rank evaluates everything, which is slow, and right."""
    inputs, targets = my_examples(rank, world_size)
    validation, expected = examples(10)
    model = DDP(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        descend(model, optimizer, inputs, targets, steps=1)
        model.eval()
        with torch.inference_mode():
            F.mse_loss(model.module(validation), expected).item()
        model.train()


@same()
def with_two_optimizers(rank, world_size):
    inputs, targets = my_examples(rank, world_size)
    model = DDP(network())
    matrices = torch.optim.SGD([p for p in model.parameters() if p.dim() == 2], lr=0.1)
    biases = torch.optim.Adam([p for p in model.parameters() if p.dim() == 1], lr=0.01)
    for _ in range(3):
        F.mse_loss(model(inputs), targets).backward()
        for optimizer in (matrices, biases):
            optimizer.step()
            optimizer.zero_grad()


@same(steps=4, parameters=8)
def of_two_networks_in_turns(rank, world_size):
    """A discriminator and a generator, each with its own steps."""
    inputs, _ = my_examples(rank, world_size)
    torch.manual_seed(4)
    maker = DDP(nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8)))
    critic = DDP(nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1)))
    for_maker = torch.optim.Adam(maker.parameters(), lr=0.01)
    for_critic = torch.optim.Adam(critic.parameters(), lr=0.01)
    noise = inputs.flip(1)
    for _ in range(2):
        for_critic.zero_grad()
        made = maker(noise).detach()
        (F.softplus(-critic(inputs)) + F.softplus(critic(made))).mean().backward()
        for_critic.step()
        for_maker.zero_grad()
        F.softplus(-critic(maker(noise))).mean().backward()
        for_maker.step()


@same()
def with_a_moving_average_of_the_weights(rank, world_size):
    inputs, targets = my_examples(rank, world_size)
    model = DDP(network())
    average = copy.deepcopy(model.module)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        descend(model, optimizer, inputs, targets, steps=1)
        with torch.no_grad():
            for kept, new in zip(average.parameters(), model.parameters(), strict=True):
                kept.lerp_(new, 0.1)
        with torch.no_grad():
            average(inputs)


@same(parameters=2)
def with_a_frozen_backbone(rank, world_size):
    inputs, targets = my_examples(rank, world_size)
    model = network()
    model[0].requires_grad_(False)
    model = DDP(model)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    descend(model, optimizer, inputs, targets)
