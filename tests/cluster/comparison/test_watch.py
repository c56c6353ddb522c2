"""What real ranks see of programs on several ranks; and that looking changes nothing there."""

from functools import reduce
from operator import add

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import distlab
from distlab.comparison.records import WatchOptions
from distlab.comparison.watching.watch import begin_watch, end_watch, watched

NAMES = ["0.weight", "0.bias", "2.weight", "2.bias", "4.weight", "4.bias"]


def network():
    """One matrix is too large to be kept whole."""
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Linear(8, 600), nn.Tanh(), nn.Linear(600, 16), nn.Tanh(), nn.Linear(16, 3)
    )


def rows_of(part, parts):
    generator = torch.Generator().manual_seed(7)
    rows = torch.randn(16, 8, generator=generator)
    targets = torch.randint(3, (16,), generator=generator)
    return rows.chunk(parts)[part], targets.chunk(parts)[part]


def descend(model, optimizer, rows, targets):
    for _ in range(2):
        optimizer.zero_grad()
        functional.cross_entropy(model(rows), targets).backward()
        optimizer.step()


def momentum(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def alone(rank, world_size):
    model = network()
    descend(model, momentum(model), *rows_of(0, 1))


def with_ddp(rank, world_size):
    model = DistributedDataParallel(network())
    descend(model, momentum(model), *rows_of(rank, world_size))


def past_ddp(rank, world_size):
    model = DistributedDataParallel(network())
    descend(model.module, momentum(model), *rows_of(rank, world_size))


def in_no_sync(rank, world_size):
    model = DistributedDataParallel(network())
    with model.no_sync():
        descend(model, momentum(model), *rows_of(rank, world_size))


def with_zero(rank, world_size):
    model = DistributedDataParallel(network())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1, momentum=0.9)
    descend(model, optimizer, *rows_of(rank, world_size))


def sharded(model, **options):
    for layer in (model[0], model[2], model[4]):
        fully_shard(layer, **options)
    return fully_shard(model, **options)


def with_fsdp(rank, world_size):
    model = sharded(network())
    descend(model, momentum(model), *rows_of(rank, world_size))


def with_fsdp_in_replicas(rank, world_size):
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicas", "shards"))
    model = sharded(network(), mesh=mesh)
    descend(model, momentum(model), *rows_of(rank, world_size))


def with_first_fsdp(rank, world_size, keeps_parameters=True):
    model = FullyShardedDataParallel(
        network(), use_orig_params=keeps_parameters, device_id=torch.device("cpu")
    )
    descend(model, momentum(model), *rows_of(rank, world_size))


def with_first_fsdp_in_flat_parameters(rank, world_size):
    with_first_fsdp(rank, world_size, keeps_parameters=False)


def parallel(mesh):
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    return parallelize_module(network(), mesh, plan)


def with_tensor_parallel_layers(rank, world_size):
    model = parallel(init_device_mesh("cpu", (world_size,)))
    descend(model, momentum(model), *rows_of(0, 1))


