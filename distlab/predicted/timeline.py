"""When each node of each role begins and ends, on described machines. A pure function.

The model:

- A stream does one thing after another: a node begins when the one before it on its stream has ended, and all that it
  waits for. The program is always ahead of its device.
- A kernel takes as long as its operations or its bytes need, whichever is longer; while messages of its rank travel,
  the device's `contention` slows it.
- A collective begins when it could on all members, and takes what its formula says (costs.py).
- A message begins when both sides could, and takes latency + bytes / bandwidth.
- A rank that is not recorded does what the recorded one of its role does, at the same time.
"""

import heapq
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Sequence

from distlab.predicted.costs import Costs
from distlab.predicted.nodes import Call, Node, Recording

Times = list[tuple[float, float]]  # (begin, end) of each node
Place = tuple[int, int]  # number of a recording, and of a node in it


class _Rank:
    """A recorded rank at a moment: how much of each running kernel is left, in seconds, and how many calls travel."""

    def __init__(self, contention: float):
        self.left: dict[Place, float] = {}
        self.travelling = 0
        self._slowed, self._now = 1.0 - contention, 0.0

    @property
    def speed(self) -> float:
        return self._slowed if self.travelling else 1.0

    def advance(self, now: float) -> None:
        """Compute until now."""
        done = (now - self._now) * self.speed
        self.left = {place: seconds - done for place, seconds in self.left.items()}
        self._now = now


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
        before = {place: nodes for number, one in enumerate(recordings) for place, nodes in _before(number, one)}
        self._left = {place: len(nodes) for place, nodes in before.items()}
        self._after: defaultdict[Place, list[Place]] = defaultdict(list)
        for place, nodes in before.items():
            for node in nodes:
                self._after[node].append(place)
        self._meetings = _meetings(recordings, role_of)
        self._gathered: defaultdict[Hashable, list[Place]] = defaultdict(list)
        self._ranks = [_Rank(costs.device.contention) for _ in recordings]
        self._now, self._ends, self._end_of = 0.0, [], {}
        self._began: dict[Place, float] = {}
        self.times: dict[Place, tuple[float, float]] = {}

    def go(self) -> None:
        """Find all times."""
        for place in [place for place, count in self._left.items() if count == 0]:
            self._come(place)
        while self._ends:
            self._now, place = heapq.heappop(self._ends)
            if self._end_of.get(place) == self._now:  # or a kernel's end has changed
                self._end(place)
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
            for one in self._gathered.pop(key):
                self._begin(one)

    def _begin(self, place: Place) -> None:
        recording, rank = self._recordings[place[0]], self._ranks[place[0]]
        rank.advance(self._now)
        self._began[place] = self._now
        seconds = 0.0
        if place[1] >= recording.steps[0][0]:
            seconds = self._costs.seconds(self._node(place), recording.rank)
        if isinstance(self._node(place), Call):
            self._expect(place, seconds)
            self._change(rank, 1)
        else:
            rank.left[place] = seconds
            self._expect(place, seconds / rank.speed)

    def _end(self, place: Place) -> None:
        rank = self._ranks[place[0]]
        rank.advance(self._now)
        del self._end_of[place]
        self.times[place] = self._began[place], self._now
        if isinstance(self._node(place), Call):
            self._change(rank, -1)
        else:
            del rank.left[place]
        for following in self._after[place]:
            self._left[following] -= 1
            if self._left[following] == 0:
                self._come(following)

    def _change(self, rank: _Rank, number: int) -> None:
        """So many calls more travel from now on, which slows kernels, or quickens them."""
        before, rank.travelling = rank.speed, rank.travelling + number
        if rank.speed != before:
            for place, seconds in rank.left.items():
                self._expect(place, seconds / rank.speed)

    def _expect(self, place: Place, seconds: float) -> None:
        """A node ends in so many seconds."""
        self._end_of[place] = self._now + seconds
        heapq.heappush(self._ends, (self._end_of[place], place))


def _before(number: int, recording: Recording) -> list[tuple[Place, list[Place]]]:
    """What each node of a recording waits for."""
    last: dict[Hashable, int] = {}
    waits = []
    for place, node in enumerate(recording.nodes):
        places = {*node.after, last.get(node.stream, -1)} - {-1}
        last[node.stream] = place
        waits.append(((number, place), [(number, one) for one in places]))
    return waits


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
