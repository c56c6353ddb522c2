"""The exercises of lab 62: all-reduce over a slow cable, order of the ranks, and host by host."""

import torch
import torch.distributed as dist

from distlab.checking import Seen, exercise, formula, gathered, numbers, question
from distlab.simulated.events import CollectiveCall, Wait
from distlab.simulated.network import Link, Network
from distlab.simulated.simulation import simulate

CABLE = (0.005, 8e-8)  # seconds of a message, and of each of its bytes
FOUR_ALGORITHMS = ("whole ring", "ring", "tree", "halving doubling")
RANKS_AND_BYTES = ((2, 1000), (2, 10**6), (1, 10**6), (4, 10**6))  # of a host, of the tensor
OVER_THE_CABLE = [(name, *size, *CABLE) for size in RANKS_AND_BYTES for name in FOUR_ALGORITHMS]

# the host of each rank
PLACES = ("ABAB", "AABB", "BACA")
# the cable of the lab, and the tensor that goes around the ring
INSIDE = Link("100 us", "1 GB/s")
BETWEEN = Link("5 ms", "100 Mbit/s")
NUM_BYTES = 2**20
# numbers, and the host of each rank
LAYOUTS = ((8, "AABB"), (7, "ABAB"), ((10, torch.float64), "ABBB"), ((5, torch.int64), "ABCA"))


@formula("62", *OVER_THE_CABLE)
def seconds_over_the_cable(name, k, num_bytes, alpha, beta):
    """Return the seconds of an all-reduce of `num_bytes` on two hosts of k ranks each, k a power of
    two.

    Messages inside a host take no time. Over the cable a message of m bytes takes alpha + beta
    m. Messages in the same direction at the same time share it: together they take alpha, plus beta
    times the bytes of all. `name` is "whole ring", "ring", "tree" or "halving doubling". For k = 2,
    1 MB, 5 ms and 80 ns a byte the times are 0.255, 0.15, 0.17 and 0.17 s.

    Title: 1.1 Over the cable
    Hint: A ring crosses the cable in each step, once in each direction. How many steps are there
    with n = 2 k ranks?
    Hint: A tree crosses the cable once on the way up, from rank k to rank 0, and once on the way
    down.
    Hint: In halving and doubling two steps cross the cable: the first and the last. In each of them
    every rank sends half of the tensor to a rank of the other host, so k messages share the cable.
    """
    n = 2 * k
    if name == "whole ring":
        crossings = n - 1
        crossing_bytes = num_bytes
    elif name == "ring":
        crossings = 2 * (n - 1)
        crossing_bytes = num_bytes / n
    elif name == "tree":
        crossings = 2
        crossing_bytes = num_bytes
    else:  # halving and doubling
        crossings = 2
        crossing_bytes = k * num_bytes / 2
    return crossings * (alpha + beta * crossing_bytes)


def _host_of_rank(rank, n, places):
    """The name of the rank's host."""
    return (f"node{places[rank]}",)


def _try_ring_order(fn, host):
    """The sum over the group that `fn` returns, and how long a ring in its order takes."""
    group = fn(host)
    everyone = list(range(dist.get_world_size()))
    if not isinstance(group, dist.ProcessGroup):
        return Seen("no group", "Return the group itself, what `dist.new_group` has returned.")
    order = dist.get_process_group_ranks(group)
    if sorted(order) != everyone:
        return Seen("a group without some ranks", "Every rank should be in the group.")
    total = torch.tensor(10 ** dist.get_rank())
    dist.all_reduce(total, group=group)
    hosts = gathered(host)
    milliseconds = 1e3 * _seconds_of_ring([hosts[rank] for rank in order])
    visited = " ".join(hosts[rank] for rank in order)
    why = f"The ring visits the hosts in the order {visited}."
    return total, Seen(f"1 MiB takes {milliseconds:.0f} ms", why)


def _seconds_of_ring(visited):
    """Seconds of a ring of ranks on these hosts, in this order, on a simulated cable.

    A `Network` numbers ranks host by host, so the ring's ranks get new numbers here.
    """
    by_host = sorted(range(len(visited)), key=lambda place: visited[place])
    numbered = tuple(by_host.index(place) for place in range(len(visited)))
    ring = CollectiveCall(1, "all_reduce", "ring", 1, numbered, None, (NUM_BYTES, 4))
    network = Network(
        hosts=[visited.count(host) for host in sorted(set(visited))],
        inside=INSIDE,
        between=BETWEEN,
        algorithms={"all_reduce": "ring"},
    )
    return max(simulate([[ring, Wait(1)]] * len(visited), network).clocks)


