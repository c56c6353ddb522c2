"""The exercises of lab 62: all-reduce over a slow cable, order of the ranks, and host by host."""

import torch
import torch.distributed as dist

from distlab.checking import Seen, exercise, formula, numbers, question

CABLES = [
    (k, num_bytes, 0.005, 8e-8) for k, num_bytes in ((2, 1000), (2, 10**6), (1, 10**6), (4, 10**6))
]
HOSTS = (*map(list, ("ABAB", "AABB", "BACABC", "CABABCAAB")), ["nodeB", "nodeA"])
LAYOUTS = ((8, "AABB"), (7, "ABAB"), ((10, torch.float64), "ABBB"), ((5, torch.int64), "ABCA"))
FOUR_ALGORITHMS = ("whole ring", "ring", "tree", "halving doubling")


@formula("62", *((name, *cable) for cable in CABLES for name in FOUR_ALGORITHMS))
def seconds_over_the_cable(name, k, num_bytes, alpha, beta):
    """Return the seconds of an all-reduce of `num_bytes` on two hosts of k ranks each, k a power of
    two.

    What happens inside a host takes no time. Over the cable a message of m bytes takes alpha + beta
    m. Messages in the same direction at the same time share it: together they take alpha, plus beta
    times the bytes of all. `name` is "whole ring", "ring", "tree" or "halving doubling". For k = 2,
    1 MB, 5 ms and 80 ns a byte the times are 0.255,
    0.15, 0.17 and 0.17 s.

    Title: 1.1 Over the cable
    Hint: A ring crosses the cable in each step, once in each direction. How many steps are there
    with n = 2 k ranks?
    Hint: A tree crosses the cable once on the way up, from rank k to rank 0, and once on the way
    down.
    Hint: In halving and doubling two steps cross the cable: the first and the last. In each of them
    every rank sends half of the tensor to a rank of the other host, so k messages share the cable.
    """
    n = 2 * k
    crossings = {"whole ring": n - 1, "ring": 2 * (n - 1)}.get(name, 2)
    num_bytes_each = {"ring": num_bytes / n, "halving doubling": k * num_bytes / 2}.get(
        name, num_bytes
    )
    return crossings * (alpha + beta * num_bytes_each)


def _try_ring_order(fn, hosts):
    """How many messages of each step of a ring leave a host.

    The ranks are in the order that `fn` returns.
    """
    order = fn(list(hosts))
    if not isinstance(order, (list, tuple)) or sorted(order) != list(range(len(hosts))):
        return Seen(
            "no order of the ranks",
            f"Each of the ranks 0 to {len(hosts) - 1} should be in the list once.",
        )
    places = [hosts[rank] for rank in order]
    number = sum(a != b for a, b in zip(places, places[1:] + places[:1], strict=True))
    return Seen(
        f"{number} leave a host", f"The ring visits the hosts in the order {' '.join(places)}."
    )


@formula("62", *((hosts,) for hosts in HOSTS), trial=_try_ring_order)
def ring_order(hosts):
    """Return a list of the ranks, in an order in which a ring leaves each host only once.
    `hosts[r]` is the host of rank r. For A, B, A, B it is 0, 2, 1, 3, or any other order that
    finishes one host before the next.

    Title: 2.1 A good order
    Hint: The ranks of one host must be neighbours.
    Hint: `sorted` takes a `key`, a function of a rank.
    """
    return sorted(range(len(hosts)), key=hosts.__getitem__)


def _numbers_on_hosts(rank, n, case):
    """Numbers, and the host of each rank."""
    return *numbers(rank, n, case[0]), list(case[1])[:n]


def _try_by_host(fn, tensor, hosts, events):
    """The tensor after `fn` with groups by host, and whether this rank used a cable.

    `hosts` has the host of each rank.
    """
    ranks = {}
    for rank, host in enumerate(hosts):
        ranks.setdefault(host, []).append(rank)
    groups = {host: dist.new_group(members) for host, members in ranks.items()}
    leaders = dist.new_group([members[0] for members in ranks.values()])
    rank = dist.get_rank()
    begun = len(events)
    mine = hosts[rank]
    fn(tensor, ranks[mine][0], groups[mine], leaders)
    # collectives have members, and messages a peer
    peers = []
    for event in events[begun:]:
        peers += [*getattr(event, "members", ()), getattr(event, "peer", rank)]
    crosses = any(hosts[peer] != mine for peer in peers)
    words = "talks to other hosts" if crosses else "stays on its host"
    return tensor, Seen(words, "Only the first rank of each host should talk to other hosts.")


@exercise("62", cases=LAYOUTS, given=_numbers_on_hosts, trial=_try_by_host)
def hierarchical_all_reduce(tensor, first, inside, leaders):
    """Replace the numbers of `tensor`, on every rank, by their sums over all ranks, host by host.

    `inside` is the group of the ranks on this host, `first` is the first of them, and `leaders` is
    the group of the first ranks of all hosts. Only leaders may talk to ranks of other hosts.

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
