"""Events and messages of traces, made by hand, with times in ms."""

import random

from distlab.traces.events import Collective, Event, Message

GROUP = (0, 1)


def message(src, dst, sent, posted, end, num_bytes=4, group=GROUP, blocking=True):
    """A send at `sent` and its recv at `posted`, both over at `end`."""
    what = {
        "ready": max(sent, posted) / 1e3,
        "group": group,
        "num_bytes": num_bytes,
        "tag": 0,
        "blocking": blocking,
    }
    prefix = "" if blocking else "i"
    send = Event(src, "send", f"{prefix}send", sent / 1e3, end / 1e3, peer=dst, **what)
    recv = Event(dst, "recv", f"{prefix}recv", posted / 1e3, end / 1e3, peer=src, **what)
    return Message(src, dst, 0, group, num_bytes, send, recv)


def halves(messages):
    """The sends and recvs of messages, as far as they are there."""
    found = []
    for one in messages:
        found += [half for half in (one.send, one.recv) if half is not None]
    return found


def collective(starts, end, op="all_reduce"):
    """All ranks enter at their own time and leave together."""
    group = tuple(range(len(starts)))
    last = max(starts) / 1e3
    events = [
        Event(r, "collective", op, at / 1e3, end / 1e3, ready=last, group=group)
        for r, at in enumerate(starts)
    ]
    return Collective(op, group, tuple(events), True)


def many(ranks, steps, seed=1):
    """A ring with computation: about 4 events a rank and step, at plausible times."""
    chance = random.Random(seed)
    messages = []
    events = []
    group = tuple(range(ranks))
    now = [0.0] * ranks
    for _ in range(steps):
        computed = [time + chance.random() * 0.4 for time in now]
        for rank in range(ranks):
            events.append(Event(rank, "compute", "mm", now[rank] / 1e3, computed[rank] / 1e3))
        for rank in range(ranks):
            after = (rank + 1) % ranks
            sent = computed[rank]
            posted = computed[after]
            now[after] = max(sent, posted) + chance.random() * 0.5
            messages.append(message(rank, after, sent, posted, now[after], 400, group))
    return events + halves(messages), messages
