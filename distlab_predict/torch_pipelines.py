"""Has torch's pipelining ask whether a pass of a micro-batch must run, or can be repeated.

Called by rank_children.py, in the process of a rank that is recorded; repeats.py says when a pass
can be repeated. Tried with torch 2.13.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.distributed.pipelining import _utils, schedules
from torch.distributed.pipelining import stage as pipeline_stage
from torch.nn.parallel import DistributedDataParallel

from distlab_predict.repeats import Again, Repeats
from distlab_predict.repeats_compared import BACKWARD, FORWARD, LOSS
from distlab_predict.torch_patches import put


class Passes:
    """The passes of a rank's stages, as torch's schedules call them.

    Args:
        repeats: says what must run.
    """

    def __init__(self, repeats: Repeats):
        self._repeats = repeats

    def forward(
        self,
        own: Callable[..., Any],
        stage: Any,
        chunk: int,
        args: Any,
        kwargs: Any = None,
        save_forward_output: bool = True,
    ) -> Any:
        """Stand in for a stage's forward pass; the arguments are those of torch's."""
        if chunk == 0:
            self._repeats.begin_step(stage)
        given = _given_to_forward(stage, chunk, args, kwargs)
        if _is_last_of_ddp(stage, chunk) or not self._repeats.can_repeat(FORWARD, stage, given):
            call = functools.partial(own, stage, chunk, args, kwargs, save_forward_output)
            output: list[Any] = []

            def called() -> Any:
                output.append(call())
                return output[0]

            return self._repeats.run(
                FORWARD, stage, chunk, given, called, lambda: output[0], stage.submod
            )
        self._repeats.leave_out(stage, chunk)
        output_again = self._repeats.repeat(FORWARD, stage, chunk, given, {})
        whole = pipeline_stage._normalize_model_output_as_tuple(output_again)
        if stage.is_last and save_forward_output:
            stage.output_chunks.append(output_again)
        stage.fwd_cache[chunk] = (whole, [given])
        return output_again

    def loss(
        self,
        own: Callable[..., Any],
        schedule: Any,
        stage: Any,
        output: Any,
        targets: Any,
        chunk: int,
        options: Any = None,
    ) -> None:
        """Stand in for a schedule's loss; the arguments are those of torch's."""
        call = functools.partial(own, schedule, stage, output, targets, chunk, options)
        if not stage.is_last or schedule._loss_fn is None:
            call()
            return
        losses = schedule._internal_losses
        given = (output, targets[chunk], options)
        if not self._repeats.is_left_out(stage, chunk):
            self._repeats.run(
                LOSS, stage, chunk, given, call, lambda: losses[-1], schedule._loss_fn
            )
            return
        if not self._repeats.can_repeat(LOSS, stage, given):
            raise Again
        losses.append(self._repeats.repeat(LOSS, stage, chunk, given, {}))

    def backward(
        self,
        own: Callable[..., Any],
        stage: Any,
        chunk: int,
        loss: Any = None,
        full_backward: bool = True,
        last_backward: bool = False,
    ) -> None:
        """Stand in for a stage's backward pass; the arguments are those of torch's."""
        call = functools.partial(own, stage, chunk, loss, full_backward, last_backward)
        if not stage.has_backward:
            call()
            return
        given = (loss,) if stage.is_last else _received(stage.grad_recv_info[chunk])
        if not full_backward:
            self._repeats.repeat_no_more()
        if not self._repeats.is_left_out(stage, chunk):
            self._repeats.run(
                BACKWARD, stage, chunk, given, call, lambda: stage.bwd_cache[chunk], stage.submod
            )
        elif self._repeats.can_repeat(BACKWARD, stage, given):
            outputs, values = stage.fwd_cache.pop(chunk)
            held = self._repeats.by_storage((outputs, values, loss))
            if stage.is_last and not stage.is_first:
                for tensor in outputs:  # as torch detaches them
                    tensor.requires_grad = False
            del outputs, values, call, loss
            stage.bwd_cache[chunk] = self._repeats.repeat(BACKWARD, stage, chunk, given, held)
        else:
            raise Again
        self._repeats.end_chunk(stage, chunk)


def _given_to_forward(stage: Any, chunk: int, args: Any, kwargs: Any) -> Any:
    """What a stage's forward pass is given, by the program or by the stage before."""
    if stage.is_first:
        return args, kwargs or {}
    infos = stage.args_recv_info[chunk]
    for info in infos:
        if info.buffer is not None and type(info.tensor_meta) is _utils._TensorMeta:
            # the stage would say so, but the tensors are compared before
            has_gradient = info.tensor_meta.requires_grad and stage.has_backward
            info.buffer.requires_grad = has_gradient and torch.is_grad_enabled()
    return _received(infos), kwargs or {}


def _received(infos: Any) -> tuple[Any, ...]:
    return tuple(info.buffer for info in infos)


def _is_last_of_ddp(stage: Any, chunk: int) -> bool:
    """Whether DDP reduces gradients after the backward pass of this micro-batch."""
    is_last = stage.chunks is not None and chunk == stage.chunks - 1
    return is_last and isinstance(stage.submod, DistributedDataParallel)


def can_repeat() -> bool:
    """Whether torch's stages are those of 2.13, whose passes can be repeated.

    torch 2.15 keeps what a forward pass leaves elsewhere, and lets it go earlier.
    """
    attributes = pipeline_stage._PipelineStageBase.__init__.__code__.co_names
    return hasattr(pipeline_stage, "InferenceMode") and "fwd_cache" in attributes


def install(repeats: Repeats) -> None:
    """Have the stages of a pipeline ask here whether a pass must run."""
    if not can_repeat():
        return
    passes = Passes(repeats)
    stage = pipeline_stage._PipelineStageBase
    for owner, name, function in (
        (stage, "forward_one_chunk", passes.forward),
        (stage, "backward_one_chunk", passes.backward),
        (schedules._PipelineSchedule, "_maybe_compute_loss", passes.loss),
    ):
        own = getattr(owner, name)
        put(owner, name, _standing_in(own, function))


def _standing_in(own: Callable[..., Any], function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(own)
    def call(*args: Any, **kwargs: Any) -> Any:
        return function(own, *args, **kwargs)

    return call
