"""Notes of what this rank does on a simulated cluster, and its virtual clock.

Runs on every rank: backend.py notes operations, the program what it computes. `settle` and
`seconds_of` gather the notes of several ranks, and simulation.py finds the times. Called by the
functions of simulated/__init__, by checking/trial.py and by measure/timing.py.
"""

import contextlib
import itertools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from distlab.compat.torch import flops_of
from distlab.simulated.devices import Device
from distlab.simulated.events import Align, Callback, Compute, NotedEvent, Wait
from distlab.simulated.network import Network
from distlab.simulated.results import Result, Unfinished
from distlab.simulated.simulation import simulate


class Program:
    """A sequence of notes: of the rank's own program, of a callback, or of what does not count.

    Attributes:
        op: the number of the callback; 0 for anything else.
        events: the notes.
        flops: what was computed since the last of them.
    """

    def __init__(self, op: int = 0):
        self.op = op
        self.events: list[NotedEvent] = []
        self.flops = 0

    def note_end(self) -> None:
        """Note that the program of this thread has waited for the end of this one."""
        NOTES.add(Wait(self.op))


class _Thread(threading.local):
    """What a thread makes notes for: a callback, or None for the rank's own program."""

    program: Program | None = None


class Notes:
    """What this rank has done since the notes were last settled.

    Attributes:
        network: the machines that the ranks are on; None for the one that they really run on.
        device: what computes on this rank; None if computing takes no time.
        isolated: whether this is inside of `isolated`, where computing takes no time either.
        counting: holds CountFlops while the device counts operations.
        thread: what each thread makes notes for.
        lock: of the notes.
        program: the rank's own program.
        numbers: of operations and callbacks.
        callbacks: those that have not ended.
        start: the virtual clock when the notes were last settled.
        unfinished: what had begun by then and had not ended.
        aligned: the last alignment: the number of the cell, and its own in the cell.
    """

    def __init__(self) -> None:
        self.network: Network | None = None
        self.device: Device | None = None
        self.isolated = False
        self.counting = contextlib.ExitStack()
        self.thread = _Thread()
        self.lock = threading.RLock()
        self.clear()

    def clear(self) -> None:
        """Forget what was noted, and set the clock to 0."""
        self.program = Program()
        self.numbers = itertools.count(1)
        self.callbacks: list[Program] = []
        self.start = 0.0
        self.unfinished: Unfinished = []
        self.aligned = (0, 0)

    @property
    def current(self) -> Program:
        """The program that this thread notes for."""
        return self.thread.program or self.program

    def add(self, event: NotedEvent) -> None:
        """Note an event, after what the device has computed since the one before."""
        with self.lock:
            self._note_computed()
            self.current.events.append(event)

    def add_callback(self, after: int) -> Program:
        """Note that a callback follows an operation or callback, and return its program."""
        callback = Program(next(self.numbers))
        with self.lock:
            self.callbacks.append(callback)
            self.add(Callback(callback.op, after, callback.events))
        return callback

    @contextlib.contextmanager
    def recording_into(self, program: Program) -> Iterator[None]:
        """Note what this thread does meanwhile in a program: a callback, or one that is ignored."""
        before = self.thread.program
        # a thread that counts already would count twice
        must_count = self.device is not None and not self._counts()
        self.thread.program = program
        try:
            with CountFlops() if must_count else contextlib.nullcontext():
                yield
            self._note_computed()
        finally:
            self.thread.program = before
            # no callback, or the notes were cleared meanwhile
            with contextlib.suppress(ValueError):
                self.callbacks.remove(program)

    def take_events(self) -> list[NotedEvent]:
        """Begin new notes and return the old ones.

        What callbacks still do goes into the new ones, as new callbacks, each after its old one.
        """
        self._note_computed()
        with self.lock:
            events = self.program.events
            self.program.events = []
            for callback in self.callbacks:
                after = callback.op
                callback.op = next(self.numbers)
                callback.events = []
                self.program.events.append(Callback(callback.op, after, callback.events))
        return events

    def _note_computed(self) -> None:
        """Note what the device has computed since the last event.

        What the program's own threads compute does not count.
        """
        program = self.current
        if self.device is None or not program.flops or not self._counts():
            return
        seconds = self.device.seconds(program.flops)
        with self.lock:
            program.events.append(Compute(seconds))
        program.flops = 0

    def _counts(self) -> bool:
        """Whether what this thread computes counts."""
        if self.thread.program is not None:
            return True
        # by number, because current_thread() would make a Thread for one of C++
        return threading.get_ident() == threading.main_thread().ident


