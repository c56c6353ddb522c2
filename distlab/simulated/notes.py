"""Notes of what this rank does on a simulated cluster, and its virtual clock, which comes from the
notes of all ranks.

Runs on every rank: backend.py notes operations, the program what it computes; `settle` gathers the
notes, and simulation.py finds the times.
"""

import contextlib
import itertools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from distlab.compat.torch import flops_of
from distlab.simulated.events import Align, Callback, Compute, Event, Wait
from distlab.simulated.network import Device, Network
from distlab.simulated.simulation import Result, simulate


class Program:
    """A sequence of notes: the rank's own program, the callback with the number `op`, or what does
    not count.
    """

    def __init__(self, op: int = 0):
        self.op = op
        self.events: list[Event] = []
        self.flops = 0  # computed since the last event

    def note_end(self) -> None:
        """Note that the program of this thread has waited for the end of this one."""
        NOTES.add(Wait(self.op))


class _Thread(threading.local):
    """What each thread makes notes for, if not for the rank's own program: a callback that it
    runs.
    """

    program: Program | None = None


class Notes:
    """What this rank has done since the notes were last settled, and its virtual clock at that
    time.
    """

    def __init__(self) -> None:
        self.network: Network | None = None
        self.device: Device | None = None
        self.counting = contextlib.ExitStack()  # while the device counts operations, CountFlops
        self.thread, self.lock = _Thread(), threading.RLock()
        self.clear()

    def clear(self) -> None:
        """Forget what was noted; the clock is at 0."""
        self.program, self.numbers = Program(), itertools.count(1)
        self.callbacks: list[Program] = []  # those that have not ended
        self.start, self.unfinished = 0.0, ()
        self.aligned = (0, 0)  # the last alignment: the number of the cell, and its own in the cell

    @property
    def here(self) -> Program:
        """The program that this thread notes for."""
        return self.thread.program or self.program

    def add(self, event: Event) -> None:
        """Note an event, after what the device has computed since the one before."""
        with self.lock:
            self.compute()
            self.here.events.append(event)

    def then(self, after: int) -> Program:
        """Note that a callback follows an operation or callback; returns its program."""
        callback = Program(next(self.numbers))
        with self.lock:
            self.callbacks.append(callback)
            self.add(Callback(callback.op, after, callback.events))
        return callback

    @contextlib.contextmanager
    def inside(self, program: Program) -> Iterator[None]:
        """Note what this thread does meanwhile for a callback, or for nothing."""
        before, counts = self.thread.program, self._counts()
        self.thread.program = program
        try:
            with contextlib.nullcontext() if counts or self.device is None else CountFlops():
                yield
            self.compute()
        finally:
            self.thread.program = before
            # no callback, or the notes were cleared meanwhile
            with contextlib.suppress(ValueError):
                self.callbacks.remove(program)

    def cut(self) -> list[Event]:
        """Begin new notes and return the old ones. What callbacks still do goes into the new ones,
        as new callbacks.
        """
        self.compute()
        with self.lock:
            events, self.program.events = self.program.events, []
            for callback in self.callbacks:
                after, callback.op, callback.events = callback.op, next(self.numbers), []
                self.program.events.append(Callback(callback.op, after, callback.events))
        return events

    def compute(self) -> None:
        """Note what the device has computed since the last event; the program's own threads do not
        count.
        """
        program = self.here
        if self.device is not None and program.flops and self._counts():
            with self.lock:
                program.events.append(Compute(self.device.seconds(program.flops)))
            program.flops = 0

    def _counts(self) -> bool:
        """Whether what this thread computes counts; current_thread() would make a Thread for one of
        C++.
        """
        return (
            self.thread.program is not None
            or threading.get_ident() == threading.main_thread().ident
        )


