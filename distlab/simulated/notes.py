"""The notes of what this rank does on a simulated cluster, and its virtual clock, which is found from all ranks' notes.

Runs on every rank: backend.py notes operations, the program what it computes; `settle` gathers the notes, and
simulation.py finds the times.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from distlab.compat.torch import flops_of
from distlab.simulated.events import Align, Compute, Event, Mark
from distlab.simulated.network import Device, Network
from distlab.simulated.simulation import Result, simulate


class Notes:
    """What this rank has done since the notes were settled, and its virtual clock then."""

    def __init__(self) -> None:
        self.network: Network | None = None
        self.device: Device | None = None
        self.counting = contextlib.ExitStack()  # while the device counts operations, CountFlops
        self.callback = threading.local()  # .after: the operation whose Future called back on this thread
        self.clear()

    def clear(self) -> None:
        """Forget what was noted; the clock is at 0."""
        self.events: list[Event] = []
        self.start, self.unfinished, self.operations = 0.0, (), 0
        self.cell, self.alignments, self.quiet = 0, 0, False
        self.flops, self.cpu = 0, time.thread_time()

    def begin(self, event: Callable[[int], Event]) -> int:
        """Note an operation that begins, and give it its number."""
        self.operations += 1
        self.add(event(self.operations))
        return self.operations

    def add(self, event: Event) -> None:
        """Note an event, after what the device has computed since the one before."""
        if not self.quiet:
            self._compute()
            self.events.append(event)

    def begin_quietly(self) -> None:
        """Note no more; what was computed until now counts."""
        self._compute()
        self.quiet = True

    def resume(self) -> None:
        """What this thread has computed until now, for distlab or in a wait, does not count."""
        self.cpu = time.thread_time()

    def _compute(self) -> None:
        """Note what the device has computed since the event before."""
        device = self.device
        if device is None or threading.current_thread() is not threading.main_thread():
            return
        if device.flops is not None and self.flops:
            self.events.append(Compute(self.flops / device.flops))
            self.flops = 0
        elif device.cpu is not None:
            self.events.append(Compute((time.thread_time() - self.cpu) * device.cpu))
            self.resume()


NOTES = Notes()


class CountFlops(TorchDispatchMode):
    """Adds to the notes what each operator computes, as torch's FlopCounterMode counts it."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(kind not in (Tensor, torch.nn.Parameter) for kind in types):
            return NotImplemented  # a DTensor computes by operators on its parts, which come here too
        value = func(*args, **(kwargs or {}))
        NOTES.flops += flops_of(func, value, args, kwargs or {})
        return value


def use(network: Network | None) -> None:
    """Say which machines these ranks are on from now on, and begin new notes with all clocks at 0; None: on this one.

    Runs on: every rank.
    """
    NOTES.clear()
    NOTES.network, NOTES.device = network, network and network.device
    NOTES.counting.close()
    if NOTES.device is not None and NOTES.device.flops is not None:
        NOTES.counting.enter_context(CountFlops())  # on this thread, as long as the network is used


def begin_cell(number: int) -> None:
    """Note that the notebook's `number`-th cell begins here, on all its ranks together. Runs on: every rank of it."""
    NOTES.cell, NOTES.alignments = number, 0
    NOTES.add(Align((number, 0)))
    NOTES.resume()


def align() -> None:
    """Note that all ranks that do so go on together from here.

    Runs on: every rank that took part in the last `settle`.
    """
    NOTES.alignments += 1
    NOTES.add(Align((NOTES.cell, NOTES.alignments)))
    NOTES.resume()


def mark() -> None:
    """Note that the clock of this moment is wanted, among the `marks` of the result."""
    NOTES.add(Mark())


def compute(seconds: float) -> None:
    """Let this rank's virtual clock move on as if it had computed; without virtual clocks, sleep.

    Runs on: a rank.
    """
    if NOTES.network is None:
        time.sleep(seconds)
    else:
        NOTES.add(Compute(seconds))


def settle(group: dist.ProcessGroup | None = None) -> Result:
    """Find the virtual times of everything since the last time, and begin new notes at the clocks that came out.

    Runs on: every rank of the group (a rank that skips it hangs the rest).

    Returns:
        the result, in which ranks that are not in the group have done nothing; what happened (operations, transfers and
        spans) is told to the group's first rank only.
    """
    result = _exchange(NOTES.unfinished, NOTES.start, group)
    rank = dist.get_rank()
    NOTES.events, NOTES.unfinished, NOTES.start = [], result.unfinished[rank], result.clocks[rank]
    return result


def seconds_of(
    fn: Callable[..., Any], args: tuple[Any, ...], repeat: int, group: dist.ProcessGroup | None
) -> tuple[float, ...]:
    """Virtual seconds of fn(*args), from the moment when all ranks begin until the slowest has ended.

    What the ranks did before, and what others do meanwhile, has no part in it.

    Runs on: every rank of the group.

    Returns:
        one number where every call takes the same; `repeat` of them where latencies or computing times differ.
    """
    network = NOTES.network
    differs = network.jitter or (network.device is not None and network.device.cpu is not None)
    NOTES.add(Mark())  # after what was computed until here
    before, NOTES.events = NOTES.events, []
    for _ in range(repeat if differs else 1):
        align()
        mark()
        fn(*args)
        mark()
    result = _exchange((), 0.0, group)
    NOTES.events = [event for event in (*before, *NOTES.events) if not isinstance(event, Mark)]
    members = dist.get_process_group_ranks(group or dist.group.WORLD)
    marks = [result.marks[rank] for rank in members]
    starts, ends = ([max(times) for times in zip(*(m[first::2] for m in marks), strict=True)] for first in (0, 1))
    return tuple(end - start for start, end in zip(starts, ends, strict=True))


def _exchange(unfinished: tuple[Any, ...], start: float, group: dist.ProcessGroup | None) -> Result:
    """What comes of the events that the group's ranks have noted, from these clocks on; see `settle`."""
    NOTES.begin_quietly()
    try:
        members = dist.get_process_group_ranks(group or dist.group.WORLD)
        mine = (NOTES.events, unfinished, start, NOTES.cell, NOTES.alignments)
        gathered: list[Any] = [None] * len(members)
        first = dist.get_rank(group) == 0
        dist.gather_object(mine, gathered if first else None, group=group, group_dst=0)
        whole, latest = _simulate(members, gathered) if first else (None, None)
        answer = [whole and (replace(whole, operations=(), transfers=(), spans=()), latest)]
        dist.broadcast_object_list(answer, group=group, group_src=0)
    finally:
        NOTES.quiet = False
    result, (NOTES.cell, NOTES.alignments) = answer[0]
    NOTES.resume()
    return whole or result


def _simulate(members: list[int], gathered: list[Any]) -> tuple[Result, tuple[int, int]]:
    """The result of the members' notes, and the latest alignment of any."""
    n = dist.get_world_size()
    programs, unfinished, clocks = [()] * n, [()] * n, [0.0] * n
    for rank, (events, begun, clock, _, _) in zip(members, gathered, strict=True):
        programs[rank], unfinished[rank], clocks[rank] = events, begun, clock
    latest = max((cell, alignments) for *_, cell, alignments in gathered)
    return simulate(programs, NOTES.network, clocks, unfinished), latest
