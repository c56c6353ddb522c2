"""When each node of each role begins and ends, on described machines. Pure functions.

Called by prediction.py on the notebook's kernel. The model:

- A stream does one thing after another: a node begins when the one before it on its stream has
  ended, and everything that it waits for. The program is always ahead of its device.
- A kernel takes as long as its operations or its bytes need, whichever is longer; calls of its rank
  that are under way slow it, as they occupy multiprocessors of the same device.
- A collective begins when it could on all members, and takes what its formula says (costs.py).
- A message begins when both sides could, and takes latency + bytes / bandwidth.
- Calls of a rank that go through the same port at the same time share its bandwidth, as two streams
  share a link.
- A rank that is not recorded does what the recorded one of its role does, at the same time.
"""

import bisect
import heapq
import itertools
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from distlab.errors import ArgumentError
from distlab_predict.costs import Costs
from distlab_predict.nodes import Kernel, Node, Recording

Times = list[tuple[float, float]]  # (begin, end) of each node
DEVICE = "device"  # beside ports, which are tuples
# what a job uses alone or shares: the device or a port, of the recording with this number
Use = tuple[int, Hashable]


@dataclass(eq=False)
class _Job:
    """A kernel, or a call of all its members.

    It begins when nothing is unmet any more.

    Attributes:
        unmet: predecessors that have not ended, plus members that have not called it.
        left: seconds at full speed, as of the time `since`.
        load: the share of a port's bandwidth that a call takes at full speed; None for a kernel.
        contention: the share of their speed that kernels of the same devices lose meanwhile.
        uses: the devices and ports that it shares with other jobs.
        following: jobs that wait for its end.
        speed: the share of full speed at which it goes on; 0 before it begins and after its end.
        since: when `left` was right.
        begin: when it has begun.
        end: when it will end at this speed, or has ended.
    """

    unmet: int
    left: float = 0.0
    load: float | None = None
    contention: float = 0.0
    uses: list[Use] = field(default_factory=list)
    following: list["_Job"] = field(default_factory=list)
    speed: float = 0.0
    since: float = 0.0
    begin: float = 0.0
    end: float = 0.0


def times_of(
    recordings: Sequence[Recording], costs: Costs, slower: Mapping[str, float] | None = None
) -> list[Times]:
    """Begin and end of each node, by recording, in seconds.

    What comes before the first step takes no time.

    Args:
        recordings: of the ranks.
        costs: of their nodes.
        slower: how many times longer nodes take than their costs say, by `Cost.basis`, to try what
            would follow if the costs were wrong.

    Raises:
        ArgumentError: ranks wait for each other forever.
    """
    jobs = _jobs_of(recordings, costs, slower or {})
    each_once = dict.fromkeys(itertools.chain(*jobs))  # some are of several recordings
    simulation = _Simulation()
    simulation.run(each_once)
    _check_all_began(recordings, jobs)
    times = []
    for own in jobs:
        times.append([(job.begin, job.end) for job in own])
    return times


def _check_all_began(recordings: Sequence[Recording], jobs: Sequence[Sequence[_Job]]) -> None:
    """Raise an error that names the first call of each recording that has never begun."""
    names = []
    for recording, own in zip(recordings, jobs, strict=True):
        for node, job in zip(recording.nodes, own, strict=True):
            if job.unmet:
                names.append(_words(node))
                break
    if names:
        calls = ", ".join(dict.fromkeys(names))
        why = f"not every rank calls {calls}: on real machines this program would hang"
        raise ArgumentError(f"program must end: {why}.")


def _words(node: Node) -> str:
    """A node in words: "all_gather", "send (rank 3)"."""
    if isinstance(node, Kernel) or node.peer is None:
        return node.name
    return f"{node.name} (rank {node.peer})"


# --- what there is to do ---


