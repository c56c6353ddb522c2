"""What each member of a collective sends and receives, step by step, as data.

Runs on the ranks and, for the checks of exercises, on the kernel; called by simulation.py.
distlab_predict asks which algorithm an all-reduce takes. A member goes on to its next step when all
that it sends and receives in this one has ended. The all-reduces are the ones of schedules.py.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import cache

from distlab.simulated.events import CollectiveCall, PointToPoint
from distlab.simulated.network import Network
from distlab.simulated.schedules import cost, distances, schedule

# messages at the same time, each as (member that sends, member that receives, bytes)
CollectiveStep = Sequence[tuple[int, int, int]]


def messages(event: CollectiveCall, rank: int, network: Network) -> Iterator[list[PointToPoint]]:
    """What a rank receives and sends in a collective, step by step.

    Args:
        event: the collective, see CollectiveCall.
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


def _steps(event: CollectiveCall, me: int, n: int, network: Network) -> Iterable[CollectiveStep]:
    """The steps of member `me` of `n`: what it receives, and then what it sends, in each."""
    name = event.name
    size = event.sent[0]
    if name == "all_to_all":
        return _pairwise_exchange(event.sent, me, n)
    if name == "all_reduce":
        num_bytes, element = event.sent
        chosen = algorithm(n, num_bytes, network)
        return _all_reduce(chosen, me, n, num_bytes, element)
    if name in ("all_gather", "reduce_scatter"):
        around_the_ring = _of_member(me, [_rotation(n, 1, size)])
        return around_the_ring * (n - 1)
    if name == "barrier":
        return _of_member(me, _dissemination(n))
    if event.root is None:
        raise TypeError(f"{name} needs a root")
    if name in ("gather", "scatter"):
        steps = _star(event.root, n, size)
    else:
        steps = _binomial_tree(event.root, n, size)
    if name in ("gather", "reduce"):
        steps = _backwards(steps)
    return _of_member(me, steps)


def _pairwise_exchange(sizes: Sequence[int], me: int, n: int) -> list[CollectiveStep]:
    """The steps of an all_to_all: in each, a member receives from one and sends to another.

    They are at the same distance from it: the one before it, the one after it.
    """
    steps: list[CollectiveStep] = []
    for distance in range(1, n):
        source = (me - distance) % n
        target = (me + distance) % n
        received = (source, me, 0)  # only a sender knows how many bytes it sends
        sent = (me, target, sizes[target])
        steps.append([received, sent])
    return steps


def _rotation(n: int, distance: int, size: int) -> CollectiveStep:
    """A step in which every member sends to the one at this distance behind it."""
    step = []
    for src in range(n):
        dst = (src + distance) % n
        step.append((src, dst, size))
    return step


def _dissemination(n: int) -> Iterator[CollectiveStep]:
    """The steps of a barrier: at their end, everybody knows that everybody has come."""
    for distance in distances(n):
        yield _rotation(n, distance, 0)


def _star(root: int, n: int, size: int) -> list[CollectiveStep]:
    """The one step of a scatter: the root sends to every other member."""
    step = []
    for member in range(n):
        if member != root:
            step.append((root, member, size))
    return [step]


def _binomial_tree(root: int, n: int, size: int) -> list[CollectiveStep]:
    """The steps of a broadcast: in each, every member that has the data gives it to one more."""
    steps: list[CollectiveStep] = []
    members = [(root + k) % n for k in range(n)]  # from the root on
    for distance in reversed(distances(n)):
        step = []
        for having in range(0, n - distance, 2 * distance):
            src = members[having]
            dst = members[having + distance]
            step.append((src, dst, size))
        steps.append(step)
    return steps


def _backwards(steps: Sequence[CollectiveStep]) -> list[CollectiveStep]:
    """The same messages the other way, the last step first."""
    turned: list[CollectiveStep] = []
    for step in reversed(steps):
        turned_step = []
        for src, dst, size in step:
            turned_step.append((dst, src, size))
        turned.append(turned_step)
    return turned


def _of_member(me: int, steps: Iterable[CollectiveStep]) -> tuple[CollectiveStep, ...]:
    """What one member receives and sends in the steps of all, where it takes part in them."""
    own_steps = []
    for step in steps:
        received = []
        sent = []
        for message in step:
            src, dst, _ = message
            if dst == me:
                received.append(message)
            if src == me:
                sent.append(message)
        if received or sent:
            own_steps.append(received + sent)
    return tuple(own_steps)


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
def _all_reduce(
    name: str, me: int, n: int, num_bytes: int, element: int
) -> tuple[CollectiveStep, ...]:
    """The schedule's messages, except those of empty chunks; chunks are cut between elements."""
    made = _schedule(name, n)
    least, longer = divmod(num_bytes // element, made.num_chunks)

    def size(chunks: range) -> int:
        """The bytes of some chunks, of which the first ones, `longer`, have one more element."""
        longer_ones = range(chunks.start, min(chunks.stop, longer))
        return element * (len(chunks) * least + len(longer_ones))

    steps = []
    for together in made.steps:
        step = []
        for message in together:
            size_of_message = size(message.chunks)
            if size_of_message > 0:
                step.append((message.src, message.dst, size_of_message))
        steps.append(step)
    return _of_member(me, steps)


_schedule = cache(schedule)
