"""Right programs in other people's styles; test_same_programs.py compares them."""

import io
import random

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from tests.cluster.comparison.zoo_of_same_programs import (
    descend,
    examples,
    my_examples,
    network,
    same,
    share,
)


class Trainer:
    """A model, an optimizer and a loop, in a class as many have one."""

    def __init__(self, model, rank, world_size, accumulate=1):
        self.net = DDP(model)
        self.accumulate = accumulate
        self.optim = torch.optim.RMSprop(self.net.parameters(), lr=1e-3)
        self.x, self.y = my_examples(rank, world_size, 32)

    def fit(self, epochs):
        for _ in range(epochs):
            for number in range(self.accumulate):
                self.one_batch(number)
            self.optim.step()
            self.optim.zero_grad(set_to_none=False)

    def one_batch(self, number):
        x = self.x.chunk(self.accumulate)[number]
        y = self.y.chunk(self.accumulate)[number]
        self.net.require_backward_grad_sync = number + 1 == self.accumulate
        self.loss(self.net(x), y).div(self.accumulate).backward()

    def loss(self, output, target):
        return F.smooth_l1_loss(output, target)


@same()
def in_a_class(rank, world_size):
    Trainer(network(), rank, world_size, accumulate=2).fit(3)


class Classifier(nn.Module):
    """Takes a batch by name and returns its own loss, as those of Hugging Face do."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(30, 8)
        self.lstm = nn.LSTM(8, 8, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, input_ids, labels=None):
        hidden, _ = self.lstm(self.embedding(input_ids))
        logits = self.head(hidden.mean(1))
        if labels is None:
            return {"logits": logits}
        return {"loss": F.cross_entropy(logits, labels), "logits": logits}


@same(parameters=7)
def with_a_batch_by_name(rank, world_size):
    torch.manual_seed(42)
    data = {"input_ids": torch.randint(30, (16, 5)), "labels": torch.randint(3, (16,))}
    batch = {name: tensor.chunk(world_size)[rank] for name, tensor in data.items()}
    model = DDP(Classifier())
    no_decay = [p for p in model.parameters() if p.dim() == 1]
    decay = [p for p in model.parameters() if p.dim() > 1]
    groups = [{"params": decay, "weight_decay": 0.1}, {"params": no_decay, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=5e-3, amsgrad=True)
    warmup = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1, (step + 1) / 3))
    for _ in range(3):
        out = model(**batch)
        out["loss"].backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        warmup.step()
        optimizer.zero_grad()


@same(parameters=6)
def with_images(rank, world_size):
    torch.manual_seed(0)
    images = torch.rand(16, 1, 6, 6)
    labels = torch.randint(4, (16,))
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3),
        nn.GroupNorm(2, 4),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4, 4),
    )
    model = DDP(model, find_unused_parameters=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        criterion(model(images[rank::world_size]), labels[rank::world_size]).backward()
        optimizer.step()


class Branches(nn.Module):
    """One of two branches, in turns."""

    def __init__(self):
        super().__init__()
        self.trunk = nn.Linear(8, 8)
        self.left = nn.Linear(8, 1)
        self.right = nn.Linear(8, 1)

    def forward(self, x, step):
        branch = self.left if step % 2 else self.right
        return branch(torch.relu(self.trunk(x)))


@same(parameters=6)
def with_a_branch_that_is_not_used(rank, world_size):
    inputs, targets = my_examples(rank, world_size)
    torch.manual_seed(0)
    model = DDP(Branches(), find_unused_parameters=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        optimizer.zero_grad()
        F.mse_loss(model(inputs, step), targets).backward()
        optimizer.step()


@same()
def with_a_scaled_loss(rank, world_size):
    inputs, targets = my_examples(rank, world_size)
    model = DDP(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for _ in range(3):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            output = model(inputs)
        loss = F.mse_loss(output.float(), targets)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()


@same(steps=2)
def with_closures(rank, world_size):
    """L-BFGS calls the closure several times in each step."""
    inputs, targets = my_examples(rank, world_size)
    model = DDP(network())
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)

    def closure():
        optimizer.zero_grad()
        loss = F.mse_loss(model(inputs), targets)
        loss.backward()
        dist.all_reduce(total := loss.detach() / world_size)
        return total

    for _ in range(2):
        optimizer.step(closure)


@same()
def stepping_in_backward(rank, world_size):
    """Each parameter has an optimizer, which steps as soon as its gradient is there."""
    inputs, targets = my_examples(rank, world_size)
    model = network()
    optimizers = {p: torch.optim.Adam([p], lr=0.01) for p in model.parameters()}

    def step(parameter):
        dist.all_reduce(parameter.grad)
        parameter.grad /= world_size
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(step)
    for _ in range(3):
        F.mse_loss(model(inputs), targets).backward()


@same()
def drawing_all_rows_on_every_rank(rank, world_size):
    """Each step draws the whole batch with the common seed; a rank uses its part."""
    torch.manual_seed(1234)
    model = DDP(nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        inputs = torch.randn(16, 8)
        targets = inputs.sum(dim=1, keepdim=True).sin()
        mine = share(rank, world_size)
        optimizer.zero_grad()
        loss = (model(inputs[mine]) - targets[mine]).pow(2).mean()
        loss.backward()
        optimizer.step()


@same(steps=4)
def shuffling_with_python_and_numpy(rank, world_size):
    random.seed(0)
    data = np.random.default_rng(0).normal(size=(16, 9)).astype(np.float32)
    model = DDP(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    order = list(range(16))
    for _ in range(2):
        random.shuffle(order)
        for begin in (0, 8):
            mine = order[begin : begin + 8][rank::world_size]
            rows = torch.from_numpy(data[mine])
            optimizer.zero_grad()
            F.mse_loss(model(rows[:, :8]), rows[:, 8:]).backward()
            optimizer.step()


@same()
def with_rows_from_rank_0(rank, world_size):
    """Rank 0 has the data, and scatters them."""
    inputs, targets = examples()
    rows = torch.empty(16 // world_size, 9)
    model = DDP(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        parts = None
        if rank == 0:
            parts = list(torch.cat([inputs, targets], dim=1).chunk(world_size))
        dist.scatter(rows, parts, src=0)
        descend(model, optimizer, rows[:, :8], rows[:, 8:], steps=1)


@same(steps=4, parameters=8)
def resumed_from_a_checkpoint(rank, world_size):
    """After two steps another model with its own optimizer goes on from what was saved."""
    inputs, targets = my_examples(rank, world_size)
    model = DDP(network())
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    descend(model, optimizer, inputs, targets, steps=2)
    file = io.BytesIO()
    torch.save([model.module.state_dict(), optimizer.state_dict()], file)
    file.seek(0)
    weights, moments = torch.load(file)
    resumed = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    resumed.load_state_dict(weights)
    resumed = DDP(resumed)
    optimizer = torch.optim.Adam(resumed.parameters(), lr=0.01)
    optimizer.load_state_dict(moments)
    descend(resumed, optimizer, inputs, targets, steps=2)


@same()
def taught_by_another_network(rank, world_size):
    inputs, _ = my_examples(rank, world_size)
    torch.manual_seed(8)
    teacher = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
    student = DDP(network())
    optimizer = torch.optim.SGD(student.parameters(), lr=0.1)
    for _ in range(3):
        with torch.no_grad():
            targets = teacher(inputs)
        descend(student, optimizer, inputs, targets, steps=1)


class Gather(torch.autograd.Function):
    """The rows of all ranks; the gradient of a rank's rows is the sum of what all found."""

    @staticmethod
    def forward(_, rows):
        parts = [torch.empty_like(rows) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, rows.contiguous())
        return torch.cat(parts)

    @staticmethod
    def backward(_, gradient):
        total = gradient.clone()
        dist.all_reduce(total)
        return total.chunk(dist.get_world_size())[dist.get_rank()]


