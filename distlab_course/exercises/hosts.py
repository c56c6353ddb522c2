"""The exercises of notebook 10 on hosts: which rank is where, what another host's clock shows, and who is left."""

import time

import torch
import torch.distributed as dist

from distlab.checking import Seen, exercise, formula, question

SINCE_1970 = 1.7e9  # seconds: float32 is too coarse for such times


@formula("10", ({"nodeA": 2, "nodeB": 2}, 2), ({"nodeA": 4, "nodeB": 1, "nodeC": 3}, 6), ({"nodeA": 8}, 7))
def home_of_rank(hosts, rank):
    """Return (host, LOCAL_RANK, GROUP_RANK) of a rank; `hosts` maps the name of each host to its number of ranks.

    Ranks are numbered host by host, in the order of `hosts`, and the hosts may have different numbers of them.

    Hint: Walk over the hosts, and take the ranks of each that lies before the right one from the rank.
    """
    for number, (name, ranks) in enumerate(hosts.items()):
        if rank < ranks:
            return name, rank, number
        rank -= ranks


def _exchanged(fn, ahead):
    """What is wrong with an exchange, where rank 1's clock is `ahead` seconds ahead, and rank 0 comes late."""
    rank = dist.get_rank()
    dist.barrier()
    time.sleep(0.0 if rank else 0.6)
    found = fn(lambda: SINCE_1970 + time.monotonic() + rank * ahead)
    if rank:
        return None
    if not isinstance(found, tuple) or [type(one) for one in found] != [float] * 3:
        return Seen(f"{found!r}", "Rank 0 must return three numbers: (asked, seen, answered).")
    asked, seen, answered = found
    if asked > answered:
        return Seen("answered before asked", "The order is (asked, seen, answered).")
    if seen == torch.tensor(seen, dtype=torch.float32).item():
        return Seen("seen is coarse", "`seen` is a multiple of 128 s, as any float32 of that size. Which dtype?")
    if not asked <= seen - ahead <= answered:
        when = "before it was asked" if seen - ahead < asked else "after its answer had arrived"
        return Seen("seen outside", f"`seen` is of a time {when}: at which line does rank 1 look at its clock?")
    return Seen("seen in between")


@exercise("10", worlds=(2,), cases=(100.0, -3600.0), given=lambda rank, size, case: (case,), trial=_exchanged)
def ask_the_time(clock):
    """Rank 0 asks rank 1 what time it is, and returns (asked, seen, answered), three numbers; rank 1 returns None.

    `clock()` is the time by a rank's own clock, in seconds since 1970: `asked` and `answered` are by rank 0's clock,
    `seen` by that of rank 1, which must look at it after it was asked. Rank 0 comes 0.6 s after rank 1.

    Hint: Rank 0: clock, send, recv, clock. Rank 1: recv, clock, send.
    Hint: `torch.zeros(1)` is float32 and has some seven digits, but the time has ten before the point alone.
    """
    note = torch.zeros(1, dtype=torch.float64)
    if dist.get_rank() == 0:
        asked = clock()
        dist.send(note, dst=1)
        dist.recv(note, src=1)
        return asked, note.item(), clock()
    dist.recv(note, src=0)
    note[0] = clock()
    dist.send(note, dst=0)


@formula(
    "10",
    ([(10.0, 15.5, 10.5)],),
    ([(10.0, 16.0, 12.0), (20.0, 25.25, 20.25), (30.0, 35.5, 31.5)],),
    ([(1.0, -6.75, 1.5), (2.0, -5.0, 4.0), (5.0, -2.875, 5.25)],),
)
def offset_and_error(exchanges):
    """Return (offset, error): how much a clock is ahead of ours, and by how much that may be wrong at most.

    Each of the `exchanges` is (asked, seen, answered): we asked and got the answer when our clock showed `asked` and
    `answered`, and some time in between the other clock was looked at and showed `seen`. Believe the shortest exchange.

    Hint: If it was looked at in the middle, what did our own clock show just then?
    Hint: It may have been looked at right after `asked`, or right before `answered`.
    """
    asked, seen, answered = min(exchanges, key=lambda one: one[2] - one[0])
    return seen - (asked + answered) / 2, (answered - asked) / 2


@formula(
    "10", ({"nodeA": 2, "nodeB": 2}, "nodeB"), ({"nodeA": 2, "nodeB": 3, "nodeC": 2}, "nodeB"), ({"nodeA": 1}, "nodeA")
)
def ranks_left(hosts, lost):
    """Return {old rank: new rank} of the ranks that are left when host `lost` has vanished, numbered anew from 0.

    Their order stays. `hosts` maps the name of each host to its number of ranks, which are numbered host by host.

    Hint: Which old ranks are on each host?
    """
    names = [name for name, ranks in hosts.items() for _ in range(ranks)]
    return {old: new for new, old in enumerate(rank for rank, name in enumerate(names) if name != lost)}


@question("10", 512)
def price_of_silence(answer):
    """64 hosts with 8 GPUs each train, and a GPU costs 2 dollars an hour. Somebody pulls the cable of one host.

    The job has gloo's timeout as torch sets it, and nobody looks. How many dollars have been spent on waiting when the
    first error comes?

    Hint: `dist.default_pg_timeout` says how long.
    Hint: The GPUs of the host without a cable are paid for, too.

    Not 504: The host that was cut off computes nothing either, and is paid for like the others.
    Not 1024: That is an hour. How long is the timeout?

    Why: 512 GPUs wait for half an hour each, at 2 dollars an hour: 512 dollars.
    """
