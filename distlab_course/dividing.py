"""How pretraining.py divides a model over the ranks of tensor and of expert parallelism.

It runs on the ranks, or in predict's process.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import (
    DTensor,
    Replicate,
    Shard,
    distribute_module,
    distribute_tensor,
    parallel,
)

from distlab_course.dispatching import Dispatch, to_experts, to_ranks
from distlab_course.experts import Mixture, RoutedExperts
from distlab_course.float8 import Float8Linear
from distlab_course.float8_gathered import GatherInFloat8, RowwiseInFloat8
from distlab_course.latent import LatentAttention
from distlab_course.llama import Block, Llama
from distlab_course.sequence_parts import Gather, Rowwise

# --- tensor parallelism ---


def split(model: Llama, mesh: DeviceMesh, gathers_again: bool = False) -> None:
    """Tensor parallelism; between the blocks each rank has a part of the sequence.

    Args:
        gathers_again: whether blocks gather sequences again for the backward pass, instead of
            keeping them.
    """
    norm = parallel.SequenceParallel()
    for block in model.blocks.children():
        assert isinstance(block, Block)
        split_block(block, mesh, gathers_again)
    ends = {
        "embedding": parallel.RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "norm": norm,
        "output": parallel.ColwiseParallel(
            input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False
        ),
    }
    # A stage in the middle of a pipeline has none of them.
    own_ends = {name: style for name, style in ends.items() if getattr(model, name) is not None}
    parallel.parallelize_module(model, mesh, own_ends)


def split_block(block: Block, mesh: DeviceMesh, gathers_again: bool = False) -> None:
    """Divide the heads of a block, and the numbers between the halves of its feed-forward layer.

    Of a mixture it divides what all tokens share; its experts are for split_experts. What
    layers in float8 are given, and the gradients of what they give, are gathered in float8 (call
    in_float8 before). A mixture's router and experts take each rank's part, which is not gathered.
    """
    norm = parallel.SequenceParallel()
    attention = block.attention
    gather: parallel.ParallelStyle = Gather(gathers_again)
    rows: parallel.ParallelStyle = Rowwise()
    if isinstance(attention.wo, Float8Linear):
        gather, rows = GatherInFloat8(gathers_again), RowwiseInFloat8()
    plan: dict[str, Any] = {"attention_norm": norm, "attention": gather, "ffn_norm": norm}
    if isinstance(attention, LatentAttention):
        columns, whole = ["wq", "wq_long", "wkv_long"], ["wq_short", "q_norm", "wkv_short"]
        for name in [*whole, "kv_norm"]:
            if getattr(attention, name, None) is not None:
                distribute_module(getattr(attention, name), mesh)  # each rank has all of it
    else:
        columns = ["wq", "wk", "wv"]
        if attention.q_norm is not None:  # each rank has it for its own heads
            plan["attention.q_norm"] = parallel.SequenceParallel(
                sequence_dim=2, use_local_output=True
            )
            plan["attention.k_norm"] = plan["attention.q_norm"]
    halves = "feed_forward"
    if isinstance(block.feed_forward, Mixture):
        halves = "feed_forward.shared"
        distribute_module(block.feed_forward.router.gate, mesh)
    plan |= {f"attention.{name}": parallel.ColwiseParallel() for name in columns}
    plan["attention.wo"] = rows
    plan |= {
        halves: gather,
        f"{halves}.w1": parallel.ColwiseParallel(),
        f"{halves}.w2": rows,
        f"{halves}.w3": parallel.ColwiseParallel(),
    }
    there = {name: style for name, style in plan.items() if _has(block, name)}
    parallel.parallelize_module(block, mesh, there)


def _has(module: nn.Module, name: str) -> bool:
    """Whether a module is there: some blocks have no shared experts, some no short queries."""
    for part in name.split("."):
        module = getattr(module, part, None)  # type: ignore[assignment]  # and ends if it is None
        if module is None:
            return False
    return True


# --- expert parallelism ---


def mesh_of_experts(mesh: DeviceMesh, expert: int) -> DeviceMesh:
    """Another mesh of the same ranks: "pipeline", "copies" of an expert, and "expert".

    The ranks of expert parallelism are those of data and tensor parallelism, which have different
    tokens.

    Args:
        mesh: "pipeline", "data" and "tensor".
        expert: how many ranks share a layer's experts.

    Raises:
        ValueError: so many do not divide the ranks of a stage.
    """
    pipeline, data, tensor = mesh.shape
    if expert < 1 or data * tensor % expert:
        raise ValueError(
            f"expert must divide the {data * tensor} ranks of a stage of the pipeline, "
            f"got {expert!r}. Call train(..., expert={data * tensor})."
        )
    shape = (pipeline, data * tensor // expert, expert)
    return init_device_mesh("cpu", shape, mesh_dim_names=("pipeline", "copies", "expert"))


def split_experts(
    experts: RoutedExperts, mesh: DeviceMesh, policy: MixedPrecisionPolicy, reshard: bool
) -> None:
    """Leave each rank some of a layer's experts, sharded over the ranks that have copies of them.

    Args:
        mesh: of mesh_of_experts.
        policy: of FSDP, as is `reshard`: whether the experts are gathered again for the backward
            pass.

    Raises:
        ValueError: the ranks do not divide the experts.
    """
    number = len(experts.w13)
    own, more = divmod(number, mesh["expert"].size())
    if more:
        raise ValueError(
            f"expert must divide the {number} experts of a layer, got {mesh['expert'].size()!r}. "
            f"Call train(..., expert={number})."
        )
    if mesh["expert"].size() > 1:
        experts.dispatch = to_experts(mesh.get_group("expert"))
        for name, parameter in list(experts.named_parameters()):
            part = distribute_tensor(parameter, mesh["expert"], [Shard(0)], src_data_rank=None)
            experts.register_parameter(name, nn.Parameter(part))
    # Copies that are more than a rank's experts each have a part of every expert instead.
    dimension = 0 if own % mesh["copies"].size() == 0 else 1
    fully_shard(
        experts,
        mesh=mesh["copies"],
        mp_policy=policy,
        reshard_after_forward=reshard,
        shard_placement_fn=lambda _: Shard(dimension),
    )


def dispatch_of(dispatch: str, experts: DeviceMesh, host: int) -> Dispatch:
    """How tokens reach the ranks that share experts.

    Args:
        dispatch: as of `pretraining.train`, as is `host`.
        experts: the mesh of mesh_of_experts.
    """
    group = experts.get_group("expert")
    pipeline, copies, expert = experts.shape
    if dispatch == "experts":
        return to_experts(group)
    if dispatch == "ranks" or expert <= host:
        return to_ranks([group])
    shape = (pipeline, copies, expert // host, host)
    names = ("pipeline", "copies", "hosts", "in_host")
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
    return to_ranks([mesh.get_group("hosts"), mesh.get_group("in_host")])


def sum_gradients(model: nn.Module) -> None:
    """Have FSDP add gradients up, where it would average them over the ranks that share a module.

    An expert's gradient holds the tokens of all ranks already, however few copies it has. So the
    loss is divided by the number of parts of the data instead, as in lab 53.
    """
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)


# --- parameters on two meshes ---


def by_mesh(parameters: list[nn.Parameter]) -> list[list[nn.Parameter]]:
    """The same parameters, apart by the mesh over which they are sharded.

    Torch's functions of many tensors at once take only those of one mesh.
    """
    found: dict[Any, list[nn.Parameter]] = {}
    for parameter in parameters:
        found.setdefault(mesh_of(parameter), []).append(parameter)
    return list(found.values())


def mesh_of(tensor: Tensor) -> DeviceMesh | None:
    """The mesh of a DTensor."""
    return tensor.device_mesh if isinstance(tensor, DTensor) else None


@torch.no_grad()
def total_norm(groups: list[list[nn.Parameter]]) -> Tensor:
    """The norm of all gradients, over all ranks of their meshes.

    Args:
        groups: of by_mesh.
    """
    norms = []
    for parameters in groups:
        gradients = [one.grad for one in parameters if one.grad is not None]
        norm = nn.utils.get_total_norm(gradients)
        norms.append(norm.full_tensor() if isinstance(norm, DTensor) else norm)
    return norms[0] if len(norms) == 1 else nn.utils.get_total_norm(norms)
