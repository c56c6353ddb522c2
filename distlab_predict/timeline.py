"""When each node of each role begins and ends, on described machines. A pure function.

The model:

- A stream does one thing after another: a node begins when the one before it on its stream has
  ended, and all that it waits for. The program is always ahead of its device.
- A kernel takes as long as its operations or its bytes need, whichever is longer; while messages of
  its rank travel, the device's `contention` slows it.
- A collective begins when it could on all members, and takes what its formula says (costs.py).
- A message begins when both sides could, and takes latency + bytes / bandwidth.
- Calls of a rank that go through the same port at the same time share its bandwidth, as two streams
  share a link.
- A rank that is not recorded does what the recorded one of its role does, at the same time.
"""

import bisect
import heapq
import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field

from distlab.errors import ArgumentError
from distlab_predict.costs import Costs
from distlab_predict.nodes import Kernel, Node, Recording

Times = list[tuple[float, float]]  # (begin, end) of each node


@dataclass(eq=False)
class _Job:
    """A kernel, or a call of all its members.

    Attributes:
        missing: how many jobs have to end before it begins, and how many ranks would have to call
            it that never do.
        left: seconds at full speed, as of the time `since`.
        load: the share of a port's bandwidth that a call takes at full speed; None for a kernel.
        uses: what it shares with other jobs: devices (None) and ports, each with the number of its
            recording.
        following: jobs that wait for its end.
    """

    missing: int
    left: float = math.inf
    load: float | None = None
    uses: list[tuple[int, Hashable]] = field(default_factory=list)
    following: list["_Job"] = field(default_factory=list)
    speed: float = 0.0
    since: float = 0.0
    begin: float = 0.0
    end: float = 0.0


def times_of(recordings: Sequence[Recording], costs: Costs) -> list[Times]:
    """Begin and end of each node, by recording, in seconds; what comes before the first step takes
    no time.

    Raises:
        ArgumentError: ranks wait for each other forever.
    """
    jobs = _jobs(recordings, costs)
    _Run(costs.device.contention).go(dict.fromkeys(itertools.chain(*jobs)))
    both = (zip(one.nodes, own, strict=True) for one, own in zip(recordings, jobs, strict=True))
    waiting = [next((node for node, job in pairs if job.missing), None) for pairs in both]
    names = ", ".join(dict.fromkeys(map(_words, filter(None, waiting))))
    if names:
        why = f"not every rank calls {names}: on real machines this program would hang"
        raise ArgumentError(f"program must end: {why}.")
    return [[(job.begin, job.end) for job in own] for own in jobs]


def _jobs(recordings: Sequence[Recording], costs: Costs) -> list[list[_Job]]:
    """The job of each node, by recording; a call that several recorded ranks make together is one
    job.
    """
    recorded = sorted(recording.rank for recording in recordings)
    common: dict[Hashable, _Job] = {}
    jobs: list[list[_Job]] = []
    for number, recording in enumerate(recordings):
        own: list[_Job] = []
        counts: Counter[Hashable] = Counter()
        for place, node in enumerate(recording.nodes):
            key, ranks = _meeting(node, recording.rank, recorded)
            counts[key] += 1
            job = common.setdefault((key, counts[key]), _Job(ranks)) if ranks > 1 else _Job(1)
            job.missing -= 1
            for before in node.after:
                job.missing += 1
                own[before].following.append(job)
            seconds, job.load, ports = costs.of(node, recording.rank)
            job.left = min(job.left, seconds if place >= recording.steps[0][0] else 0.0)
            job.uses += [(number, use) for use in (None, *ports)]
            own.append(job)
        jobs.append(own)
    return jobs


def _meeting(node: Node, rank: int, recorded: Sequence[int]) -> tuple[Hashable, int]:
    """What a node has in common with those of other recorded ranks that it meets, and how many
    ranks meet.
    """
    if isinstance(node, Kernel):
        return None, 1
    if node.peer is None:
        return (node.stream, node.members), len({*recorded}.intersection(node.members))
    role = recorded[max(0, bisect.bisect(recorded, node.peer) - 1)]
    ends = (rank, role) if node.name == "send" else (role, rank)
    return ("message", *ends), len({*ends})


class _Run:
    """Jobs under way, from one end to the next."""

    def __init__(self, contention: float):
        self._contention = contention
        self._using: defaultdict[tuple[int, Hashable], dict[_Job, None]] = defaultdict(dict)
        self._now, self._number = 0.0, itertools.count()
        self._ends: list[tuple[float, int, _Job]] = []

    def go(self, jobs: Iterable[_Job]) -> None:
        """Find when each job begins and ends; those that never begin stay `missing` something."""
        for job in [job for job in jobs if not job.missing]:
            self._begin(job)
        while self._ends:
            end, _, job = heapq.heappop(self._ends)
            if job.end == end and job.speed:  # or its speed has changed since, or it has ended
                self._now = end
                self._end(job)

    def _begin(self, job: _Job) -> None:
        job.begin = job.since = self._now
        for use in job.uses:
            self._using[use][job] = None
        self._change(job)

    def _end(self, job: _Job) -> None:
        job.speed = 0.0
        for use in job.uses:
            del self._using[use][job]
        self._change(job)
        for following in job.following:
            following.missing -= 1
            if not following.missing:
                self._begin(following)

    def _change(self, job: _Job) -> None:
        """A job has begun or ended: it, and those that share something with it, have another speed
        from now on.
        """
        for one in dict.fromkeys(one for use in job.uses for one in self._using[use]):
            speed = self._speed(one)
            if speed != one.speed:
                one.left -= (self._now - one.since) * one.speed
                one.since, one.speed, one.end = self._now, speed, self._now + one.left / speed
                heapq.heappush(self._ends, (one.end, next(self._number), one))

    def _speed(self, job: _Job) -> float:
        if job.load is None:
            slowed = any(one.load is not None for one in self._using[job.uses[0]])
            return 1 - self._contention if slowed else 1.0
        loads = [
            sum(one.load for one in self._using[use]) for use in job.uses if use[1] is not None
        ]
        return 1 / max(1.0, *loads)


def _words(node: Node) -> str:
    return node.name if node.peer is None else f"{node.name} (rank {node.peer})"