class CountFlops(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch gives it no types
    """Adds to the notes what each operator computes, as torch's FlopCounterMode counts it."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch gives it no types

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Whether torch hides this mode from its compiler.

        To do so, torch imports the compiler, which costs each rank a second and 70 MB.
        """
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        # DTensor asks for the shape of a result
        if any(kind.__name__ == "FakeTensor" for kind in types):
            return func(*args, **kwargs)
        if any(kind not in (Tensor, torch.nn.Parameter) for kind in types):
            # a DTensor computes by operators on its parts, which come here too
            return NotImplemented
        value = func(*args, **kwargs)
        flops = flops_of(func, value, args, kwargs)
        if flops is not None:
            NOTES.current.flops += flops
        return value


NOTES = Notes()


def use(network: Network | None) -> None:
    """Set the machines that these ranks are on; all clocks are then at 0.

    Runs on: every rank.

    Args:
        network: of the machines; None for the one that the ranks really run on.
    """
    NOTES.counting.close()
    NOTES.clear()
    NOTES.network = network
    NOTES.device = None
    if network is not None:
        NOTES.device = network.device
    if NOTES.device is not None:
        NOTES.counting.enter_context(CountFlops())  # on this thread, as long as the network is used


def align(number: tuple[int, int]) -> None:
    """Note that all ranks that call this with the same number go on together from here.

    Runs on: each of them.
    """
    NOTES.aligned = number
    NOTES.add(Align(number))


def compute(seconds: float) -> None:
    """Advance this rank's virtual clock as if it had computed; without virtual clocks, sleep.

    Runs on: a rank.
    """
    if NOTES.network is None:
        time.sleep(seconds)
    elif not NOTES.isolated:
        NOTES.add(Compute(seconds))


@contextlib.contextmanager
def isolated() -> Iterator[Program]:
    """Note what this rank does meanwhile in a program of its own, where computing takes no time.

    Runs on: a rank.
    """
    program = NOTES.program
    device = NOTES.device
    was_isolated = NOTES.isolated
    NOTES.program = Program()
    NOTES.device = None
    NOTES.isolated = True
    try:
        yield NOTES.program
    finally:
        NOTES.program = program
        NOTES.device = device
        NOTES.isolated = was_isolated


def settle() -> Result:
    """Find the virtual times of everything since the last call; new notes begin at these clocks.

    Runs on: every rank of the cluster (a rank that skips it hangs the rest).

    Returns:
        the result; what happened (operations, transfers and spans) is there on rank 0 only.

    Raises:
        RuntimeError: something was noted, but there is no network to simulate it on.
    """
    events = NOTES.take_events()
    noted = _Noted(events, NOTES.unfinished, NOTES.start, NOTES.aligned)
    result = _simulate_together(noted, None)
    rank = dist.get_rank()
    NOTES.unfinished = result.unfinished[rank]
    NOTES.start = result.clocks[rank]
    return result


def seconds_of(
    fn: Callable[..., Any], args: tuple[Any, ...], group: dist.ProcessGroup | None
) -> float:
    """Virtual seconds of fn(*args), from when all ranks begin until the slowest has ended.

    What the ranks did before, and what others do meanwhile, does not count.

    Runs on: every rank of the group.

    Raises:
        RuntimeError: something was noted, but there is no network to simulate it on.
    """
    cell, latest = NOTES.aligned
    align((cell, latest + 1))
    before = len(NOTES.program.events)
    fn(*args)
    events = NOTES.take_events()
    noted = _Noted(events[before:], [], 0.0, NOTES.aligned)
    result = _simulate_together(noted, group)
    # They go back, because they still count for `settle`. Callbacks that go on have new notes by
    # now, which follow their old ones; see `take_events`.
    NOTES.program.events[:0] = events
    return max(result.clocks)  # those of ranks that are not in the group have stood still


@dataclass(frozen=True)
class _Noted:
    """What one rank sends to the rank that simulates.

    A rank outside of the group has done nothing, as far as the others know.

    Attributes:
        events: what it has noted.
        unfinished: what it had begun before, see Result.
        start: its clock at first.
        aligned: its last alignment.
    """

    events: Sequence[NotedEvent] = ()
    unfinished: Unfinished = field(default_factory=list)
    start: float = 0.0
    aligned: tuple[int, int] = (0, 0)


def _simulate_together(noted: _Noted, group: dist.ProcessGroup | None) -> Result:
    """Find the result of what the group's ranks have noted.

    Ranks that are not in the group have done nothing. Only the group's first rank gets what
    happened.

    Args:
        noted: by this rank.
        group: of the ranks that call this; None for the group of all ranks.

    Raises:
        RuntimeError: on every rank of the group, if there is something to simulate, and no network.
    """
    with NOTES.recording_into(Program()):  # what is sent here is no part of the program
        if dist.get_rank(group) == 0:
            result = _simulate_on_first_rank(noted, group)
        else:
            result = _receive_result(noted, group)
    # every rank raises, because one that raised alone would leave the others waiting for it
    if result is None:
        raise RuntimeError(
            "There are no virtual times without a network: call notes.use(network) first."
        )
    return result


def _simulate_on_first_rank(noted: _Noted, group: dist.ProcessGroup | None) -> Result | None:
    """Gather the notes of the group's ranks, find the result, and send them their part of it."""
    members = dist.get_process_group_ranks(group)
    gathered: list[Any] = [None] * len(members)
    dist.gather_object(noted, gathered, group=group, group_dst=0)
    of_ranks = [_Noted() for _ in range(dist.get_world_size())]
    for rank, of_member in zip(members, gathered, strict=True):
        of_ranks[rank] = of_member
    result = _simulated(of_ranks)
    NOTES.aligned = max(one.aligned for one in of_ranks)
    answer = None
    if result is not None:
        answer = Result(result.clocks, result.unfinished)
    dist.broadcast_object_list([answer, NOTES.aligned], group=group, group_src=0)
    return result


def _receive_result(noted: _Noted, group: dist.ProcessGroup | None) -> Result | None:
    """Send this rank's notes to the group's first rank, and receive the clocks of all ranks."""
    dist.gather_object(noted, None, group=group, group_dst=0)
    answer: list[Any] = [None, None]
    dist.broadcast_object_list(answer, group=group, group_src=0)
    result: Result | None
    result, NOTES.aligned = answer
    return result


def _simulated(of_ranks: Sequence[_Noted]) -> Result | None:
    """Find the result of what all ranks have noted.

    Returns:
        the result, or None if there is something to simulate, and no network. If there is nothing,
        the clocks stand still.
    """
    programs = [noted.events for noted in of_ranks]
    clocks = [noted.start for noted in of_ranks]
    unfinished = [noted.unfinished for noted in of_ranks]
    if NOTES.network is not None:
        return simulate(programs, NOTES.network, clocks, unfinished)
    if any(programs):
        return None
    return Result(clocks, [list(left) for left in unfinished])
