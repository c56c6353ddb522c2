"""Three assignments of a course on systems for training, and their tests.

Data parallelism by hand, an optimizer whose states are sharded, and sharded parameters: each must
train as one process does on the whole batch. The programs are ours.
"""

import copy
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import nn

pytestmark = pytest.mark.ranks(2)
STEPS, BATCH = 5, 8


class Toy(nn.Module):
    """Three layers, of which one is used twice, and a parameter without gradients."""

    def __init__(self):
        super().__init__()
        self.first, self.twice, self.last = (
            nn.Linear(10, 16, bias=False),
            nn.Linear(16, 16),
            nn.Linear(16, 5),
        )
        self.frozen = nn.Parameter(torch.ones(1), requires_grad=False)

    def forward(self, x):
        return (
            self.last(self.twice(torch.relu(self.twice(torch.relu(self.first(x)))))) * self.frozen
        )


@pytest.fixture(params=[0, 1], ids=["seed0", "seed1"])
def model(request):
    torch.manual_seed(request.param)
    return Toy()


@pytest.fixture
def data():
    torch.manual_seed(42)
    return torch.randn(STEPS, BATCH, 10), torch.randn(STEPS, BATCH, 5)


@pytest.fixture
def alone(model, data):
    """What one process has after all steps on whole batches."""
    one = copy.deepcopy(model)
    train(one, torch.optim.AdamW(one.parameters(), lr=0.01), *data)
    return one


def train(model, optimizer, inputs, targets, after_backward=lambda: None):
    for x, y in zip(inputs, targets, strict=True):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        after_backward()
        optimizer.step()


def own_part(data, rank, world_size):
    return [one.chunk(world_size, dim=1)[rank] for one in data]


