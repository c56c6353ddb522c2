"""Runs a program as one rank of many, without data, and notes what it calls. A process of its own.

predict.py starts it, sends lists of runs, and receives the outcomes of each. Each rank is a forked
child of it, so that torch is imported once.
"""

import contextlib
import functools
import io
import os
import sys
import tempfile
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe, wait
from typing import IO, Any, NoReturn, cast

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
from distlab.programs import end_with_parent
from distlab.wire import pickling
from distlab.wire.messages import Failure
from distlab.wire.source import message_and_lines
from distlab_predict import group, memory, streams
from distlab_predict import torch_changed as changed
from distlab_predict import torch_fake as fake
from distlab_predict.nodes import Outcomes, Recording, Run

IDLE_SECONDS = 300.0
LAST_BYTES = 2000  # of what a recording process has written, shown when it ends too early
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
COMPUTING = {"aten", "fsdp"}
SILENT = {"profiler", "c10d"}
FUNCTIONAL = {"_c10d_functional", "_dtensor"}

Outcome = Recording | Failure


class Recorder(TorchDispatchMode):
    """Notes each operator that a rank calls, and the steps of its optimizer.

    As a mode it is below torch's gradients and above its fake tensors.

    Attributes:
        rank: as which the program runs.
        log: what it has its device do.
        journal: what became of its memory.
    """

    def __init__(self, rank: int):
        super().__init__()
        self.rank = rank
        self.log = streams.NodeLog()
        self.journal = memory.Journal(self.log)
        self._steps: list[tuple[int, int]] = []
        # the works of functional collectives, by the storage of their result
        self._works: dict[int, group.Done] = {}
        self._begin: int | None = None  # the first node of the step that has begun

    def install(self) -> None:
        """Have torch say when modules, optimizers and resized storages are at work."""
        register_module_forward_pre_hook(self.before_module)
        register_optimizer_step_pre_hook(self.before_optimizer)
        register_optimizer_step_post_hook(self.after_optimizer)
        changed.after_resize(self.journal.resize)

    # --- operators ---

    def __torch_dispatch__(
        self, operator: Any, types: Any, args: tuple = (), kwargs: Any = None
    ) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # it comes again, with the part of this rank
        if operator.namespace == "prim":  # more than half of all: where is this tensor?
            if operator is torch.ops.prim.device.default:
                return fake.device_of(args[0])
            return operator(*args)
        if fake.ddp_asks(operator, sys._getframe(1)):
            return 1
        kwargs = kwargs or {}
        value = operator(*args, **kwargs)
        self._note(operator, args, kwargs, value)
        return value

    def _note(self, operator: Any, args: tuple, kwargs: dict[str, Any], value: Any) -> None:
        """Note what an operator has made of these arguments, and what its kernel computes."""
        made = list(fake.tensors_in(value))
        for tensor in made:
            if fake.device_of(tensor).type == "cuda":
                raise RuntimeError("No CUDA GPUs are here")  # torch would have none without data
            self.journal.add(tensor)
        given = list(fake.tensors_in((args, kwargs)))
        name = fake.operator_name(operator)
        if name in GATHERED:
            self.journal.name(memory.UNSHARDED, [*given, *made])
        if operator.namespace in FUNCTIONAL:
            self._note_functional(name, fake.named(operator, args), made)
        elif operator.namespace not in SILENT and not operator.is_view and name not in FREE:
            flops = self._flops_of(operator, args, kwargs, value)
            num_bytes = fake.traffic(operator, args, given, made)
            self.log.compute(name, flops, num_bytes, fake.repeats_forward())

    def _flops_of(self, operator: Any, args: tuple, kwargs: dict[str, Any], value: Any) -> int:
        flops = private.flops_of(operator, value, args, kwargs)
        if flops is None and operator.namespace not in COMPUTING:
            how = "tell torch, with torch.utils.flop_counter.register_flop_formula"
            raise NotImplementedError(
                f"nothing is known of the FLOPs of the operator {operator}: {how}"
            )
        return flops or 0

    def _note_functional(self, name: str, arguments: dict[str, Any], made: list[Tensor]) -> None:
        """Note a functional collective, which DTensor calls, or the wait for one.

        These are the operators of torch.distributed._functional_collectives.
        """
        given = list(fake.tensors_in(arguments))
        if name == "wait_tensor":
            awaited = self._works.pop(private.key_of(given[0].untyped_storage()), None)
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
            work = method(made[0], given[0], None, splits)
        else:
            work = method(made, given, None, splits)
        for tensor in made:
            self._works[private.key_of(tensor.untyped_storage())] = work
        if kind == "shard_dim_alltoall":  # nothing waits for it later
            work.wait()

    # --- steps ---

    def before_module(self, module: torch.nn.Module, _: Any) -> None:
        """Begin a step with the first module that is called."""
        if self._begin is None:
            self._begin = len(self.log.nodes)
            if not self._steps:
                self.journal.begin()
            self.journal.name(memory.PARAMETERS, module.parameters())

    def before_optimizer(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        """Say which storages are gradients, now that the optimizer has its hands on them."""
        parameters = [
            parameter for settings in optimizer.param_groups for parameter in settings["params"]
        ]
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

    def recording(self, printed: str) -> Recording:
        """What was noted of a program that has ended.

        A forward pass after its last step, to validate, is no step. In a program without an
        optimizer, all of it is one.
        """
        if self._begin is not None and not self._steps:
            self.end_step()
        return Recording(self.rank, self.log.nodes, self._steps, self.journal.peak(), printed)


# --- one rank, in a child ---


def record(run: Run, rank: int, meet: Callable[[int], None]) -> Outcome:
    """Run the program as this rank.

    Args:
        run: what to run, and where.
        rank: as which.
        meet: called at once with each rank that it exchanges messages with.
    """
    os.environ.clear()
    os.environ.update(run.environment)
    os.chdir(run.folder)
    sys.path[:] = run.path
    recorder = Recorder(rank)
    recorder.install()
    streams.install(recorder.log)
    group.install(recorder.log, functools.cache(meet))
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
        why = (
            f"what comes next depends on the value of a tensor ({error.func}), "
            "and here tensors have only shapes"
        )
        return failure_of(NotImplementedError(why).with_traceback(error.__traceback__), rank)
    except Exception as error:
        return failure_of(error, rank)
    return recorder.recording(shown.getvalue())


def failure_of(error: BaseException, rank: int) -> Failure:
    """What a rank has raised, with the learner's own lines."""
    message, lines = message_and_lines(error)
    whole = "".join(traceback.format_exception(error))
    return Failure(rank, type(error).__name__, message, lines, whole)


@dataclass(frozen=True)
class Child:
    """A forked process that records a rank.

    Attributes:
        rank: which one.
        pid: its number.
        source: what it sends: the ranks that it meets, and then its outcome.
        written: what it has written to its stdout and stderr.
    """

    rank: int
    pid: int
    source: Connection
    written: IO[bytes]

    def receive(self) -> int | Outcome:
        """A rank that the child meets, or its outcome, after which it has ended."""
        try:
            received = self.source.recv()
        except EOFError:
            received = None
        if isinstance(received, int):
            return received
        _, status = os.waitpid(self.pid, 0)
        if received is None:
            received = failure_of(RuntimeError(self._end_in_words(status)), self.rank)
        self.source.close()
        self.written.close()
        return received

    def _end_in_words(self, status: int) -> str:
        """How a child ended that has sent no outcome, and the end of what it wrote."""
        ended = f"The recording process ended (exit status {os.waitstatus_to_exitcode(status)})."
        self.written.seek(0)
        words = self.written.read().decode(errors="replace")[-LAST_BYTES:].strip()
        return f"{ended} Its last lines:\n{words}" if words else ended


def start(run: Run, rank: int) -> Child:
    """Record in a forked child, which sends the ranks that it meets, and then its outcome."""
    source, sink = Pipe(duplex=False)
    written = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the child lives
    recorder = os.getpid()
    pid = os.fork()
    if pid == 0:
        end_with_parent(recorder)
        source.close()
        os.dup2(written.fileno(), 1)
        os.dup2(written.fileno(), 2)
        _send_outcome(run, rank, sink)
    sink.close()
    return Child(rank, pid, source, written)


def _send_outcome(run: Run, rank: int, sink: Connection) -> NoReturn:
    """Record, send the outcome, and end this child."""
    status = 1
    try:  # from here nothing may leave this function: the child would go on as its parent
        sink.send(record(run, rank, sink.send))
        status = 0
    except Exception as error:  # the folder is gone, or what is to be sent cannot be pickled
        sink.send(failure_of(error, rank))
        status = 0
    except SystemExit as end:
        status = _status_of(end)
    except BaseException as error:  # as one of the program's own, which is no Exception
        sink.send(failure_of(error, rank))
        status = 0
    finally:
        os._exit(status)


def _status_of(end: SystemExit) -> int:
    """The exit status after `sys.exit(...)`; as Python does, write words given to it to stderr."""
    if end.code is None:
        return 0
    if isinstance(end.code, int):
        return end.code & 0xFF  # of a larger one, the system keeps no more
    print(end.code, file=sys.stderr, flush=True)
    return 1


# --- all ranks, in the parent ---


class Recordings:
    """The recordings of several runs, as many at once as there are cores.

    Args:
        runs: what to record.
    """

    def __init__(self, runs: Sequence[Run]):
        self._runs = runs
        # by run, by rank; None for ranks that have not ended
        self._found: list[dict[int, Outcome | None]] = [
            dict.fromkeys(run.ranks or [0]) for run in runs
        ]
        # (number of the run, rank), in the order in which they start
        self._pending = deque(
            (number, rank) for number, ranks in enumerate(self._found) for rank in ranks
        )
        # children with the numbers of their runs, by the pipe on which they send
        self._running: dict[Connection, tuple[int, Child]] = {}

    def outcomes(self) -> list[Outcomes]:
        """Record all of them, and return what the ranks of each have noted."""
        at_once = machine.cores()
        while self._pending or self._running:
            while self._pending and len(self._running) < at_once:
                number, rank = self._pending.popleft()
                child = start(self._runs[number], rank)
                self._running[child.source] = (number, child)
            # wait takes sockets and numbers too, so its types do not say that these are pipes
            for source in cast("list[Connection]", wait(list(self._running))):
                self._receive(source)
        return [
            [outcome for outcome in ranks.values() if outcome is not None] for ranks in self._found
        ]

    def _receive(self, source: Connection) -> None:
        """Note what a child has sent: its outcome, or a rank that it meets, which is to run too."""
        number, child = self._running[source]
        received = child.receive()
        if not isinstance(received, int):
            self._found[number][child.rank] = received
            del self._running[source]
        elif self._follows(number, received):
            self._found[number][received] = None
            self._pending.append((number, received))

    def _follows(self, number: int, rank: int) -> bool:
        """Whether a rank that another one meets is to be recorded, and is not yet."""
        run = self._runs[number]
        found = self._found[number]
        return run.ranks is None and rank not in found and len(found) < run.max_roles


def main() -> None:
    """Record the runs that are asked for, until nobody asks for a while."""
    end_with_parent(os.getppid())
    changed.adapt(group.NAME)
    asks = Connection(int(sys.argv[1]))
    with contextlib.suppress(EOFError):
        while asks.poll(IDLE_SECONDS):
            asks.send(Recordings(asks.recv()).outcomes())
    os._exit(0)