def _jobs_of(
    recordings: Sequence[Recording], costs: Costs, slower: Mapping[str, float]
) -> list[list[_Job]]:
    """The job of each node, by recording.

    A call that several recorded ranks make together is one job.
    """
    recorded = sorted(recording.rank for recording in recordings)
    common: dict[Hashable, _Job] = {}
    jobs: list[list[_Job]] = []
    before_steps: list[_Job] = []
    for number, recording in enumerate(recordings):
        own: list[_Job] = []
        counts: Counter[Hashable] = Counter()
        first, _ = recording.steps[0]
        for index, node in enumerate(recording.nodes):
            meeting = _meeting_of(node, recording.rank, recorded)
            if meeting.ranks > 1:
                # the n-th call of this kind is the same call on every rank
                counts[meeting.key] += 1
                place = (meeting.key, counts[meeting.key])
                job = common.setdefault(place, _Job(meeting.ranks))
            else:
                job = _Job(1)
            job.unmet -= 1
            for before in node.after:
                job.unmet += 1
                own[before].following.append(job)
            cost = costs.of(node, recording.rank)
            seconds = cost.seconds * slower.get(cost.basis, 1.0)
            # the slowest of its ranks sets its time: in an all_to_all, one may send more
            if seconds >= job.left:
                job.left = seconds
                job.load = cost.load
                job.contention = cost.contention
            if index < first:
                before_steps.append(job)
            for use in (DEVICE, *cost.ports):
                job.uses.append((number, use))
            own.append(job)
        jobs.append(own)
    # what any of its ranks did before its first step takes no time of a step
    for job in before_steps:
        job.left = 0.0
    return jobs


class _Meeting(NamedTuple):
    """Which recorded ranks a node needs.

    Attributes:
        key: what the node has in common with those of other recorded ranks that it meets.
        ranks: how many recorded ranks meet.
    """

    key: Hashable
    ranks: int


def _meeting_of(node: Node, rank: int, recorded: Sequence[int]) -> _Meeting:
    """Which recorded ranks meet in a node of this rank.

    The other end of a message may not be recorded. Then the last recorded rank before it has its
    role.
    """
    if isinstance(node, Kernel):
        return _Meeting(None, 1)
    if node.peer is None:
        meeting = set(recorded).intersection(node.members)
        return _Meeting((node.stream, node.members), len(meeting))
    up_to_peer = bisect.bisect(recorded, node.peer)
    role = recorded[max(0, up_to_peer - 1)]
    ends = (role, rank)
    if node.name == "send":
        ends = (rank, role)
    return _Meeting(("message", *ends), 1 if role == rank else 2)


# --- how it goes on ---


class _Simulation:
    """Jobs under way, from the end of one to the end of the next."""

    def __init__(self) -> None:
        self._using: defaultdict[Use, dict[_Job, None]] = defaultdict(dict)
        self._now = 0.0
        self._numbers = itertools.count()
        # (end, number of the entry, job), as a heap; the number keeps jobs from being compared
        self._ends: list[tuple[float, int, _Job]] = []

    def run(self, jobs: Iterable[_Job]) -> None:
        """Find when each job begins and ends; of one that never begins, something stays unmet."""
        ready = [job for job in jobs if not job.unmet]
        for job in ready:
            self._begin(job)
        while self._ends:
            end, _, job = heapq.heappop(self._ends)
            # otherwise the entry is out of date: the speed has changed since, or the job has ended
            if job.end == end and job.speed:
                self._now = end
                self._end(job)

    def _begin(self, job: _Job) -> None:
        job.begin = self._now
        job.since = self._now
        for use in job.uses:
            self._using[use][job] = None
        self._update_speeds(job)

    def _end(self, job: _Job) -> None:
        job.speed = 0.0
        for use in job.uses:
            del self._using[use][job]
        self._update_speeds(job)
        for following in job.following:
            following.unmet -= 1
            if not following.unmet:
                self._begin(following)

    def _update_speeds(self, changed: _Job) -> None:
        """Find the speeds of a job that has begun or ended, and of all that share with it."""
        sharing: dict[_Job, None] = {}  # in the order in which they are found
        for use in changed.uses:
            sharing.update(self._using[use])
        for job in sharing:
            speed = self._speed_of(job)
            if speed == job.speed:
                continue
            job.left -= (self._now - job.since) * job.speed
            job.since = self._now
            job.speed = speed
            job.end = self._now + job.left / speed
            heapq.heappush(self._ends, (job.end, next(self._numbers), job))

    def _speed_of(self, job: _Job) -> float:
        """The share of full speed that a job has beside those that are under way."""
        if job.load is None:
            (device,) = job.uses  # of a kernel, nothing else
            return 1 - max(other.contention for other in self._using[device])
        slowest = 1.0
        for use in job.uses:
            _, what = use
            if what != DEVICE:
                slowest = max(slowest, self._load_of(use))
        return 1 / slowest

    def _load_of(self, port: Use) -> float:
        """The share of a port's bandwidth that the calls under way would take at full speed."""
        return sum(other.load for other in self._using[port] if other.load is not None)
