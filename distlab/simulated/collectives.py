"""What each member of a collective sends and receives, step by step, as data.

Runs on the ranks and, for the checks of exercises, on the kernel; called by simulation.py. A member
goes on to its next step when all that it sends and receives in this one has ended. The all-reduces
are the ones of schedules.py.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import cache

from distlab.simulated.events import Collective, PointToPoint
from distlab.simulated.network import Network
from distlab.simulated.schedules import cost, distances, schedule

# messages at the same time, each as (member that sends, member that receives, bytes)
Step = Sequence[tuple[int, int, int]]


def messages(event: Collective, rank: int, network: Network) -> Iterator[list[PointToPoint]]:
    """What a rank receives and sends in a collective, step by step.

    Args:
        event: its `sent` are bytes: for all_to_all, by member; for all_reduce, the whole buffer and
            one element; for the others, one number: the whole buffer of broadcast and reduce,
            otherwise the share of one member.
        network: chooses the algorithm.
    """
    members, me, channel = (
        event.members,
        event.members.index(rank),
        (f"{event.group} {event.name}", event.count),
    )
    for step in _steps(event, me, len(members), network):
        ends = [
            (src == me, members[dst if src == me else src], num_bytes)
            for src, dst, num_bytes in step
        ]
        yield [PointToPoint(event.op, *end, channel) for end in ends]


def _steps(event: Collective, me: int, n: int, network: Network) -> Iterable[Step]:
    """The steps of member `me` of `n`: what it receives, and then what it sends, in each."""
    name, root, size = event.name, event.root, event.sent[0]
    if name == "all_to_all":
        turns = [((me + k) % n, (me - k) % n) for k in range(1, n)]
        # only a sender knows the bytes
        return [[(source, me, 0), (me, to, event.sent[to])] for to, source in turns]
    if name == "all_reduce":
        return _all_reduce(algorithm(n, size, network), me, n, *event.sent)
    if name in ("all_gather", "reduce_scatter"):
        return _of_member(me, [[(k, (k + 1) % n, size) for k in range(n)]]) * (n - 1)
    if name == "barrier":
        return _of_member(me, [[(k, (k + d) % n, 0) for k in range(n)] for d in distances(n)])
    if name in ("gather", "scatter"):
        steps = [[(root, other) for other in range(n) if other != root]]
    else:  # down a binomial tree: in each step, every rank that has the data gives it to one more
        spans = reversed(distances(n))
        steps = [
            [((k + root) % n, (k + d + root) % n) for k in range(0, n - d, 2 * d)] for d in spans
        ]
    if name in ("broadcast", "scatter"):
        return _of_member(me, [[(src, dst, size) for src, dst in step] for step in steps])
    return _of_member(me, [[(src, dst, size) for dst, src in step] for step in reversed(steps)])


def _of_member(me: int, steps: Iterable[Step]) -> tuple[Step, ...]:
    """What one member receives and sends in the steps of all."""
    own = ([m for m in step if m[1] == me] + [m for m in step if m[0] == me] for step in steps)
    return tuple(step for step in own if step)


def algorithm(n: int, num_bytes: int, network: Network) -> str:
    """The algorithm of an all-reduce; "auto" is the faster of ring and tree, by their formulas."""
    chosen = network.algorithms.get("all_reduce", "auto")
    if chosen != "auto":
        return chosen
    link = network.between or network.inside
    return min(
        ("ring", "tree"),
        key=lambda name: cost(name, num_bytes, n, link.latency, 1 / link.bandwidth),
    )


@cache
def _all_reduce(name: str, me: int, n: int, num_bytes: int, element: int) -> tuple[Step, ...]:
    """The schedule's messages, except those of empty chunks; chunks are cut between elements."""
    made = _schedule(name, n)
    least, more = divmod(num_bytes // element, made.num_chunks)

    def size(chunks: range) -> int:
        return element * (len(chunks) * least + len(range(chunks.start, min(chunks.stop, more))))

    steps = [
        [(m.src, m.dst, size(m.chunks)) for m in messages if size(m.chunks)]
        for messages in made.steps
    ]
    return _of_member(me, steps)


_schedule = cache(schedule)
