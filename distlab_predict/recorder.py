"""Notes what a program calls, as one rank of many, without data.

Called by rank_children.py, which runs the program in a process of its own for each rank.
"""

import functools
import os
import sys
from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed.tensor import DTensor
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils._python_dispatch import TorchDispatchMode

from distlab.compat import torch as private
from distlab_predict import (
    allocator,
    compiled,
    effects,
    group,
    inductor,
    launches,
    memory,
    routing,
    streams,
    torch_gpu,
    torch_groups,
    torch_known,
    torch_lists,
    torch_quick,
    torch_symmetric,
)
from distlab_predict import torch_changed as changed
from distlab_predict import torch_fake as fake
from distlab_predict.nodes import BY_HAND, Recording
from distlab_predict.repeats import Repeats
from distlab_predict.torch_lines import Lines
from distlab_predict.torch_patches import put

SHUFFLING = {"all_to_all_single", "shard_dim_alltoall"}  # functional collectives
GATHERED = {"all_gather_copy_in", "split_with_sizes_copy"}  # of FSDP2
OF_FSDP = {"all_gather_copy_in", "chunk_cat"}  # likewise, of gathering and of reducing


class Recorder(TorchDispatchMode):
    """Notes each operator that a rank calls, and the steps of its optimizer.

    As a mode it is below torch's gradients and above its fake tensors.

    Attributes:
        rank: as which the program runs.
        log: what it has its device do.
        journal: what became of its memory.
    """

    def __init__(self, rank: int, is_compiled: bool | str = False):
        super().__init__()
        self.rank = rank
        self.log = streams.NodeLog()
        self.log.line = Lines().here
        self.journal = memory.Journal(self.log)
        self._compiled: compiled.Compiled | None = None
        if is_compiled:
            self._compiled = compiled.Compiled(self.log, self.journal, is_compiled == BY_HAND)
        self._steps: list[tuple[int, int]] = []
        # the works of functional collectives, by the storage of their result
        self._works: dict[int, group.Done] = {}
        self._is_prepared = False
        self._begin: int | None = None  # the first node of the step that has begun
        # how often the program took a value that no device computes, or a shape that follows from
        # one, as the words of a batch have
        self._known_reads = 0

    def install(self) -> None:
        """Have torch say when modules, optimizers and resized storages are at work."""
        register_module_forward_pre_hook(self.before_module)
        register_optimizer_step_pre_hook(self.before_optimizer)
        register_optimizer_step_post_hook(self.after_optimizer)
        changed.after_resize(self.journal.resize)
        torch_groups.after_preparing_stages(self.after_preparing)
        torch_known.before_reading(self.read)
        if self._compiled is not None:
            put(torch, "compile", self._compiled.compile)

    def repeats(self, state: Callable[[], Hashable], may_repeat: bool) -> Repeats:
        """What repeats passes of a pipeline's micro-batches.

        Args:
            state, may_repeat: as of `Repeats`; `state` is of all but this recorder.
        """

        def state_of_all() -> Hashable:
            own = (len(self._steps), self._begin, len(self._works), self._known_reads)
            return state(), own

        return Repeats(self.log, self.journal, self._compiled, state_of_all, may_repeat)

    # --- operators ---

    def __torch_dispatch__(
        self, operator: Any, types: Any, args: tuple = (), kwargs: Any = None
    ) -> Any:
        if operator is fake.DEVICE and type(args[0]) is FakeTensor:  # more than half of all
            return args[0].fake_device
        made_of_others = [kind for kind in types if fake.is_made_of_others(kind)]
        if made_of_others:  # it comes again, with what they are made of: of a DTensor, its part
            if not any(issubclass(kind, DTensor) for kind in made_of_others):
                return NotImplemented
            made = torch_lists.on_parts(self.__torch_dispatch__, operator, args, kwargs or {})
            if made is NotImplemented:
                self.log.host += launches.DTENSOR
                if torch.is_grad_enabled():  # it may make others with a gradient before a kernel
                    self.log.line()
            return made
        if operator.namespace == "prim":
            if operator is fake.DEVICE:
                return fake.device_of(args[0])
            return operator(*args)
        if operator is fake.READING:
            if fake.ddp_asks(sys._getframe(1)):
                return 1
            self.read(args[0])
        kwargs = kwargs or {}
        if "device" in kwargs:
            kwargs = {**kwargs, "device": torch_gpu.here(kwargs["device"])}
        return self._run(operator, args, kwargs)

    def _run(self, operator: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        """Note an operator, and return what it makes of its arguments."""
        known, given = torch_quick.known(operator, args, kwargs)
        if known is None:
            value = operator(*args, **kwargs)
            given = fake.tensors_in((args, kwargs))
            made = fake.tensors_in(value)
            effect = effects.effect_of(operator, args, kwargs, value, given, made)
            if torch.Tag.dynamic_output_shape in operator.tags and not any(
                map(routing.mark_of, given)
            ):
                self._known_reads += 1
        else:
            value = known.make(given)
            made = fake.tensors_in(value)
            if known.noted is None:
                known.noted = effects.effect_of(operator, args, kwargs, value, given, made)
            effect = known.noted
        self._note(effect, operator, args, kwargs, given, made)
        return value

    def _note(
        self,
        effect: effects.Effect,
        operator: Any,
        args: tuple,
        kwargs: dict[str, Any],
        given: list[Tensor],
        made: list[Tensor],
    ) -> None:
        """Note what an operator has made of these arguments, and what its kernel computes."""
        line = None if effect.work is None else self.log.line()
        for tensor in made:
            self.journal.add(tensor, line)
        name = effect.name
        if name in GATHERED:
            self.journal.name(memory.UNSHARDED, [*given, *made])
        if name in OF_FSDP:
            self.log.host += launches.FSDP
        if effect.role == effects.COLLECTIVE:
            self.log.is_functional = True
            self._note_functional(name, fake.named(operator, args), made)
            self.log.is_functional = False
        elif effect.role == effects.PIPELINE:
            self.log.touch(given, made)
            self.log.call_parts(self._pipeline(operator, args, kwargs, made))
        elif effect.work is not None and line is not None:
            flops, kind, shape, dtype = effect.work
            if self._compiled is not None:
                called = inductor.Called(operator, name, kind, args, kwargs, given, made)
                self._compiled.add(called)
            again = fake.repeats_forward()
            self.log.compute(name, flops, effect.num_bytes, again, kind, shape, dtype, line)
            if effect.counts:
                *_, counted = given[:2]
                self.read(counted)
        elif effect.role == effects.VIEW:
            self.log.host += launches.VIEW

    def _pipeline(
        self, operator: Any, args: tuple, kwargs: dict[str, Any], made: list[Tensor]
    ) -> streams.Parts:
        """What makes the nodes of a collective with its products."""
        line = self.log.line()
        again = fake.repeats_forward()
        return functools.partial(
            torch_symmetric.nodes_of, operator, args, kwargs, made, line=line, again=again
        )

    def read(self, tensor: Tensor) -> None:
        """Note that the program asks for the values of a tensor.

        It waits for the device, unless it has written the numbers itself, as an optimizer its
        `step`, which torch keeps on the processor.
        """
        is_of_device = getattr(tensor, "constant", tensor) is None
        if is_of_device or isinstance(routing.mark_of(tensor), routing.Counts):
            self.log.read()
        else:
            self._known_reads += 1

    def _note_functional(self, name: str, arguments: dict[str, Any], made: list[Tensor]) -> None:
        """Note a functional collective, which DTensor calls, or the wait for one.

        These are the operators of torch.distributed._functional_collectives.
        """
        given = fake.tensors_in(arguments)
        if name in torch_quick.WAITS:
            for tensor in given:
                awaited = self._works.pop(private.key_of(tensor.untyped_storage()), None)
                if awaited is not None:
                    awaited.wait()
            return
        methods = private.FUNCTIONAL_METHODS | dict.fromkeys(SHUFFLING, "alltoall_base")
        kind = name.removesuffix("_").removesuffix("_out")
        if kind not in methods:
            raise NotImplementedError(
                f"how long the functional collective {name} takes is not known here"
            )
        method = getattr(fake.group_named(arguments["group_name"]), methods[kind])
        splits = arguments.get("input_split_sizes")
        if kind in SHUFFLING:
            work = method(made[0], given[0], arguments.get("output_split_sizes"), splits)
        else:
            work = method(made, given, None, splits)
        for tensor in made:
            self._works[private.key_of(tensor.untyped_storage())] = work
        if kind == "shard_dim_alltoall":  # nothing waits for it later
            work.wait()

    # --- steps ---

    def before_module(self, module: torch.nn.Module, _: Any) -> None:
        """Begin a step with the first module that is called."""
        if self._compiled is not None:
            self._compiled.enter()
        self.log.host += launches.MODULE
        if self._begin is None:
            self._begin = len(self.log.nodes)
            if not self._steps:
                self.journal.begin()
            # a schedule of torch's pipelining gathers parameters before it calls a stage
            gathered = (memory.PARAMETERS, memory.UNSHARDED)
            self.journal.name(memory.PARAMETERS, module.parameters(), stay=gathered)

    def after_preparing(self) -> None:
        """Leave out of the first step what was called before its stages knew their shapes."""
        if not self._is_prepared and self._begin is not None and not self._steps:
            self._begin = len(self.log.nodes)
        self._is_prepared = True

    def before_optimizer(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        """Say which storages are parameters and gradients, which an optimizer knows."""
        parameters: list[Tensor] = []
        for settings in optimizer.param_groups:
            parameters += settings["params"]
        for parameter in parameters:
            self.log.host += launches.PARAMETER
            if isinstance(parameter, DTensor):
                self.log.host += launches.DTENSOR
                if torch.is_grad_enabled():  # it may make others with a gradient before a kernel
                    self.log.line()
        gradients = [one.grad for one in parameters if one.grad is not None]
        self.journal.name(memory.PARAMETERS, parameters)
        self.journal.name(memory.GRADIENTS, gradients)
        self.journal.kind = memory.OPTIMIZER

    def after_optimizer(self, *_: Any) -> None:
        """End the step."""
        self.journal.kind = memory.ACTIVATIONS
        self.end_step()

    def end_step(self) -> None:
        """End a step here; the next one begins where it ends.

        A second optimizer's step, before any module is called again, belongs to the step before.
        """
        end = len(self.log.nodes)
        if self._begin is not None:
            begin = self._steps[-1][1] if self._steps else self._begin
            self._steps.append((begin, end))
        elif self._steps:
            begin, _ = self._steps[-1]
            self._steps[-1] = (begin, end)
        self._begin = None

    def recording(self, printed: str, warned: str = "", assumed: tuple[str, ...] = ()) -> Recording:
        """What was noted of a program that has ended.

        A forward pass after its last step, to validate, is no step. In a program without an
        optimizer, all of it is one.

        Args:
            printed: what the program has printed.
            assumed: what follows from data that nobody has, in words.
        """
        if self._begin is not None and not self._steps:
            self.end_step()
        nodes = self.log.nodes
        steps = self._steps
        waits = tuple(self.log.waits)
        if self._compiled is not None:
            made = self._compiled.end(steps, waits)
            self.journal.replace(made.lives, made.uses, made.places)
            nodes = made.nodes
            waits = made.waits
            steps = [(made.places[begin], made.places[end]) for begin, end in steps]
        begin = steps[-1][0] if steps else 0
        held = self.journal.held(allocator.is_expandable(os.environ), begin)
        peak = self.journal.peak()
        return Recording(self.rank, nodes, steps, peak, printed, held, assumed, warned, waits=waits)