def with_tensor_parallel_layers_in_shards(rank, world_size):
    """The first matrix has a strided shard."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "model"))
    model = sharded(parallel(mesh["model"]), mesh=mesh["data"])
    descend(model, momentum(model), *rows_of(mesh["data"].get_local_rank(), 2))


def on_rank(rank, world_size, train, options):
    return watched(rank, world_size, train, (), {}, options)


@pytest.fixture(scope="module")
def reference():
    return watched(0, 1, alone, (), {}, WatchOptions(detailed=True))


def added_up(sketches):
    return reduce(add, sketches)


def assert_close(seen, expected):
    assert (seen - expected).norm < 1e-5 * expected.norm


DATA_PARALLEL = (with_ddp, with_zero, with_fsdp, with_fsdp_in_replicas)
# the own gradients of the first FSDP are not looked at
FLAT = (with_first_fsdp, with_first_fsdp_in_flat_parameters)
MODEL_PARALLEL = (with_tensor_parallel_layers, with_tensor_parallel_layers_in_shards)


@pytest.mark.parametrize("train", DATA_PARALLEL + FLAT + MODEL_PARALLEL)
def test_pieces_of_all_ranks_are_those_of_one_process(cluster, reference, train):
    """By name and step, each piece once: values and gradients."""
    records = cluster.run(on_rank, train, WatchOptions(detailed=True))
    for step, expected in enumerate(reference.steps):
        seen = [record.steps[step].parameters for record in records]
        assert [list(parameters) for parameters in seen] == [NAMES] * 4
        for name in NAMES:
            pieces = {parameters[name].piece: parameters[name] for parameters in seen}
            whole = expected.parameters[name]
            assert_close(added_up(one.value for one in pieces.values()), whole.value)
            assert_close(added_up(one.gradient for one in pieces.values()), whole.gradient)
            assert sum(piece.elements for piece in pieces) == whole.piece.whole
            if train in DATA_PARALLEL:
                own = added_up(parameters[name].own_gradient for parameters in seen)
                assert_close(own.scaled(1 / 4), whole.own_gradient)
    assert [record.unseen for record in records] == [[]] * 4
    assert [record.model_parallel for record in records] == [train in MODEL_PARALLEL] * 4
    assert {record.steps[0].line.text for record in records} == {"optimizer.step()"}


def test_the_way_through_ddp_and_past_it_is_seen(cluster):
    ways = {}
    for train in (with_ddp, past_ddp, in_no_sync, alone):
        records = cluster.run(on_rank, train, WatchOptions())
        seen = {(one.wrapper, one.bypassed, one.averages) for r in records for one in r.forwards}
        ways[train.__name__] = seen
    assert ways == {
        "with_ddp": {("DistributedDataParallel", False, True)},
        "past_ddp": {("", True, True)},
        "in_no_sync": {("DistributedDataParallel", False, False)},
        "alone": {("", False, True)},
    }


def test_what_each_rank_had_before_averaging_is_seen(cluster, reference):
    """In no_sync, a step has each rank's own gradient, and their mean is that of one process."""
    records = cluster.run(on_rank, in_no_sync, WatchOptions(detailed=True))
    for name in NAMES:
        seen = [record.steps[0].parameters[name] for record in records]
        mean = added_up(one.own_gradient for one in seen).scaled(1 / 4)
        assert_close(mean, reference.steps[0].parameters[name].gradient)
        for one in seen:
            np.testing.assert_array_equal(one.own_gradient.sums, one.gradient.sums)


def in_stages(rank, world_size):
    """A pipeline of two stages; micro-batches of 4 rows."""
    torch.manual_seed(1)
    layers = [nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(2)]
    model = layers[rank]
    stage = PipelineStage(model, rank, world_size, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, n_microbatches=4, loss_fn=functional.mse_loss)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rows, _ = rows_of(0, 1)
    for _ in range(2):
        optimizer.zero_grad()
        schedule.step(*[rows] * (rank == 0), **{"target": rows} if rank else {})
        optimizer.step()


def by_hand_in_stages(rank, world_size):
    """The same with messages."""
    torch.manual_seed(1)
    layers = [nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(2)]
    model = layers[rank]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rows, _ = rows_of(0, 1)
    for _ in range(2):
        optimizer.zero_grad()
        between = torch.empty(16, 8)
        if rank == 0:
            output = model(rows)
            dist.send(output.detach(), 1)
            dist.recv(between, 1)
            output.backward(between)
        else:
            dist.recv(between, 0)
            between.requires_grad_()
            functional.mse_loss(model(between), rows).backward()
            dist.send(between.grad, 0)
        optimizer.step()


class Add(torch.autograd.Function):
    """The sum of all ranks' activations."""

    @staticmethod
    def forward(context, x):
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(context, gradient):
        return gradient


def with_activations_added_by_hand(rank, world_size):
    class Part(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(8, 3, bias=False)

        def forward(self, x):
            return Add.apply(self.layer(x))

    model = Part()
    descend(model, momentum(model), *rows_of(0, 1))


def with_activations_added_between_modules(rank, world_size):
    first = nn.Linear(8, 4)
    second = nn.Linear(4, 3)
    optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.1)
    rows, targets = rows_of(0, 1)
    for _ in range(2):
        functional.cross_entropy(second(Add.apply(first(rows))), targets).backward()
        optimizer.step()


