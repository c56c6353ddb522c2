"""Records the ranks of programs, as many at once as there are cores.

recording_process.py starts this program, sends lists of runs, and receives the outcomes of each.
rank_children.py forks a child for each rank.
"""

import contextlib
import os
import sys
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from typing import NamedTuple, cast

from distlab import machine
from distlab.programs import end_with_parent
from distlab_predict import group, torch_gpu
from distlab_predict import torch_changed as changed
from distlab_predict.nodes import Run
from distlab_predict.rank_children import Child, Whole, start
from distlab_predict.rank_objects import Given, Waiting, Wanted

IDLE_SECONDS = 300.0  # after which this process ends; the next prediction starts another


class Sent(NamedTuple):
    """An outcome that was sent to the notebook.

    Attributes:
        place: how many were sent before.
        is_failure: whether it is a failure.
    """

    place: int
    is_failure: bool


class Recordings:
    """The recordings of several runs, as many at once as there are cores.

    Args:
        runs: what to record.
        send: is given each outcome, pickled, as soon as it is known.
    """

    def __init__(self, runs: Sequence[Run], send: Callable[[bytes], None]):
        self._runs = runs
        self._send = send
        self._sent = 0  # how many outcomes
        # by run, by rank; None for ranks that have not ended
        self._found: list[dict[int, Sent | None]] = []
        # by run: ranks that are recorded only because another one wants their objects
        self._helpers: list[set[int]] = []
        self._objects: list[Waiting] = []  # by run
        # (number of the run, rank), in the order in which they start
        self._pending: deque[tuple[int, int]] = deque()
        for number, run in enumerate(runs):
            self._found.append({})
            self._helpers.append(set())
            self._objects.append(Waiting())
            for rank in run.ranks or [0]:
                self._add(number, rank)
        # children with the numbers of their runs, by the connection to them
        self._running: dict[Connection, tuple[int, Child]] = {}

    def record(self) -> list[list[int]]:
        """Record all of them; returns which of the outcomes that were sent are those of each."""
        while self._pending or self._running:
            self._start()
            # wait takes sockets and numbers too, so its types do not say that these are pipes
            for source in cast("list[Connection]", wait(list(self._running))):
                self._receive(source)
        outcomes = []
        for found, helpers in zip(self._found, self._helpers, strict=True):
            outcomes.append(_of_roles(found, helpers))
        return outcomes

    def _start(self) -> None:
        """Start as many ranks as there are cores for; those that wait for objects need none."""
        waiting = sum(len(objects) for objects in self._objects)
        free = machine.cores() - len(self._running) + waiting
        while self._pending and free > 0:
            number, rank = self._pending.popleft()
            child = start(self._runs[number], rank)
            self._running[child.source] = (number, child)
            free -= 1
        if waiting == len(self._running):
            for objects in self._objects:
                objects.give_up()

    def _add(self, number: int, rank: int) -> None:
        """Have a rank of a run recorded, after those that were added before."""
        self._found[number][rank] = None
        self._pending.append((number, rank))

    def _receive(self, source: Connection) -> None:
        """Act on what a child has sent."""
        number, child = self._running[source]
        received = child.receive()
        objects = self._objects[number]
        if isinstance(received, Given):
            objects.give(received)
        elif isinstance(received, Wanted):
            if not objects.want(source, received):
                self._help(number, received.source)
        elif isinstance(received, int):
            self._helpers[number].discard(received)
            if self._follows(number, received):
                self._add(number, received)
        elif isinstance(received, Whole):
            del self._running[source]
            whole = start(replace(self._runs[number], repeats=False), child.rank)
            self._running[whole.source] = (number, whole)
        else:
            self._send(received.pickled)
            self._found[number][child.rank] = Sent(self._sent, received.is_failure)
            self._sent += 1
            del self._running[source]
            objects.end(child.rank)

    def _help(self, number: int, rank: int) -> None:
        """Have a rank recorded whose objects another one wants; it is not one of the roles."""
        found = self._found[number]
        if rank not in found:
            self._helpers[number].add(rank)
            self._add(number, rank)
        elif found[rank] is not None:
            self._objects[number].end(rank)

    def _follows(self, number: int, rank: int) -> bool:
        """Whether a rank that another one meets is to be recorded, and is not yet."""
        run = self._runs[number]
        found = self._found[number]
        return run.ranks is None and rank not in found and len(found) < run.max_roles


def _of_roles(found: dict[int, Sent | None], helpers: set[int]) -> list[int]:
    """The places of the outcomes of ranks that stand for all; of others only of failures."""
    places = []
    for rank, sent in found.items():
        if sent is not None and (rank not in helpers or sent.is_failure):
            places.append(sent.place)
    return places


def main() -> None:
    """Record the runs that are asked for, until nobody asks for a while.

    The arguments are the descriptor of the connection to the notebook, and the notebook's number.
    """
    end_with_parent(int(sys.argv[2]))
    changed.adapt(group.NAME)
    torch_gpu.adapt()
    asks = Connection(int(sys.argv[1]))
    with contextlib.suppress(EOFError):
        while asks.poll(IDLE_SECONDS):
            asks.send(Recordings(asks.recv(), asks.send_bytes).record())
    os._exit(0)
