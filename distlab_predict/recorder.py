"""Runs a program as one rank of many, without data, and notes what it calls. A process of its own.

predict.py starts it, sends lists of runs, and receives the outcomes of each. Each rank is a forked
child of it, so that torch is imported once.
"""

import contextlib
import functools
import io
import os
import sys
from collections import deque
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils._python_dispatch import TorchDispatchMode

from distlab import machine
from distlab.compat import torch as private
from distlab.launch.fork_server import end_with_parent
from distlab.rank.raised import describe_failure
from distlab.rank.this_rank import THIS_RANK
from distlab.wire import pickling
from distlab.wire.messages import Failure
from distlab_predict import group, memory, streams
from distlab_predict import torch_changed as changed
from distlab_predict import torch_fake as fake
from distlab_predict.nodes import Outcomes, Recording, Run

IDLE_SECONDS = 300.0
# operators that write nothing
FREE = {
    "empty",
    "empty_like",
    "empty_strided",
    "new_empty",
    "new_empty_strided",
    "_unsafe_view",
    "_local_scalar_dense",
}
SHUFFLING = {"all_to_all_single", "shard_dim_alltoall"}  # functional collectives
GATHERED = {"all_gather_copy_in", "split_with_sizes_copy"}  # of FSDP2
# torch's own libraries of operators
COMPUTING, SILENT, FUNCTIONAL = (
    {"aten", "fsdp"},
    {"profiler", "c10d"},
    {"_c10d_functional", "_dtensor"},
)


