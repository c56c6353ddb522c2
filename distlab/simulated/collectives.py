"""What each member of a collective sends and receives, step by step, as data.

Runs on the ranks, called by simulation.py. A member goes on to its next step when all that it sends and receives in
this one has ended. The all-reduces are the schedules of distlab.algorithms.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from distlab.course.algorithms.schedules import cost, schedule
from distlab.simulated.network import Network


class Step(NamedTuple):
    """What a member does at the same time: (other member, bytes) for all that it sends, and all that it receives."""

    sends: tuple[tuple[int, int], ...]
    receives: tuple[tuple[int, int], ...]


Sizes = tuple[int, ...]


def program(name: str, me: int, n: int, root: int, sent: Sizes, received: Sizes, network: Network) -> tuple[Step, ...]:
    """The steps of member `me` of `n`.

    Args:
        name: of the collective. root: the member that a rooted one is from or to.
        sent, received: bytes. Of all_to_all by member; of all_reduce the whole buffer, and an element of it; of the
            others one number: the whole buffer of broadcast and reduce, the share of one member else.
        network: chooses the algorithm.
    """
    if n == 1:
        return ()
    if name == "all_to_all":
        turns = [((me + k) % n, (me - k) % n) for k in range(1, n)]
        return tuple(Step(((to, sent[to]),), ((source, received[source]),)) for to, source in turns)
    if name == "all_reduce":
        return _all_reduce(_algorithm(n, sent[0], network), me, n, *sent)
    size = sent[0]
    if name in ("all_gather", "reduce_scatter"):
        return (Step((((me + 1) % n, size),), (((me - 1) % n, size),)),) * (n - 1)
    if name == "barrier":
        distances = [1 << k for k in range((n - 1).bit_length())]
        return tuple(Step((((me + d) % n, 0),), (((me - d) % n, 0),)) for d in distances)
    if name in ("gather", "scatter") or network.algorithms.get(name) == "linear":
        return _linear(name in ("broadcast", "scatter"), me, n, root, size)
    steps = _tree((me - root) % n, n, root, size)
    return steps if name == "broadcast" else _backwards(steps)


def _algorithm(n: int, num_bytes: int, network: Network) -> str:
    """How an all-reduce goes; "auto" is the quicker of ring and tree, by their formulas."""
    chosen = network.algorithms.get("all_reduce", "auto")
    if chosen != "auto":
        return chosen
    link = network.between or network.inside
    return min(("ring", "tree"), key=lambda name: cost(name, num_bytes, n, link.latency, 1 / link.bandwidth))


@cache
def _all_reduce(name: str, me: int, n: int, num_bytes: int, element: int) -> tuple[Step, ...]:
    """The schedule's messages but for those of empty chunks; chunks are cut between elements."""
    plan = _schedule(name, n)
    least, more = divmod(num_bytes // element, plan.num_chunks)

    def size(chunks: range) -> int:
        return element * (len(chunks) * least + len(range(chunks.start, min(chunks.stop, more))))

    steps = []
    for messages in plan.steps:
        sends = tuple((m.dst, size(m.chunks)) for m in messages if m.src == me and size(m.chunks))
        receives = tuple((m.src, size(m.chunks)) for m in messages if m.dst == me and size(m.chunks))
        if sends or receives:
            steps.append(Step(sends, receives))
    return tuple(steps)


_schedule = cache(schedule)


def _tree(place: int, n: int, root: int, size: int) -> tuple[Step, ...]:
    """A binomial tree from the root: in each step, who has the data gives it to one more."""
    steps = []
    distance = 1 << ((n - 1).bit_length() - 1)
    while distance:
        if place % (2 * distance) == 0 and place + distance < n:
            steps.append(Step((((place + distance + root) % n, size),), ()))
        elif place % (2 * distance) == distance:
            steps.append(Step((), (((place - distance + root) % n, size),)))
        distance //= 2
    return tuple(steps)


def _linear(from_root: bool, me: int, n: int, root: int, size: int) -> tuple[Step, ...]:
    """The root exchanges with all others at the same time."""
    others = tuple((other, size) for other in range(n) if other != root)
    mine = Step((), others) if me == root else Step(((root, size),), ())
    return _backwards((mine,)) if from_root else (mine,)


def _backwards(steps: tuple[Step, ...]) -> tuple[Step, ...]:
    """The same messages the other way, the last first."""
    return tuple(Step(step.receives, step.sends) for step in reversed(steps))
