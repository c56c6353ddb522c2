"""A step of pretraining Llama on a mesh of up to four dimensions, as TorchTitan does it.

Lab 54 writes it step by step; lab 63 and benchmarks call it. It runs on the ranks, or in predict's
process. The order of shardings, what is recomputed, and the precision of each part follow
TorchTitan's source at the end of 2024 (github.com/pytorch/torchtitan, 9dec370).
"""

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleInterleaved1F1B
from torch.distributed.pipelining.schedules import PipelineScheduleMulti, PipelineScheduleSingle
from torch.distributed.tensor import parallel
from torch.distributed.tensor.experimental import context_parallel

from distlab_course.dispatching import Dispatch
from distlab_course.dividing import (
    dispatch_of,
    mesh_of_experts,
    split,
    split_experts,
    sum_gradients,
)
from distlab_course.engine import TORCH, Engine, use
from distlab_course.experts import Mixture, balance, routers
from distlab_course.float8 import in_float8
from distlab_course.float8_grouped import Kept
from distlab_course.float8_weights import share_scales
from distlab_course.llama import Llama, Size, turns
from distlab_course.micro_pipelined import pipeline_products
from distlab_course.optimizing import clip, give_states, optimizer_of
from distlab_course.pretraining_arguments import check, check_dispatch, check_engine
from distlab_course.recomputing import recomputed

Loss = Callable[[Tensor, Tensor], Tensor]  # of scores and the tokens that follow


@dataclass(frozen=True)
class Recipe:
    """How a model is computed, as arguments of `train` say."""

    reshard: bool
    recompute: str
    compiles: bool
    dtype: torch.dtype
    reduce_dtype: torch.dtype
    float8: str
    engine: Engine


def nothing(model: Llama) -> None:
    """Leave a part of the model without numbers."""


def train(
    rank: int,
    world_size: int,
    *,
    size: Size,
    tensor: int = 1,
    pipeline: int = 1,
    context: int = 1,
    expert: int = 1,
    dispatch: str = "experts",
    host: int = 8,
    stages: int = 1,
    microbatches: int | None = None,
    batch: int = 2,
    length: int = 8192,
    reshard: bool | None = None,
    recompute: str = "op",
    compiles: bool = False,
    compiles_loss: bool = False,
    async_tensor: bool = False,
    dtype: torch.dtype = torch.bfloat16,
    reduce_dtype: torch.dtype = torch.float32,
    float8: str = "no",
    engine: Engine = TORCH,
    fill: Callable[[Llama], None] = nothing,
    resumed: bool = False,
    steps: int = 2,
) -> None:
    """Take steps on random tokens.

    Args:
        tensor, pipeline: sizes of these dimensions of the mesh; FSDP has the rest.
        context: how many ranks of FSDP share each sequence; their attention gathers its keys and
            values. Torch has this for GPUs only: on a CPU, such a program can be predicted, and not
            run.
        expert: how many ranks share the experts of a layer, if `size` has experts; they are those
            of the dimensions of data and tensor parallelism. Where more ranks have the same
            experts, FSDP shards these over them.
        dispatch: where a token is sent, with `expert` ranks: to each of its "experts", as many rows
            as it has; once to each of the "ranks" that have any of them; or once to each of the
            "hosts", whose ranks send it on among themselves. Results come back likewise, and the
            last two add them up on the way.
        host: how many ranks are in a host, for these hosts.
        stages: on each rank of a pipeline; more than one are interleaved.
        microbatches: into which the batch is cut; None for as many as a pipeline is long. Without a
            pipeline, the passes of one after another add up their gradients.
        batch: sequences in a step, of each rank of FSDP, or of the ranks that share them.
        reshard: whether a block's gathered parameters are let go after its forward pass, and
            gathered again for the backward pass, as in ZeRO-3. Without, they stay until the last
            micro-batch, and so do whole gradients. None: if there is no pipeline.
        recompute: in the backward pass: "none", "op" (all but every second product of matrices,
            attention, and what tensor parallelism has reduced), "layer" (every second block), or
            "full" (every block).
        compiles: whether torch.compile makes each block.
        compiles_loss: whether it makes the loss as well, as in TorchTitan since 2025.
        async_tensor: whether torch.compile has products begin with the first part that ranks of
            tensor parallelism gather, and sends parts of their results early. It does so on GPUs
            only: on a CPU, it changes nothing.
        dtype: in which parameters are gathered and multiplied; all else is in float32.
        reduce_dtype: in which FSDP adds up the gradients of its ranks.
        float8: whether linear layers and experts multiply in float8, but for the last layer and
            routers: "no", "yes", or "gathered", where FSDP also gathers the weights of linear
            layers in float8.
        engine: what layers do as Transformer Engine does it, and not as torch does.
        fill: gives a part of the model its numbers, from a checkpoint for instance. A prediction
            needs none.
        resumed: whether the optimizer has its states before the first step, as after a checkpoint
            was loaded. Then a prediction needs one step, and half the time.
    """
    count = microbatches or pipeline
    check(recompute, float8, compiles and tensor > 1, size, expert, pipeline, stages, batch, count)
    check_dispatch(dispatch, expert, host)
    check_engine(engine, compiles, recompute, dtype, reduce_dtype)
    shape = (pipeline, world_size // tensor // pipeline, tensor)
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("pipeline", "data", "tensor"))
    if async_tensor and torch.cuda.is_available():
        pipeline_products(mesh.get_group("tensor"))
    experts = None if size.experts is None else mesh_of_experts(mesh, expert)
    send = None if experts is None or expert == 1 else dispatch_of(dispatch, experts, host)
    num_stages = pipeline * stages
    reshard = num_stages == 1 if reshard is None else reshard
    recipe = Recipe(reshard, recompute, compiles, dtype, reduce_dtype, float8, engine)
    kept: Kept = {}
    models = []
    for stage in range(mesh.get_local_rank("pipeline"), num_stages, pipeline):
        model = part(size, mesh, experts, stage, num_stages, recipe)
        use(engine, model, None if reshard else kept, is_split=tensor > 1)
        if send is not None:
            send_tokens(model, send)
        fill(model)
        models.append(model)
    optimizers = [optimizer_of(model) for model in models]
    if resumed:
        for optimizer in optimizers:
            give_states(optimizer)
    weights_changed(models, recipe)
    own = mesh.get_local_rank("data") // context
    inputs, targets = batch_of(size, own, batch, length)
    # where gradients are added up, see sum_gradients
    parts = 1 if experts is None else mesh["data"].size()
    loss = torch.compile(loss_of) if compiles_loss else loss_of
    with shared(inputs, targets, models, mesh, context):
        if pipeline > 1:
            loss = functools.partial(loss, parts=parts)
            run = pipelined(models, mesh, inputs, targets, size, loss, count, dtype)
        else:
            loss = functools.partial(loss, parts=parts * count)
            run = functools.partial(
                run_whole, models[0], inputs, targets, loss, count, keep=not reshard
            )
        for _ in range(steps):
            step(models, optimizers, mesh, run)
            kept.clear()
            weights_changed(models, recipe)


