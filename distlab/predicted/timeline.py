"""When each node of each role begins and ends, on described machines. A pure function.

The model:

- A stream does one thing after another: a node begins when the one before it on its stream has ended, and all that it
  waits for. The program is always ahead of its device.
- A kernel takes as long as its operations or its bytes need, whichever is longer; while messages of its rank travel,
  the device's `contention` slows it.
- A collective begins when it could on all members, and takes what its formula says (costs.py).
- A message begins when both sides could, and takes latency + bytes / bandwidth.
- Calls of a rank that go through the same port at the same time share its bandwidth, as two streams share a link.
- A rank that is not recorded does what the recorded one of its role does, at the same time.
"""

import heapq
import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

from distlab.predicted.costs import Costs
from distlab.predicted.nodes import Call, Node, Recording

Times = list[tuple[float, float]]  # (begin, end) of each node
Place = tuple[int, int]  # number of a recording, and of a node in it


@dataclass(eq=False)
class _Job:
    """A kernel, or a call of all its members, under way.

    Attributes:
        places: its nodes.
        uses: what it shares with other jobs: devices (None) and ports, each with the number of its recording.
        load: the share of a port's bandwidth that a call takes at full speed; None for a kernel.
        left: seconds at full speed, as of the time `since`.
    """

    places: list[Place]
    uses: list[tuple[int, Hashable]]
    load: float | None
    left: float
    since: float
    speed: float = 0.0
    end: float = 0.0


def times_of(recordings: Sequence[Recording], costs: Costs, role_of: Callable[[int], int]) -> list[Times]:
    """Begin and end of each node, by recording, in seconds; what comes before the first step takes no time.

    Args:
        role_of: the recorded rank that does what a rank does.
    """
    run = _Run(recordings, costs, role_of)
    run.go()
    return [[run.times[number, node] for node in range(len(one.nodes))] for number, one in enumerate(recordings)]


class _Run:
    """The recorded ranks, from one end of a node to the next."""

    def __init__(self, recordings: Sequence[Recording], costs: Costs, role_of: Callable[[int], int]):
        self._recordings, self._costs = recordings, costs
        self._left: dict[Place, int] = {}  # of what a node waits for, how many have not ended
        self._after: defaultdict[Place, list[Place]] = defaultdict(list)
        for number, recording in enumerate(recordings):
            self._expect(number, recording)
        self._meetings = _meetings(recordings, role_of)
        self._gathered: defaultdict[Hashable, list[Place]] = defaultdict(list)
        self._using: defaultdict[tuple[int, Hashable], dict[_Job, None]] = defaultdict(dict)
        self._now, self._number = 0.0, itertools.count()
        self._ends: list[tuple[float, int, _Job]] = []
        self.times: dict[Place, tuple[float, float]] = {}

    def _expect(self, number: int, recording: Recording) -> None:
        """Note what each node of a recording waits for."""
        last: dict[Hashable, int] = {}
        for place, node in enumerate(recording.nodes):
            before = {*node.after, last.get(node.stream, -1)} - {-1}
            last[node.stream] = place
            self._left[number, place] = len(before)
            for one in before:
                self._after[number, one].append((number, place))

    def go(self) -> None:
        """Find all times."""
        for place in [place for place, count in self._left.items() if count == 0]:
            self._come(place)
        while self._ends:
            end, _, job = heapq.heappop(self._ends)
            if job.end == end:  # or its speed has changed since
                self._now = end
                self._end(job)
        waiting = [self._node(place) for places in self._gathered.values() for place in places]
        if waiting:
            names = ", ".join(dict.fromkeys(map(_words, waiting)))
            raise ValueError(f"not every rank calls {names}: on real machines this program would hang")

    def _node(self, place: Place) -> Node:
        return self._recordings[place[0]].nodes[place[1]]

    def _come(self, place: Place) -> None:
        """All that a node waits for on its rank has ended."""
        key, needed = self._meetings.get(place, (place, 1))
        self._gathered[key].append(place)
        if len(self._gathered[key]) == needed:
            self._begin(self._gathered.pop(key))

    def _begin(self, places: list[Place]) -> None:
        number, first = places[0]
        recording, node = self._recordings[number], self._node(places[0])
        timed = first >= recording.steps[0][0]
        seconds = self._costs.seconds(node, recording.rank) if timed else 0.0
        load = self._costs.load(node, recording.rank) if isinstance(node, Call) else None
        uses = [(one, port) for one, at in places for port in self._uses(self._recordings[one], at)]
        job = _Job(places, uses, load, seconds, self._now)
        self.times.update((place, (self._now, self._now)) for place in places)
        for use in uses:
            self._using[use][job] = None
        self._change(job)

    def _uses(self, recording: Recording, place: int) -> list[Hashable]:
        """The device, and the ports of its rank that a node of a recording uses."""
        node = recording.nodes[place]
        return [None, *(self._costs.ports(node, recording.rank) if isinstance(node, Call) else ())]

    def _end(self, job: _Job) -> None:
        for use in job.uses:
            del self._using[use][job]
        job.end = -1.0
        self._change(job)
        for place in job.places:
            self.times[place] = self.times[place][0], self._now
        for following in (one for place in job.places for one in self._after[place]):
            self._left[following] -= 1
            if self._left[following] == 0:
                self._come(following)

    def _change(self, job: _Job) -> None:
        """A job has begun or ended: it, and those that share something with it, have another speed from now on."""
        for one in dict.fromkeys(one for use in job.uses for one in self._using[use]):
            speed = self._speed(one)
            if speed != one.speed:
                one.left -= (self._now - one.since) * one.speed
                one.since, one.speed, one.end = self._now, speed, self._now + one.left / speed
                heapq.heappush(self._ends, (one.end, next(self._number), one))

    def _speed(self, job: _Job) -> float:
        if job.load is None:
            slowed = any(one.load is not None for one in self._using[job.uses[0]])
            return 1 - self._costs.device.contention if slowed else 1.0
        loads = [sum(one.load for one in self._using[use]) for use in job.uses if use[1] is not None]
        return 1 / max(1.0, *loads)


def _meetings(recordings: Sequence[Recording], role_of: Callable[[int], int]) -> dict[Place, tuple[Hashable, int]]:
    """Of each call that recorded ranks make together: what it has in common with the others', and how many they are."""
    recorded = {recording.rank for recording in recordings}
    found: dict[Place, tuple[Hashable, int]] = {}
    for number, recording in enumerate(recordings):
        counts: Counter[Hashable] = Counter()
        for place, node in enumerate(recording.nodes):
            if not isinstance(node, Call):
                continue
            if node.peer is None:
                key, needed = (node.stream, node.members), len(recorded.intersection(node.members))
            else:
                ends = recording.rank, role_of(node.peer)
                key = "message", *(ends if node.name == "send" else reversed(ends))
                needed = 2 if ends[1] in recorded and ends[1] != ends[0] else 1
            counts[key] += 1
            if needed > 1:
                found[number, place] = (key, counts[key]), needed
    return found


def _words(node: Node) -> str:
    return node.name if node.peer is None else f"{node.name} (rank {node.peer})"