@same()
def contrasting_with_the_rows_of_all(rank, world_size):
    """Each rank computes the loss of the whole batch, so DDP's mean is right."""
    left, _ = my_examples(rank, world_size)
    right = left.flip(1)
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(3):
        optimizer.zero_grad()
        both = F.normalize(model(torch.cat([left, right])), dim=1)
        a, b = (Gather.apply(half) for half in both.chunk(2))
        loss = F.cross_entropy(a @ b.T / 0.1, torch.arange(16))
        loss.backward()
        optimizer.step()


@same(steps=2)
def stopping_early_together(rank, world_size):
    """The plateau schedule and the end depend on the loss of all ranks."""
    inputs, targets = my_examples(rank, world_size)
    model = DDP(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
    for _ in range(10):
        optimizer.zero_grad()
        loss = F.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        mean /= world_size
        schedule.step(mean)
        if mean < 1.68:
            break


@same()
def with_second_derivatives(rank, world_size):
    """The loss has the norm of the gradient with respect to the rows."""
    inputs, targets = my_examples(rank, world_size)
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        rows = inputs.clone().requires_grad_()
        output = model(rows)
        (slope,) = torch.autograd.grad(output.sum(), rows, create_graph=True)
        loss = F.mse_loss(output, targets) + 0.1 * slope.square().sum(1).mean()
        optimizer.zero_grad()
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= world_size
        optimizer.step()


@same()
def with_gradients_by_autograd_grad(rank, world_size):
    """Without backward(): the gradients are asked for, averaged, and given to the parameters."""
    inputs, targets = my_examples(rank, world_size)
    model = network()
    parameters = tuple(model.parameters())
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    for _ in range(3):
        loss = F.mse_loss(model(inputs), targets)
        gradients = torch.autograd.grad(loss, parameters)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            dist.all_reduce(gradient)
            parameter.grad = gradient / world_size
        optimizer.step()