def send_tokens(model: Llama, send: Dispatch) -> None:
    """Have each mixture of experts send its tokens in this way."""
    for mixture in model.mixtures():
        mixture.experts.dispatch = send


def weights_changed(models: list[Llama], recipe: Recipe) -> None:
    """Find the scales of weights that are gathered in float8 anew."""
    if recipe.float8 == "gathered":
        for model in models:
            share_scales(model)


def batch_of(size: Size, own: int, batch: int, length: int) -> tuple[Tensor, Tensor]:
    """Random tokens, and the token that follows each of them.

    Args:
        own: the place in the mesh's dimension of data: ranks that differ only in other dimensions
            work on the same tokens.
    """
    generator = torch.Generator().manual_seed(own)
    tokens = torch.randint(size.vocabulary, (batch, length + 1), generator=generator)
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def step(
    models: list[Llama],
    optimizers: list[torch.optim.AdamW],
    mesh: DeviceMesh,
    run: Callable[[], None],
) -> None:
    """Forward and backward pass, and the optimizers' step.

    Args:
        models: this rank's parts of the model, with an optimizer each.
        run: both passes of all parts.
    """
    for optimizer in optimizers:
        optimizer.zero_grad()
    with parallel.loss_parallel():
        run()
    clip(models, mesh, 1.0)
    balance(routers(models), [mesh.get_group(name) for name in ("data", "tensor")])
    for optimizer in optimizers:
        optimizer.step()