class CountFlops(TorchDispatchMode):
    """Adds to the notes what each operator computes, as torch's FlopCounterMode counts it."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """torch asks this to hide a mode from its compiler, whose import costs each rank a second
        and 70 MB.
        """
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # DTensor asks for the shape of a result
        if any(kind.__name__ == "FakeTensor" for kind in types):
            return func(*args, **(kwargs or {}))
        if any(kind not in (Tensor, torch.nn.Parameter) for kind in types):
            # a DTensor computes by operators on its parts, which come here too
            return NotImplemented
        value = func(*args, **(kwargs or {}))
        NOTES.here.flops += flops_of(func, value, args, kwargs or {}) or 0
        return value


NOTES = Notes()


def use(network: Network | None) -> None:
    """Set the machines that these ranks are on (None: this one), and begin new notes with all
    clocks at 0.

    Runs on: every rank.
    """
    NOTES.counting.close()
    NOTES.clear()
    NOTES.network, NOTES.device = network, network and network.device
    if NOTES.device is not None:
        NOTES.counting.enter_context(CountFlops())  # on this thread, as long as the network is used


def align(number: tuple[int, int]) -> None:
    """Note that all ranks that call this with the same number go on together from here. Runs on:
    each of them.
    """
    NOTES.aligned = number
    NOTES.add(Align(number))


def compute(seconds: float) -> None:
    """Advance this rank's virtual clock as if it had computed; without virtual clocks, sleep.

    Runs on: a rank.
    """
    if NOTES.network is None:
        time.sleep(seconds)
    else:
        NOTES.add(Compute(seconds))


@contextlib.contextmanager
def apart() -> Iterator[Program]:
    """Note what this rank does meanwhile in a program apart, in which computing takes no time. Runs
    on: a rank.
    """
    before = NOTES.program, NOTES.device
    NOTES.program, NOTES.device = Program(), None
    try:
        yield NOTES.program
    finally:
        NOTES.program, NOTES.device = before


def settle() -> Result:
    """Find the virtual times of everything since the last call, and begin new notes at the
    resulting clocks.

    Runs on: every rank of the cluster (a rank that skips it hangs the rest).

    Returns:
        the result; what happened (operations, transfers and spans) is there on rank 0 only.
    """
    result = _exchange(NOTES.cut(), NOTES.unfinished, NOTES.start, dist.group.WORLD)
    rank = dist.get_rank()
    NOTES.unfinished, NOTES.start = result.unfinished[rank], result.clocks[rank]
    return result


def seconds_of(
    fn: Callable[..., Any], args: tuple[Any, ...], group: dist.ProcessGroup | None
) -> float:
    """Virtual seconds of fn(*args), from when all ranks begin until the slowest has ended.

    What the ranks did before, and what others do meanwhile, does not count.

    Runs on: every rank of the group.
    """
    cell, latest = NOTES.aligned
    align((cell, latest + 1))
    before = len(NOTES.program.events)
    fn(*args)
    noted = NOTES.cut()
    result = _exchange(noted[before:], (), 0.0, group or dist.group.WORLD)
    NOTES.program.events[:0] = noted
    return max(result.clocks)  # those of ranks that are not in the group have stood still


def _exchange(
    events: list[Event], unfinished: Sequence[Any], start: float, group: dist.ProcessGroup
) -> Result:
    """The result of the events that the group's ranks have noted, from these clocks on; see
    `settle`.

    Ranks that are not in the group have done nothing. Only the group's first rank gets what
    happened.
    """
    with NOTES.inside(Program()):
        members, whole, latest = dist.get_process_group_ranks(group), None, None
        gathered = [None] * len(members) if dist.get_rank(group) == 0 else None
        dist.gather_object(
            (events, unfinished, start, NOTES.aligned), gathered, group=group, group_dst=0
        )
        if gathered is not None:
            of_ranks: list[Any] = [((), (), 0.0, (0, 0))] * dist.get_world_size()
            for rank, noted in zip(members, gathered, strict=True):
                of_ranks[rank] = noted
            programs, begun, clocks, aligned = zip(*of_ranks, strict=True)
            whole, latest = simulate(programs, NOTES.network, clocks, begun), max(aligned)
        answer = [whole and (Result(whole.clocks, whole.unfinished), latest)]
        dist.broadcast_object_list(answer, group=group, group_src=0)
    result, NOTES.aligned = answer[0]
    return whole or result
