"""Programs that shard parameters, sequences or the optimizer: their calls and sizes."""

import functools

import pytest
import torch
import torch.distributed as dist
from torch import nn

import distlab
from tests.cluster.predict.test_predict import FREE, NETWORK, calls, layers, train

LAYER = 64 * 64 + 64


def of_one_rank(program, ranks, **options):
    return calls(distlab.predict(functools.partial(program, **options), ranks, NETWORK, FREE))


def hybrid(rank, world_size, reshard, clip=False):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    mesh = init_device_mesh("cpu", (2, world_size // 2), mesh_dim_names=("replicate", "shard"))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    model = layers()
    for layer in model:
        fully_shard(layer, mesh=mesh, mp_policy=policy, reshard_after_forward=reshard)
    optimizer = torch.optim.AdamW(fully_shard(model, mesh=mesh, mp_policy=policy).parameters())
    for _ in range(2):
        model(torch.ones(16, 64)).sum().backward()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize(
    ("reshard", "gathers"),
    [
        (False, [("all_gather", 4, LAYER * 2 // 4)] * 3),
        (True, [("all_gather", 4, LAYER * 2 // 4)] * 6),
        (2, [("all_gather", 2, LAYER * 2 // 2)] * 3 + [("all_gather", 4, LAYER * 2 // 4)] * 3),
    ],
)
def test_shards_on_one_dimension_of_a_mesh_are_copied_on_the_other(reshard, gathers):
    """Gathered as bfloat16, reduced as float32, among shards first and then among copies."""
    made = of_one_rank(hybrid, 8, reshard=reshard)
    assert sorted(call for call in made if call[0] == "all_gather") == gathers
    reduced = [call for call in made if call[0] != "all_gather"]
    assert reduced == [("reduce_scatter", 4, LAYER * 4 // 4), ("all_reduce", 2, LAYER * 4 // 4)] * 3


def test_the_norms_of_sharded_gradients_are_added_up():
    """One all-reduce, of the norms of three weights and three biases."""
    assert of_one_rank(hybrid, 8, reshard=False, clip=True)[-1] == ("all_reduce", 4, 6 * 4)


def first_fsdp(rank, world_size):
    from torch.distributed.fsdp import FullyShardedDataParallel
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    policy = ModuleWrapPolicy({nn.Linear})
    train(
        FullyShardedDataParallel(layers(), auto_wrap_policy=policy, device_id=torch.device("cpu")),
        2,
    )


def test_the_first_fsdp_gathers_again_for_the_backward_pass():
    made = sorted(of_one_rank(first_fsdp, 8))
    assert (
        made
        == [("all_gather", 8, LAYER * 4 // 8)] * 6 + [("reduce_scatter", 8, LAYER * 4 // 8)] * 3
    )


def sharded_optimizer(rank, world_size):
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = nn.parallel.DistributedDataParallel(layers())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW)
    for _ in range(2):
        model(torch.ones(16, 64)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def test_a_sharded_optimizer_sends_what_each_rank_has_updated():
    """The broadcasts come after the optimizer of the rank's own part, and belong to its step."""
    updated = [("broadcast", 8, 64 * 64 * 4)] * 3 + [("broadcast", 8, 64 * 4)] * 3
    assert of_one_rank(sharded_optimizer, 8) == [("all_reduce", 8, 3 * LAYER * 4), *updated]


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(16), nn.Linear(16, 64), nn.Linear(64, 16)

    def forward(self, values):
        return values + self.down(torch.relu(self.up(self.norm(values))))


def sequence_parallel(rank, world_size):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor import parallel as tp

    model = nn.Sequential(nn.Embedding(128, 16), Block(), nn.LayerNorm(16), nn.Linear(16, 128))
    plan = {
        "0": tp.RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "1.norm": tp.SequenceParallel(),
        "1": tp.PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Shard(1),)),
        "1.up": tp.ColwiseParallel(input_layouts=Shard(1)),
        "1.down": tp.RowwiseParallel(output_layouts=Shard(1), use_local_output=False),
        "2": tp.SequenceParallel(),
        "3": tp.ColwiseParallel(
            input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False
        ),
    }
    tp.parallelize_module(model, init_device_mesh("cpu", (world_size,)), plan)
    optimizer = torch.optim.SGD(model.parameters())
    for _ in range(2):
        tokens = torch.zeros((2, 32), dtype=torch.int64)
        targets = torch.zeros((64,), dtype=torch.int64)
        with tp.loss_parallel():
            nn.functional.cross_entropy(model(tokens).flatten(0, 1), targets).backward()
        optimizer.step()
        optimizer.zero_grad()


def test_sequence_parallel_layers_gather_and_scatter_the_sequence():
    """Two of 32 places on four ranks; the loss needs three numbers of each place."""
    made = of_one_rank(sequence_parallel, 4)
    share = 2 * 32 * 16 * 4 // 4
    assert made.count(("all_gather", 4, share)) == made.count(("reduce_scatter", 4, share)) == 4
    assert made.count(("all_reduce", 4, 2 * 32 * 4)) == 3
    assert made.count(("all_reduce", 4, 16 * 4)) == 4  # of weights and biases that normalise


def context(rank, world_size, method):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.experimental import context_parallel
    from torch.distributed.tensor.experimental._attention import set_rotate_method

    mesh = init_device_mesh("cpu", (world_size,))
    model = nn.Linear(32, 96)
    optimizer = torch.optim.SGD(model.parameters())
    set_rotate_method(method)
    for _ in range(2):
        values = torch.ones(2, 64, 32)
        with context_parallel(mesh, buffers=[values], buffer_seq_dims=[1]):
            query, key, value = (
                part.unflatten(2, (4, 8)).transpose(1, 2) for part in model(values).chunk(3, -1)
            )
            nn.functional.scaled_dot_product_attention(
                query, key, value, is_causal=True
            ).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize(("method", "gathers", "turns"), [("allgather", 2, 4), ("alltoall", 0, 10)])
def test_keys_and_values_go_around_the_ranks_of_a_context(method, gathers, turns):
    """Torch's own ring attention; its all_to_all sends to the neighbour only."""
    prediction = distlab.predict(functools.partial(context, method=method), 4, NETWORK, FREE)
    size = 2 * (2 * 64 * 32) * 4 // 4
    recording = prediction.recordings[0]
    nodes = [
        node for node in recording.nodes[slice(*recording.steps[-1])] if hasattr(node, "members")
    ]
    assert [node.sent for node in nodes if node.name == "all_gather"] == [(size,)] * gathers
    assert [node.sent for node in nodes if node.name == "all_to_all"] == [(0, size, 0, 0)] * turns


def collectives(rank, world_size):
    from torch.distributed import _functional_collectives as functional
    from torch.distributed.tensor import DTensor, Shard, init_device_mesh

    model = nn.Linear(64, 64)
    world = dist.group.WORLD
    model(torch.ones(8, 64)).sum().backward()
    rows = DTensor.from_local(torch.ones(8, 64), init_device_mesh("cpu", (world_size,)), [Shard(0)])
    rows.redistribute(placements=[Shard(1)])
    made = [
        *functional.all_reduce_coalesced([torch.ones(4), torch.ones(8)], "sum", world),
        *functional.all_gather_into_tensor_coalesced([torch.ones(4), torch.ones(8)], world),
        *functional.reduce_scatter_tensor_coalesced(
            [torch.ones(16), torch.ones(8)], "sum", [0, 0], world
        ),
        functional.permute_tensor(torch.ones(8), [1, 2, 3, 0], world),
        functional.all_to_all_single_autograd(torch.ones(8), [2] * 4, [5, 1, 1, 1], world),
    ]
    for tensor in made:
        tensor + 1
    torch.optim.SGD(model.parameters()).step()


def test_functional_collectives_are_as_long_as_all_their_tensors():
    prediction = distlab.predict(collectives, 4, NETWORK, FREE, roles=[1])
    sent = [
        (node.name, node.sent)
        for node in prediction.recordings[0].nodes
        if hasattr(node, "members")
    ]
    assert sent == [
        ("all_to_all", (512,) * 4),
        ("all_reduce", (48, 4)),
        ("all_gather", (48,)),
        ("reduce_scatter", (24,)),
        ("all_to_all", (0, 32, 0, 0)),
        ("all_to_all", (4, 4, 4, 20)),  # rank 1 keeps the second part
    ]


def gathered_beside_a_product(rank, world_size, grad):
    from torch.distributed import _functional_collectives as functional
    from torch.distributed.tensor import DTensor, Replicate, Shard, init_device_mesh

    model = nn.Linear(64, 64)
    model(torch.ones(8, 64)).sum().backward()
    mesh = init_device_mesh("cpu", (world_size,))
    square = torch.ones(64, 64)
    if grad:
        part = torch.ones(8, 64, requires_grad=True)
        whole = functional.all_gather_single_autograd(part * 2, 0, dist.group.WORLD)
    else:
        rows = DTensor.from_local(torch.ones(8, 64), mesh, [Shard(0)])
        whole = rows.redistribute(placements=[Replicate()], async_op=True).to_local()
    square @ square
    total = (whole.view(-1, 32) * 3).sum()
    if grad:
        total.backward()
    torch.optim.SGD(model.parameters()).step()


@pytest.mark.parametrize("grad", [False, True])
def test_a_functional_collective_is_awaited_where_its_result_is_used(grad):
    """Not by the product before; where autograd sees the result, at once."""
    program = functools.partial(gathered_beside_a_product, grad=grad)
    nodes = distlab.predict(program, 4, NETWORK, FREE).recordings[0].nodes
    place = [node.name for node in nodes].index("all_gather")
    later = [node.name for node in nodes[place + 1 :] if place in node.after]
    assert later[0] == ("mm" if grad else "mul")
    assert ("reduce_scatter" in {node.name for node in nodes}) == grad