def assert_equal(model, other):
    for (name, one), two in zip(model.named_parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(
            one, two, rtol=1e-5, atol=1e-6, msg=lambda words, name=name: f"{name}: {words}"
        )


# --- data parallelism ---


class DataParallel(nn.Module):
    """Begins with rank 0's parameters; averages each gradient as soon as it is there."""

    def __init__(self, module):
        super().__init__()
        self.module, self._under_way = module, []
        for tensor in module.state_dict().values():
            dist.broadcast(tensor, src=0)
        for parameter in module.parameters():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(self._average)

    def _average(self, parameter):
        parameter.grad /= dist.get_world_size()
        self._under_way.append(dist.all_reduce(parameter.grad, async_op=True))

    def forward(self, x):
        return self.module(x)

    def finish(self):
        while self._under_way:
            self._under_way.pop().wait()


def test_ranks_begin_alike(rank):
    torch.manual_seed(rank)
    mine = DataParallel(Toy()).module.last.weight
    theirs = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(theirs, mine.detach())
    assert torch.equal(*theirs)


@pytest.mark.ranks(2, fresh=True)  # no other test has set a seed there
def test_ranks_begin_alike_finds_weights_that_are_not_sent():
    """Also where nobody sets a seed: ranks draw different numbers, as under torchrun."""
    with mock.patch.object(dist, "broadcast"):
        mine = DataParallel(Toy()).module.last.weight
    theirs = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(theirs, mine.detach())
    assert not torch.equal(*theirs)


def test_data_parallelism(model, data, alone, rank, world_size):
    ours = DataParallel(copy.deepcopy(model))
    optimizer = torch.optim.AdamW(ours.parameters(), lr=0.01)
    train(ours, optimizer, *own_part(data, rank, world_size), after_backward=ours.finish)
    assert_equal(ours.module, alone)


def test_data_parallelism_finds_a_gradient_that_is_not_averaged(
    model, data, alone, rank, world_size
):
    """The test can fail."""
    ours = copy.deepcopy(model)
    train(ours, torch.optim.AdamW(ours.parameters(), lr=0.01), *own_part(data, rank, world_size))
    with pytest.raises(AssertionError, match=r"first\.weight"):
        assert_equal(ours, alone)


# --- an optimizer whose states are sharded ---


class ShardedOptimizer(torch.optim.Optimizer):
    """Each rank updates every n-th parameter, and sends it to the others."""

    def __init__(self, parameters, kind, **options):
        self._kind, self._options, self._all, self._inner = kind, options, [], None
        super().__init__(parameters, {})

    def add_param_group(self, group):
        super().add_param_group(group)
        rank, world_size = dist.get_rank(), dist.get_world_size()
        mine = [
            one
            for number, one in enumerate(group["params"], len(self._all))
            if number % world_size == rank
        ]
        self._all += group["params"]
        if mine and self._inner is None:
            self._inner = self._kind(mine, **self._options)
        elif mine:
            self._inner.add_param_group({**group, "params": mine})

    def step(self):
        if self._inner is not None:
            self._inner.step()
        for number, parameter in enumerate(self._all):
            dist.broadcast(parameter.data, src=number % dist.get_world_size())


def test_sharded_optimizer(model, data, alone):
    ours = copy.deepcopy(model)
    train(ours, ShardedOptimizer(ours.parameters(), torch.optim.AdamW, lr=0.01), *data)
    assert_equal(ours, alone)


def test_each_state_is_on_one_rank(model, data, world_size):
    optimizer = ShardedOptimizer(model.parameters(), torch.optim.AdamW, lr=0.01)
    train(model, optimizer, *data)
    counts = [None] * world_size
    dist.all_gather_object(counts, len(optimizer._inner.state))
    assert sum(counts) == sum(one.requires_grad for one in model.parameters())


# --- sharded parameters ---


class Sharded(nn.Module):
    """Keeps 1/n of each layer's parameters, and gathers them for its passes."""

    def __init__(self, module):
        super().__init__()
        self.module, self.shards = module, nn.ParameterList()
        self._places = []
        for owner in module.modules():
            for name, parameter in list(owner.named_parameters(recurse=False)):
                if parameter.requires_grad:
                    self.shards.append(nn.Parameter(self._own(parameter.detach())))
                    self._places.append((owner, name, parameter.shape))
                    del owner._parameters[name]

    def _own(self, whole):
        n = dist.get_world_size()
        flat = nn.functional.pad(whole.flatten(), (0, -whole.numel() % n))
        return flat.chunk(n)[dist.get_rank()].clone()

    def forward(self, x):
        for (owner, name, shape), shard in zip(self._places, self.shards, strict=True):
            setattr(owner, name, Gathered.apply(shard, shape))
        return self.module(x)

    def whole(self):
        """A copy of the module with all of its parameters."""
        for (owner, name, shape), shard in zip(self._places, self.shards, strict=True):
            delattr(owner, name)
            setattr(owner, name, nn.Parameter(Gathered.apply(shard, shape).detach()))
        return self.module


class Gathered(torch.autograd.Function):
    @staticmethod
    def forward(ctx, shard, shape):
        whole = torch.empty(shard.numel() * dist.get_world_size())
        dist.all_gather_into_tensor(whole, shard)
        return whole[: shape.numel()].view(shape)

    @staticmethod
    def backward(ctx, gradient):
        n = dist.get_world_size()
        flat = nn.functional.pad(gradient.flatten(), (0, -gradient.numel() % n))
        part = torch.empty(flat.numel() // n)
        dist.reduce_scatter_tensor(part, flat)
        return part / n, None


def test_sharded_parameters(model, data, alone, rank, world_size):
    ours = Sharded(copy.deepcopy(model))
    kept, all_of_them = (
        sum(one.numel() for one in ours.shards),
        sum(one.numel() for one in model.parameters()),
    )
    assert kept <= all_of_them / world_size + len(ours.shards)
    train(ours, torch.optim.AdamW(ours.shards, lr=0.01), *own_part(data, rank, world_size))
    found, expected = dict(ours.whole().named_parameters()), dict(alone.named_parameters())
    assert {*found} == {*expected}
    for name, parameter in found.items():
        torch.testing.assert_close(parameter, expected[name], rtol=1e-5, atol=1e-6)
