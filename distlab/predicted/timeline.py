"""When each node of each role begins and ends, on described machines. A pure function.

The model:

- A stream does one thing after another: a node begins when the one before it on its stream has ended, and all that it
  waits for. The program is always ahead of its device.
- A kernel takes as long as its operations or its bytes need, whichever is longer.
- A collective begins when it could on all members, and takes what its formula says (costs.py).
- A message begins when both sides could, and takes latency + bytes / bandwidth.
- A rank that is not recorded does what the recorded one of its role does, at the same time.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Hashable, Sequence

from distlab.predicted.costs import Costs
from distlab.predicted.nodes import Call, Node, Recording

Times = list[tuple[float, float]]  # (begin, end) of each node
Place = tuple[int, int]  # number of a recording, and of a node in it


def times_of(recordings: Sequence[Recording], costs: Costs, role_of: Callable[[int], int]) -> list[Times]:
    """Begin and end of each node, by recording, in seconds; what comes before the first step takes no time.

    Args:
        role_of: the recorded rank that does what a rank does.
    """
    before = {place: nodes for number, one in enumerate(recordings) for place, nodes in _before(number, one)}
    after, left = defaultdict(list), {place: len(nodes) for place, nodes in before.items()}
    for place, nodes in before.items():
        for node in nodes:
            after[node].append(place)
    meetings = _meetings(recordings, role_of)
    gathered: defaultdict[Hashable, list[Place]] = defaultdict(list)
    came, times = {}, {}
    ready = deque(place for place, count in left.items() if count == 0)
    while ready:
        place = ready.popleft()
        came[place] = max((times[node][1] for node in before[place]), default=0.0)
        key, needed = meetings.get(place, (place, 1))
        gathered[key].append(place)
        if len(gathered[key]) < needed:
            continue
        together = gathered.pop(key)
        begin = max(came[one] for one in together)
        end = begin + _seconds(recordings, place, costs)
        for one in together:
            times[one] = begin, end
            for following in after[one]:
                left[following] -= 1
                if left[following] == 0:
                    ready.append(following)
    _check(recordings, times, came)
    return [[times[number, node] for node in range(len(one.nodes))] for number, one in enumerate(recordings)]


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


def _seconds(recordings: Sequence[Recording], place: Place, costs: Costs) -> float:
    recording, node = recordings[place[0]], recordings[place[0]].nodes[place[1]]
    return 0.0 if place[1] < recording.steps[0][0] else costs.seconds(node, recording.rank)


def _check(recordings: Sequence[Recording], times: dict[Place, Times], came: dict[Place, float]) -> None:
    """Each node has its time, or ranks call what others do not."""
    waiting = [recordings[number].nodes[place] for number, place in came if (number, place) not in times]
    if waiting:
        names = ", ".join(dict.fromkeys(_words(node) for node in waiting))
        raise ValueError(f"not every rank calls {names}: on real machines this program would hang")


def _words(node: Node) -> str:
    return node.name if node.peer is None else f"{node.name} (rank {node.peer})"
