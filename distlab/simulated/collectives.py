"""What each member of a collective sends and receives, step by step, as data.

Runs on the ranks and, for the checks of exercises, on the kernel; called by simulation.py. A member
goes on to its next step when all that it sends and receives in this one has ended. The all-reduces
are the ones of schedules.py.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import cache

from distlab.simulated.events import CollectiveCall, PointToPoint
from distlab.simulated.network import Network
from distlab.simulated.schedules import cost, distances, schedule

# messages at the same time, each as (member that sends, member that receives, bytes)
Round = Sequence[tuple[int, int, int]]


def messages(event: CollectiveCall, rank: int, network: Network) -> Iterator[list[PointToPoint]]:
    """What a rank receives and sends in a collective, step by step.

    Args:
        event: its `sent` are bytes: for all_to_all, by member; for all_reduce, the whole buffer and
            one element; for the others, one number: the whole buffer of broadcast and reduce,
            otherwise the share of one member.
        rank: one of the members.
        network: chooses the algorithm.
    """
    members = event.members
    me = members.index(rank)
    channel = (f"{event.group} {event.name}", event.count)
    for step in _steps(event, me, len(members), network):
        begun = []
        for src, dst, num_bytes in step:
            sends = src == me
            peer = members[dst if sends else src]
            begun.append(PointToPoint(event.op, sends, peer, num_bytes, channel))
        yield begun


def _steps(event: CollectiveCall, me: int, n: int, network: Network) -> Iterable[Round]:
    """The steps of member `me` of `n`: what it receives, and then what it sends, in each."""
    name = event.name
    size = event.sent[0]
    if name == "all_to_all":
        return [_pairwise_exchange(event.sent, me, n, distance) for distance in range(1, n)]
    if name == "all_reduce":
        num_bytes, element = event.sent
        return _all_reduce(algorithm(n, num_bytes, network), me, n, num_bytes, element)
    if name in ("all_gather", "reduce_scatter"):
        return _of_member(me, [_rotation(n, 1, size)]) * (n - 1)
    if name == "barrier":
        return _of_member(me, [_rotation(n, distance, 0) for distance in distances(n)])
    if event.root is None:
        raise TypeError(f"{name} needs a root")
    if name in ("gather", "scatter"):
        steps = _star(event.root, n, size)
    else:
        steps = _binomial_tree(event.root, n, size)
    if name in ("gather", "reduce"):
        steps = _backwards(steps)
    return _of_member(me, steps)


def _pairwise_exchange(sizes: Sequence[int], me: int, n: int, distance: int) -> Round:
    """A step of all_to_all: receive from the member `distance` before, send to the one after."""
    source = (me - distance) % n
    target = (me + distance) % n
    # only a sender knows how many bytes it sends
    return [(source, me, 0), (me, target, sizes[target])]


def _rotation(n: int, distance: int, size: int) -> Round:
    """A step in which every member sends to the one at this distance behind it."""
    return [(k, (k + distance) % n, size) for k in range(n)]


def _star(root: int, n: int, size: int) -> list[Round]:
    """The one step of a scatter: the root sends to every other member."""
    return [[(root, other, size) for other in range(n) if other != root]]


def _binomial_tree(root: int, n: int, size: int) -> list[Round]:
    """The steps of a broadcast: in each, every member that has the data gives it to one more."""
    steps: list[Round] = []
    members = [(root + k) % n for k in range(n)]  # from the root on
    for distance in reversed(distances(n)):
        having = range(0, n - distance, 2 * distance)
        steps.append([(members[k], members[k + distance], size) for k in having])
    return steps


def _backwards(steps: Sequence[Round]) -> list[Round]:
    """The same messages the other way, the last step first."""
    return [[(dst, src, size) for src, dst, size in step] for step in reversed(steps)]


def _of_member(me: int, steps: Iterable[Round]) -> tuple[Round, ...]:
    """What one member receives and sends in the steps of all."""
    own = []
    for step in steps:
        received = [message for message in step if message[1] == me]
        sent = [message for message in step if message[0] == me]
        if received or sent:
            own.append(received + sent)
    return tuple(own)


def algorithm(n: int, num_bytes: int, network: Network) -> str:
    """The algorithm of an all-reduce; "auto" is the faster of ring and tree, by their formulas."""
    chosen = network.algorithms.get("all_reduce", "auto")
    if chosen != "auto":
        return chosen
    link = network.between or network.inside

    def seconds(name: str) -> float:
        return cost(name, num_bytes, n, link.latency, 1 / link.bandwidth)

    return min(("ring", "tree"), key=seconds)


@cache
def _all_reduce(name: str, me: int, n: int, num_bytes: int, element: int) -> tuple[Round, ...]:
    """The schedule's messages, except those of empty chunks; chunks are cut between elements."""
    made = _schedule(name, n)
    least, longer = divmod(num_bytes // element, made.num_chunks)

    def size(chunks: range) -> int:
        """The bytes of some chunks, of which the first ones, `longer`, have one more element."""
        longer_ones = range(chunks.start, min(chunks.stop, longer))
        return element * (len(chunks) * least + len(longer_ones))

    steps = []
    for together in made.steps:
        sized = ((message.src, message.dst, size(message.chunks)) for message in together)
        steps.append([message for message in sized if message[2]])
    return _of_member(me, steps)


_schedule = cache(schedule)