def shared(
    inputs: Tensor, targets: Tensor, models: list[Llama], mesh: DeviceMesh, context: int
) -> AbstractContextManager[None]:
    """A context in which each rank has two parts of the tokens.

    One is from the front of the sequence, one is as far from its end, so that causal attention is
    as much work on each rank.
    """
    if context == 1:
        return nullcontext()
    pipeline, data, tensor = mesh.shape
    shape = (pipeline, data // context, context, tensor)
    names = ("pipeline", "data", "context", "tensor")
    ranks = init_device_mesh("cpu", shape, mesh_dim_names=names)["context"]
    layers = [layer for model in models for layer in model.attentions()]
    places = turns(inputs.shape[1], layers[0].turned // 2).clone()
    for layer in layers:
        layer.turns = places
        layer.repeats = False
    return context_parallel(ranks, buffers=[inputs, targets, places], buffer_seq_dims=[1, 1, 0])


def part(
    size: Size,
    mesh: DeviceMesh,
    experts: DeviceMesh | None,
    stage: int,
    stages: int,
    recipe: Recipe,
) -> Llama:
    """A stage of the model, sharded over the other dimensions; its numbers are yet to be filled."""
    with torch.device("meta"):
        model = Llama(size, stage, stages)
    if recipe.float8 != "no":
        in_float8(model, recipe.float8 == "gathered", not_in_float8(model))
    if mesh["tensor"].size() > 1:
        split(model, mesh["tensor"], recipe.engine.gathers_again)
    blocks = list(model.blocks.values())
    for number, block in enumerate(blocks):
        every_second = recipe.recompute == "layer" and number % 2 == 0
        if recipe.recompute in ("full", "op") or every_second:
            block.forward = recomputed(block.forward, some=recipe.recompute == "op")
        if recipe.compiles:
            block.forward = torch.compile(block.forward)
    # The backward pass begins with the root's norm and output, and goes on with the last block, so
    # what was gathered of these two is kept.
    policy = MixedPrecisionPolicy(recipe.dtype, recipe.reduce_dtype)
    shard = functools.partial(fully_shard, mesh=mesh["data"], mp_policy=policy)
    for block in blocks:
        again = recipe.reshard and block is not blocks[-1]
        if experts is not None and isinstance(block.feed_forward, Mixture):
            split_experts(block.feed_forward.experts, experts, policy, again)
        shard(block, reshard_after_forward=again)
    shard(model, reshard_after_forward=False)
    model.to_empty(device="cpu")
    if experts is not None:
        sum_gradients(model)
    for router in routers([model]):
        router.begin()
    return model


def not_in_float8(model: Llama) -> list[str]:
    """The names of layers whose results need more digits: the last one, and routers."""
    return [name for name, _ in model.named_modules() if name.endswith(("output", "gate"))]


def run_whole(
    model: Llama,
    inputs: Tensor,
    targets: Tensor,
    loss: Loss,
    microbatches: int = 1,
    keep: bool = False,
) -> None:
    """Forward and backward pass of a model that is not in a pipeline.

    Args:
        loss: of a micro-batch.
        microbatches: into which the batch is cut.
        keep: whether gradients stay whole, and parameters gathered, until the last of them.
    """
    parts = zip(inputs.chunk(microbatches), targets.chunk(microbatches), strict=True)
    for number, (some, next_tokens) in enumerate(parts):
        if keep and isinstance(model, FSDPModule):
            is_last = number == microbatches - 1
            model.set_is_last_backward(is_last)
            model.set_reshard_after_backward(is_last)
            model.set_requires_gradient_sync(is_last)
        loss(model(some), next_tokens).backward()


def loss_of(scores: Tensor, targets: Tensor, parts: int = 1) -> Tensor:
    """The cross-entropy; shapes (batch, place, vocabulary) and (batch, place).

    Args:
        parts: of the data, if the gradients of all parts are added up.
    """
    loss = F.cross_entropy(scores.flatten(0, 1).float(), targets.flatten(0, 1))
    return loss if parts == 1 else loss / parts


def pipelined(
    models: list[Llama],
    mesh: DeviceMesh,
    inputs: Tensor,
    targets: Tensor,
    size: Size,
    loss: Loss,
    microbatches: int,
    dtype: torch.dtype,
) -> Callable[[], None]:
    """Forward and backward pass of this rank's stages, for one micro-batch after another."""
    ranks = mesh["pipeline"].size()
    tensor = mesh["tensor"].size()
    own = mesh.get_local_rank("pipeline")
    num_stages = ranks * len(models)

    # what a micro-batch is like at the beginning, between two stages, and at the end
    some = inputs[: len(inputs) // microbatches].to("meta")
    empty = functools.partial(torch.empty, dtype=dtype, device="meta", requires_grad=True)
    hidden = empty(len(some), inputs.shape[1] // tensor, size.width)
    scores = empty(*some.shape, size.vocabulary // tensor)

    stages = []
    for number, model in zip(range(own, num_stages, ranks), models, strict=True):
        given = hidden
        if number == 0:
            given = some
        result = hidden
        if number == num_stages - 1:
            result = scores
        stage = PipelineStage(
            model,
            number,
            num_stages,
            torch.device("cpu"),
            input_args=(given,),
            output_args=(result,),
            group=mesh.get_group("pipeline"),
        )
        stages.append(stage)
    schedule: PipelineScheduleSingle | PipelineScheduleMulti
    if len(stages) == 1:
        schedule = Schedule1F1B(stages[0], microbatches, loss_fn=loss)
    else:
        schedule = ScheduleInterleaved1F1B([*stages], microbatches, loss_fn=loss)

    def run() -> None:
        """Give the tokens to the first rank as input, and to the last one as what must come out."""
        if own == 0:
            schedule.step(inputs)
        elif own == ranks - 1:
            schedule.step(target=targets, return_outputs=False)
        else:
            schedule.step()

    return run