@exercise("62", worlds=(2, 3, 4), cases=PLACES, given=_host_of_rank, trial=_try_ring_order)
def ring_order(host):
    """Return a group of all ranks in an order in which a ring leaves each host only once. `host` is
    the name of this rank's host.

    A ring in a group goes by the ranks' numbers in the group: from 0 to 1, and so on, and from the
    last one back to 0. If the ranks 0 to 3 are on the hosts A, B, A, B, the order 0, 2, 1, 3 is
    good, or any other that finishes one host before the next.

    Title: 2.1 A good order
    Hint: `dist.all_gather_object(hosts, host)` fills the list `hosts`, which has a place for each
    rank.
    Hint: The ranks of one host must be neighbours: `sorted` takes a `key`, a function of a rank.
    Hint: `dist.new_group(order, sort_ranks=False)` keeps the order.

    Stuck: Does every rank give `new_group` the same ranks in the same order?
    """
    hosts = gathered(host)
    order = sorted(range(len(hosts)), key=lambda rank: hosts[rank])
    return dist.new_group(order, sort_ranks=False)


def _numbers_on_hosts(rank, n, case):
    """Numbers, and the host of each rank."""
    shape, hosts = case
    (tensor,) = numbers(rank, n, shape)
    return tensor, list(hosts[:n])


def _try_by_host(fn, tensor, hosts, events):
    """The tensor after `fn` with groups by host, and whether this rank used a cable.

    `hosts` has the host of each rank.
    """
    ranks = {}
    for rank, host in enumerate(hosts):
        ranks.setdefault(host, []).append(rank)
    # every rank makes all groups
    groups = {host: dist.new_group(members) for host, members in ranks.items()}
    leaders = dist.new_group([members[0] for members in ranks.values()])
    mine = hosts[dist.get_rank()]
    begun = len(events)
    fn(tensor, ranks[mine][0], groups[mine], leaders)
    words = "stays on its host"
    for event in events[begun:]:
        if any(hosts[rank] != mine for rank in _partners(event)):
            words = "sends to other hosts"
    return tensor, Seen(words, "Only the first rank of each host should send to other hosts.")


def _partners(event):
    """The ranks that take part in a call: the members of a collective, the peer of a message."""
    if hasattr(event, "members"):
        return event.members
    if hasattr(event, "peer"):
        return [event.peer]
    return []


@exercise("62", cases=LAYOUTS, given=_numbers_on_hosts, trial=_try_by_host)
def hierarchical_all_reduce(tensor, first, inside, leaders):
    """Replace the numbers of `tensor`, on every rank, by their sums over all ranks, host by host.

    `inside` is the group of the ranks on this host, `first` is the first of them, and `leaders` is
    the group of the first ranks of all hosts. Only leaders may exchange messages with other hosts.

    Title: 3.1 Hierarchical all-reduce
    Hint: Three collectives: one inside each host, one between the leaders, and another one inside
    each host.
    Hint: `dist.reduce(tensor, dst=first, group=inside)` brings a host's sum to its first rank.
    Hint: Only its members may use `leaders`: the ranks with `dist.get_rank() == first`.

    Stuck: Does every rank of a group make the same calls on it, and no other rank?
    """
    dist.reduce(tensor, dst=first, group=inside)
    if dist.get_rank() == first:
        dist.all_reduce(tensor, group=leaders)
    dist.broadcast(tensor, src=first, group=inside)


@question("62", 27)
def micro_batches_for_a_quarter(answer):
    """A micro-batch takes 20 ms to compute, and the all-reduce of its gradients over a slow cable
    takes 180 ms; they do not overlap. With `no_sync`, at least how many micro-batches must share
    one all-reduce, so that it takes no more than a quarter of the time?

    Title: 5.1 How many micro-batches?
    Hint: With k micro-batches, the entire step takes 20 k + 180 ms.
    Hint: What share of that is 180 ms?

    Not 36: That makes the all-reduce a quarter of the computing time, not of the total.
    Not 9: With 9 the all-reduce takes as long as the computing: half of the time.
    Not 26: With 26 it is still a little more than a quarter.
    Otherwise: Solve 180 / (20 k + 180) = 1/4 for k.

    Why: 27 micro-batches compute for 540 ms, and 180 ms is a quarter of 720 ms.
    """