def with_metrics_in_the_model(rank, world_size):
    class Metrics(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(8, 3)

        def forward(self, x):
            x = self.layer(x)
            sums = torch.stack([x.detach().sum(), torch.tensor(float(len(x)))])
            dist.all_reduce(sums)
            return x

    model = DistributedDataParallel(Metrics())
    descend(model, momentum(model), *rows_of(rank, world_size))


def with_an_averaged_loss(rank, world_size):
    model = DistributedDataParallel(network())
    optimizer = momentum(model)
    rows, targets = rows_of(rank, world_size)
    loss = functional.cross_entropy(model(rows), targets)
    loss.backward()
    dist.all_reduce(loss.detach())
    optimizer.step()


@pytest.fixture
def two(shared):
    return shared.made(n=2, timeout=60)


STAGED = (
    in_stages,
    by_hand_in_stages,
    with_activations_added_by_hand,
    with_activations_added_between_modules,
)


@pytest.mark.parametrize("train", STAGED)
def test_activations_that_travel_are_seen(two, train):
    records = two.run(on_rank, train, WatchOptions())
    assert [record.model_parallel for record in records] == [True, True]
    assert [len(record.steps) for record in records] == [2, 2]
    assert [record.unseen for record in records] == [[], []]


@pytest.mark.parametrize("train", [with_an_averaged_loss, with_metrics_in_the_model])
def test_losses_and_metrics_are_no_activations(two, train):
    records = two.run(on_rank, train, WatchOptions())
    assert [record.model_parallel for record in records] == [False, False]


def test_a_pipeline_has_its_rows_on_the_first_rank_and_its_loss_on_the_last(two):
    """Without the passes in which the stages find out what they send."""
    first, last = two.run(on_rank, in_stages, WatchOptions())
    assert [len(forward.rows) for forward in first.forwards] == [4] * 8
    assert [len(forward.rows) for forward in last.forwards] == [0] * 8
    assert {backward.loss for backward in first.backwards} == {None}
    assert len(last.backwards) == 8
    assert all(np.isfinite(backward.loss) for backward in last.backwards)


def with_a_hook_that_casts(rank, world_size):
    def to_bfloat16(state, bucket):
        sent = bucket.buffer().to(torch.bfloat16)
        dist.all_reduce(sent)
        future = torch.futures.Future()
        future.set_result(sent.to(torch.float32) / world_size)
        return future

    model = DistributedDataParallel(network())
    model.register_comm_hook(None, to_bfloat16)
    descend(model, momentum(model), *rows_of(rank, world_size))


def with_torchs_hook(rank, world_size):
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

    model = DistributedDataParallel(network())
    model.register_comm_hook(None, fp16_compress_hook)
    descend(model, momentum(model), *rows_of(rank, world_size))


def test_gradients_that_travel_in_a_coarser_type_are_seen(two):
    own, torchs = (
        two.run(on_rank, train, WatchOptions())[0]
        for train in (with_a_hook_that_casts, with_torchs_hook)
    )
    assert (own.compression, own.epsilon) == ("to_bfloat16", torch.finfo(torch.bfloat16).eps)
    assert torchs.compression == "fp16_compress_hook"
    assert torchs.epsilon == torch.finfo(torch.float16).eps


def last_values(rank, world_size, looks):
    """The parameters of a training with batch normalisation and AdamW, watched or not."""
    kept = []

    def train(rank, world_size):
        torch.manual_seed(2)
        model = nn.Sequential(nn.Linear(8, 40), nn.BatchNorm1d(40), nn.ReLU(), nn.Linear(40, 3))
        wrapped = DistributedDataParallel(model, bucket_cap_mb=0.001)
        optimizer = torch.optim.AdamW(wrapped.parameters(), lr=0.01)
        descend(wrapped, optimizer, *rows_of(rank, world_size))
        kept.extend(tensor.detach().clone() for tensor in model.state_dict().values())

    if looks:
        watched(rank, world_size, train, (), {}, WatchOptions(detailed=True))
    else:
        train(rank, world_size)
    return kept


def test_looking_changes_no_bit(cluster):
    for plain, seen in zip(
        cluster.run(last_values, False), cluster.run(last_values, True), strict=True
    ):
        assert all(map(torch.equal, plain, seen))


def begins_to_look(rank, world_size):
    begin_watch(WatchOptions())


def ends_to_look(rank, world_size):
    record = end_watch()
    return record.rank, len(record.steps), record.unseen, is_patched()


def is_patched():
    return "_wrapped_call_impl" not in nn.Module.__call__.__code__.co_name


def raises_while_watched(rank, world_size):
    def train(rank, world_size):
        dist.recv(torch.empty(1), (rank + 1) % world_size)

    watched(rank, world_size, train, (), {}, WatchOptions())


def test_a_cell_is_watched_between_two_calls(two):
    two.run(begins_to_look)
    two.run(with_ddp)
    assert two.run(ends_to_look) == [(0, 2, [], False), (1, 2, [], False)]
    assert two.run(ends_to_look) == [(0, 0, [], False), (1, 0, [], False)]


def test_ranks_that_are_freed_are_not_watched_any_more(two, quick_watch):
    """Both wait for each other; the engine ends the wait with an error."""
    with pytest.raises(distlab.DeadlockError):
        two.run(raises_while_watched)
    assert two.run(ends_to_look) == [(0, 0, [], False), (1, 0, [], False)]
