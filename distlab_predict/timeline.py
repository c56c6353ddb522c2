"""When each node of each role begins and ends, on described machines. Pure functions.

Called by prediction.py on the notebook's kernel. The model:

- A stream does one thing after another: a node begins when the one before it on its stream has
  ended, and everything that it waits for.
- It begins when the processor of its rank has launched it, at the earliest. A processor launches
  one node after another in the order of the program, whatever their streams are, since all threads
  of a rank share Python's lock. The program runs ahead of its device as far as it can, also into
  the next step. Where it reads a value it waits until the device has it, and goes on from there. So
  the time of a launch is that of the last wait and a sum that needs no simulation. Of a device
  without `host`, launches take no time, and the program is always ahead.
- A kernel takes as long as its operations or its bytes need, whichever is longer; calls of its rank
  that are under way slow it, as they occupy multiprocessors of the same device: those of different
  groups, which may go on at once, different ones.
- A collective begins when it could on all members, and takes what its formula says (costs.py).
- A message begins when both sides could, and takes latency + bytes / bandwidth.
- Calls of a rank that go through the same port at the same time share its bandwidth, as two streams
  share a link.
- A rank that is not recorded does what the recorded one of its role does, at the same time.
"""

import bisect
import itertools
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple

from distlab.errors import ArgumentError
from distlab_predict import garbage
from distlab_predict.costs import Costs
from distlab_predict.jobs import DEVICE, MOST_LOST, PROCESSOR, Job, Simulation, Stretch
from distlab_predict.nodes import Call, Kernel, Node, Recording

Times = list[tuple[float, float]]  # (begin, end) of each node
LAUNCH = "launch"  # the basis of what launches cost, as of `Cost.basis`


class Timeline(NamedTuple):
    """When nodes run, and when they wait to be launched.

    Attributes:
        times: of each node, by recording, in seconds.
        late: spans in which a node could have begun and was not launched yet, by recording.
    """

    times: list[Times]
    late: list[Times]


def timeline_of(
    recordings: Sequence[Recording], costs: Costs, slower: Mapping[str, float] | None = None
) -> Timeline:
    """When each node of each recording runs.

    What comes before the first step takes no time, and the first node of it is launched at 0.

    Args:
        recordings: of the ranks.
        costs: of their nodes.
        slower: how many times longer nodes take than their costs say, by `Cost.basis`, to try what
            would follow if the costs were wrong.

    Raises:
        ArgumentError: ranks wait for each other forever.
    """
    with garbage.left_alone():
        return _found(recordings, costs, slower or {})


def _found(recordings: Sequence[Recording], costs: Costs, slower: Mapping[str, float]) -> Timeline:
    jobs = _jobs_of(recordings, costs, slower)
    operator = costs.device.host * slower.get(LAUNCH, 1.0)
    waits = []
    if operator:
        for number, (recording, own) in enumerate(zip(recordings, jobs, strict=True)):
            waits += _launched(recording, own, operator, number)
    each_once = dict.fromkeys(itertools.chain(*jobs, waits))  # some are of several recordings
    # what is said of a device, and not of a call, is the same for one call and for several
    simulation = Simulation(costs.device.contention or MOST_LOST)
    simulation.run(each_once)
    _check_all_began(recordings, jobs)
    times = []
    late = []
    for own in jobs:
        times.append([(job.begin, job.end) for job in own])
        late.append([(job.ready, job.begin) for job in own if job.ready < job.begin])
    return Timeline(times, late)


def _check_all_began(recordings: Sequence[Recording], jobs: Sequence[Sequence[Job]]) -> None:
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
) -> list[list[Job]]:
    """The job of each node, by recording.

    A call that several recorded ranks make together is one job.
    """
    recorded = sorted(recording.rank for recording in recordings)
    common: dict[Hashable, Job] = {}
    jobs: list[list[Job]] = []
    before_steps: list[Job] = []
    for number, recording in enumerate(recordings):
        own: list[Job] = []
        counts: Counter[Hashable] = Counter()
        first, _ = recording.steps[0]
        for index, node in enumerate(recording.nodes):
            meeting = ALONE
            if isinstance(node, Call):
                meeting = _meeting_of(node, recording.rank, recorded)
            if meeting.ranks > 1:
                # the n-th call of this kind is the same call on every rank
                counts[meeting.key] += 1
                place = (meeting.key, counts[meeting.key])
                job = common.setdefault(place, Job(meeting.ranks))
            else:
                job = Job(1)
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


def _launched(recording: Recording, own: Sequence[Job], operator: float, number: int) -> list[Job]:
    """Say of the jobs of a recording when they are launched.

    Args:
        recording: their nodes, and where the program waits.
        own: its jobs.
        operator: seconds that the processor needs for one.
        number: of the recording.

    Returns:
        The jobs of its waits.
    """
    stretch = Stretch(0.0)
    offset = 0.0
    waits = []
    first, _ = recording.steps[0]
    coming = [wait for wait in recording.waits if wait.before > first]
    coming.reverse()
    for index in range(first, len(own)):
        while coming and coming[-1].before == index:
            ends = coming.pop().ends
            wait = Job(len(ends), load=0.0, uses=[(number, PROCESSOR)])
            wait.launches.append((stretch, offset))
            for end in ends:
                own[end].following.append(wait)
            waits.append(wait)
            stretch = wait.opens = Stretch()
            offset = 0.0
        if index > first:
            offset += recording.nodes[index].host * operator
        own[index].launches.append((stretch, offset))
    return waits


class _Meeting(NamedTuple):
    """Which recorded ranks a node needs.

    Attributes:
        key: what the node has in common with those of other recorded ranks that it meets.
        ranks: how many recorded ranks meet.
    """

    key: Hashable
    ranks: int


ALONE = _Meeting(None, 1)


def _meeting_of(node: Call, rank: int, recorded: Sequence[int]) -> _Meeting:
    """Which recorded ranks meet in a call of this rank.

    The other end of a message may not be recorded. Then the last recorded rank before it has its
    role.
    """
    if node.peer is None:
        meeting = set(recorded).intersection(node.members)
        return _Meeting((node.stream, node.members), len(meeting))
    up_to_peer = bisect.bisect(recorded, node.peer)
    role = recorded[max(0, up_to_peer - 1)]
    ends = (role, rank)
    if node.name == "send":
        ends = (rank, role)
    return _Meeting(("message", *ends), 1 if role == rank else 2)