class Recorder(TorchDispatchMode):
    """Notes each operator, in a mode below torch's gradients and above its fake tensors; and what
    hooks tell it.
    """

    def __init__(self, rank: int):
        super().__init__()
        self.rank, self.timeline = rank, streams.Timeline()
        self.journal = memory.Journal(self.timeline)
        self._steps: list[tuple[int, int]] = []
        # of functional collectives, by the storage of their result
        self._works: dict[int, group.Done] = {}
        self._begin: int | None = None  # of the step that has begun
        register_module_forward_pre_hook(self.before_module)
        register_optimizer_step_pre_hook(self.before_optimizer)
        register_optimizer_step_post_hook(self.after_optimizer)
        resize = torch.UntypedStorage.resize_

        def resized(storage: torch.UntypedStorage, size: int) -> Any:
            value = resize(storage, size)
            self.journal.resize(storage)
            return value

        torch.UntypedStorage.resize_ = resized

    def __torch_dispatch__(
        self, operator: Any, types: Any, args: tuple = (), kwargs: Any = None
    ) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # it comes again, with the part of this rank
        if operator.namespace == "prim":  # more than half of all: where is this tensor?
            return (
                fake.device_of(args[0])
                if operator is torch.ops.prim.device.default
                else operator(*args)
            )
        if fake.ddp_asks(operator, sys._getframe(1)):
            return 1
        value = operator(*args, **(kwargs or {}))
        made = list(fake.tensors_in(value))
        for tensor in made:
            if fake.device_of(tensor).type == "cuda":
                raise RuntimeError("No CUDA GPUs are here")  # torch would have none without data
            self.journal.add(tensor)
        name, tensors = fake.operator_name(operator), list(fake.tensors_in((args, kwargs)))
        if name in GATHERED:
            self.journal.name(memory.UNSHARDED, [*tensors, *made])
        if operator.namespace in FUNCTIONAL:
            self._functional(name, fake.named(operator, args), made)
        elif operator.namespace not in SILENT and not operator.is_view and name not in FREE:
            flops = private.flops_of(operator, value, args, kwargs or {})
            if flops is None and operator.namespace not in COMPUTING:
                how = "tell torch, with torch.utils.flop_counter.register_flop_formula"
                raise NotImplementedError(
                    f"nothing is known of the FLOPs of the operator {operator}: {how}"
                )
            num_bytes = fake.traffic(operator, args, tensors, made)
            self.timeline.compute(name, flops or 0, num_bytes, fake.repeats_forward())
        return value

    def _functional(self, name: str, arguments: dict[str, Any], made: list[Tensor]) -> None:
        """A collective of torch.distributed._functional_collectives, which DTensor calls, or the
        wait for it.
        """
        tensors = list(fake.tensors_in(arguments))
        if name == "wait_tensor":
            work = self._works.pop(private.key_of(tensors[0].untyped_storage()), None)
            return None if work is None else work.wait()
        methods = private.FUNCTIONAL_METHODS | dict.fromkeys(SHUFFLING, "alltoall_base")
        if (kind := name.removesuffix("_").removesuffix("_out")) not in methods:
            raise NotImplementedError(
                f"how long the functional collective {name} takes is not known here"
            )
        output, given = (made[0], tensors[0]) if kind in SHUFFLING else (made, tensors)
        method = getattr(fake.group_named(arguments["group_name"]), methods[kind])
        work = method(output, given, None, arguments.get("input_split_sizes"))
        self._works |= {private.key_of(tensor.untyped_storage()): work for tensor in made}
        if kind == "shard_dim_alltoall":  # nothing waits for it later
            work.wait()

    # --- steps ---

    def before_module(self, module: torch.nn.Module, _: Any) -> None:
        if self._begin is None:
            self._begin = len(self.timeline.nodes)
            if not self._steps:
                self.journal.begin()
            self.journal.name(memory.PARAMETERS, module.parameters())

    def before_optimizer(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        parameters = [
            parameter for settings in optimizer.param_groups for parameter in settings["params"]
        ]
        self.journal.name(memory.PARAMETERS, parameters)
        self.journal.name(
            memory.GRADIENTS, [one.grad for one in parameters if one.grad is not None]
        )
        self.journal.kind = memory.OPTIMIZER

    def after_optimizer(self, *_: Any) -> None:
        self.journal.kind = memory.ACTIVATIONS
        self.end_step()

    def end_step(self) -> None:
        """A step ends here, and the next one begins; a second optimizer's belongs to the step
        before.
        """
        end, steps = len(self.timeline.nodes), self._steps
        if self._begin is not None:
            steps.append((steps[-1][1] if steps else self._begin, end))
        elif steps:
            steps[-1] = (steps[-1][0], end)
        self._begin = None

    def recording(self, printed: str) -> Recording:
        """What was noted, of a program that has ended; a forward pass after its last step, to
        validate, is no step.
        """
        if self._begin is not None and not self._steps:  # a program without an optimizer
            self.end_step()
        return Recording(self.rank, self.timeline.nodes, self._steps, self.journal.peak(), printed)


def record(run: Run, rank: int, meet: Callable[[int], None]) -> Recording | Failure:
    """Run the program as this rank, and tell at once with which ranks it exchanges messages."""
    os.environ.clear()
    os.environ.update(run.environment)
    os.chdir(run.folder)
    sys.path[:] = run.path
    recorder, THIS_RANK.rank = Recorder(rank), rank
    streams.install(recorder.timeline)
    group.install(recorder.timeline, functools.cache(meet))
    dist.init_process_group(
        group.NAME, rank=rank, world_size=run.world_size, store=dist.HashStore()
    )
    dist.init_process_group = lambda *_, **__: None  # a program that calls it finds it done
    shown = io.StringIO()
    try:
        function = pickling.loads(run.header, run.buffers)
        with contextlib.redirect_stdout(shown), fake.without_data(recorder):
            function(rank, run.world_size)
    except fake.NeedsData as error:
        why = f"what comes next depends on the value of a tensor ({error.func}), and here tensors have only shapes"
        return describe_failure(NotImplementedError(why).with_traceback(error.__traceback__))
    except Exception as error:
        return describe_failure(error)
    return recorder.recording(shown.getvalue())


def start(run: Run, rank: int) -> Connection:
    """Record in a forked child, which sends the ranks that it meets, and then its outcome."""
    source, sink = Pipe(duplex=False)
    if os.fork() == 0:
        end_with_parent()
        source.close()
        try:  # from here nothing may leave this function: the child would go on as its parent
            sink.send(record(run, rank, sink.send))
        except Exception as error:  # the folder is gone, or what is to be sent cannot be pickled
            sink.send(describe_failure(error))
        finally:
            os._exit(0)
    sink.close()
    return source


def outcomes_of(runs: Sequence[Run]) -> list[Outcomes]:
    """Record the ranks of runs, as many at once as there are cores."""
    found: list[dict[int, Any]] = [dict.fromkeys(run.ranks or [0]) for run in runs]
    wanted = deque((number, rank) for number, ranks in enumerate(found) for rank in ranks)
    running: dict[Connection, tuple[int, int]] = {}
    at_once = machine.cores()
    while wanted or running:
        while wanted and len(running) < at_once:
            number, rank = wanted.popleft()
            running[start(runs[number], rank)] = number, rank
        for child in wait(list(running)):
            number, rank = running[child]
            try:
                said = child.recv()
            except EOFError:
                THIS_RANK.rank = rank
                said = describe_failure(
                    RuntimeError("the program has ended its process, or the machine had no memory")
                )
            if not isinstance(said, int):
                found[number][rank] = said
                del running[child]
                os.wait()
            elif (
                runs[number].ranks is None
                and said not in found[number]
                and len(found[number]) < runs[number].max_roles
            ):
                found[number][said] = None
                wanted.append((number, said))
    return [list(outcomes.values()) for outcomes in found]


def main() -> None:
    """Record the runs that are asked for, and send their outcomes, until nobody asks for a while."""
    end_with_parent()
    changed.adapt(group.NAME)
    asks = Connection(int(sys.argv[1]))
    with contextlib.suppress(EOFError):
        while asks.poll(IDLE_SECONDS):
            asks.send(outcomes_of(asks.recv()))
    os._exit(0)
