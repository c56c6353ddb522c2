"""The exercises of notebook 10: hosts and their clocks, addresses and what an error says, and slow links."""

import ipaddress
import time
from functools import partial

import torch
import torch.distributed as dist

from distlab.checking import Exercise, Question, Seen, formula, numbers

exercise, question, formula = partial(Exercise, "10"), partial(Question, "10"), partial(formula, "10")

SINCE_1970 = 1.7e9  # seconds: float32 is too coarse for such times


@formula(({"nodeA": 2, "nodeB": 2}, 2), ({"nodeA": 4, "nodeB": 1, "nodeC": 3}, 6), ({"nodeA": 8}, 7))
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
    asked, seen, answered = found
    if asked > answered:
        return Seen("answered before asked", "The order is (asked, seen, answered).")
    if seen == torch.tensor(seen, dtype=torch.float32).item():
        return Seen("seen is coarse", "`seen` is a multiple of 128 s, as any float32 of that size. Which dtype?")
    if not asked <= seen - ahead <= answered:
        when = "before it was asked" if seen - ahead < asked else "after its answer had arrived"
        return Seen("seen outside", f"`seen` is of a time {when}: at which line does rank 1 look at its clock?")
    return Seen("seen in between")


@exercise(worlds=(2,), cases=(100.0, -3600.0), given=lambda rank, size, case: (case,), trial=_exchanged)
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


@formula(({"nodeA": 2, "nodeB": 2}, "nodeB"), ({"nodeA": 2, "nodeB": 3, "nodeC": 2}, "nodeB"), ({"nodeA": 1}, "nodeA"))
def ranks_left(hosts, lost):
    """Return {old rank: new rank} of the ranks that are left when host `lost` has vanished, numbered anew from 0.

    Their order stays. `hosts` maps the name of each host to its number of ranks, which are numbered host by host.

    Hint: Which old ranks are on each host?
    """
    names = [name for name, ranks in hosts.items() for _ in range(ranks)]
    return {old: new for new, old in enumerate(rank for rank, name in enumerate(names) if name != lost)}


@question(512)
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


CURES = {
    "A": ("set MASTER_ADDR to gpu01", "Rank 0 cannot reach its own store: where does it run, and where does it look?"),
    "B": ("open the ports between the hosts", "The store has worked, nobody is refused, and nobody hears anything."),
    "C": ("correct GLOO_SOCKET_IFNAME on gpu02", "Somebody has set an interface already; on which host is it missing?"),
    "D": ("set GLOO_SOCKET_IFNAME", "Whose address is 127.0.0.1, and why was it told to another host?"),
}
BRIDGES = {"lo": "127.0.0.1/8", "docker0": "172.17.0.1/16", "eno1": "10.1.20.7/16", "ib0": "10.1.200.7/24"}


@formula(
    ("10.77.0.2", {"lo": "127.0.0.1/8", "eth0": "10.77.0.1/24"}),
    ("10.1.21.9", BRIDGES),
    ("10.1.200.9", BRIDGES),
    ("10.12.0.9", {"lo": "127.0.0.1/8", "eth0": "10.1.0.7/16"}),
    ("192.168.130.5", {"lo": "127.0.0.1/8", "eth1": "192.168.129.4/22"}),
)
def interface_towards(peer, interfaces):
    """Return the name of the interface whose network contains the address `peer`, or "".

    `interfaces` maps a name to an address with the length of its network. Among several, the longest prefix counts.

    Hint: `ipaddress.ip_interface("10.77.0.1/24").network` is a network, and `address in network` is True or False.
    Hint: `ipaddress.ip_address(peer)` makes an address of a text, and `network.prefixlen` is the length, 24.
    """
    networks = {name: ipaddress.ip_interface(text).network for name, text in interfaces.items()}
    found = [name for name, network in networks.items() if ipaddress.ip_address(peer) in network]
    return max(found, key=lambda name: networks[name].prefixlen, default="")


@formula((60553,), (14742,), (256,), (1,))
def port_in_ss(printed):
    """Return the real port, from the one that gloo's error shows.

    Hint: A port is two bytes, `printed // 256` and `printed % 256`, and gloo reads them in the wrong order.
    Hint: `printed.to_bytes(2, "big")`, and back by `int.from_bytes(..., "little")`.
    """
    return printed % 256 * 256 + printed // 256


@question()
def four_tickets(answer):
    """Give the cure of each of the four jobs, as a dict from its letter.

    Hint: Which of the three steps has worked: did both reach the store, and did both write an address?
    Hint: "Connection refused" comes from a host that was reached, "timed out" from none.

    Why: Every message names the step that failed: the store (A), a missing address (C), a wrong address (D), or the
    way between two right ones (B).
    """
    for letter, (cure, why) in CURES.items():
        if answer.get(letter) != cure:
            return f"{letter} is not cured by {answer.get(letter)!r}. {why}"
    return True


def _crossings(fn, hosts):
    """How many messages of each step of a ring leave a host, if the ranks stand in the order that `fn` returns."""
    order = fn(list(hosts))
    if not isinstance(order, (list, tuple)) or sorted(order) != list(range(len(hosts))):
        return Seen("no order of the ranks", f"It should have each of the ranks 0 to {len(hosts) - 1} once.")
    places = [hosts[rank] for rank in order]
    number = sum(a != b for a, b in zip(places, places[1:] + places[:1], strict=True))
    return Seen(f"{number} leave a host", f"The ring passes the hosts in the order {' '.join(places)}.")


def _by_host(fn, tensor, hosts, events):
    """The tensor after `fn` with groups made of `hosts`, the host of each rank, and whether this rank used a cable."""
    ranks = {host: [rank for rank, other in enumerate(hosts) if other == host] for host in dict.fromkeys(hosts)}
    groups = {host: dist.new_group(members) for host, members in ranks.items()}
    leaders = dist.new_group([members[0] for members in ranks.values()])
    rank, begun = dist.get_rank(), len(events)
    mine = hosts[rank]
    fn(tensor, ranks[mine][0], groups[mine], leaders)
    # collectives have members, and messages a peer
    peers = [one for event in events[begun:] for one in (*getattr(event, "members", ()), getattr(event, "peer", rank))]
    crosses = any(hosts[peer] != mine for peer in peers)
    words = "talks to other hosts" if crosses else "stays on its host"
    return tensor, Seen(words, "Only the first rank of each host should talk to other hosts.")


@formula(
    *(
        (name, k, num_bytes, 0.005, 8e-8)
        for k, num_bytes in ((2, 1000), (2, 10**6), (1, 10**6), (4, 10**6))
        for name in ("whole ring", "ring", "tree", "halving doubling")
    ),
)
def seconds_over_the_cable(name, k, num_bytes, alpha, beta):
    """Return the seconds of an all-reduce of `num_bytes` on two hosts of k ranks each, k a power of two.

    What happens inside of a host takes no time. A message of m bytes takes alpha + beta m over the cable, and those
    that go the same way at the same time share it: they take alpha, and beta for the bytes of all of them. The name is
    "whole ring", "ring", "tree" or "halving doubling". For k = 2, 1 MB, 5 ms and 80 ns a byte they take 0.255, 0.15,
    0.17 and 0.17.

    Hint: A ring crosses the cable in each step, once in each direction. How many steps are there with n = 2 k ranks?
    Hint: A tree crosses the cable once on the way up, from rank k to rank 0, and once on the way down.
    Hint: Of halving and doubling, two steps cross the cable: the first and the last. In each of them every rank sends
    half of the tensor to a rank of the other host, so k messages share the cable.
    """
    n = 2 * k
    crossings, num_bytes_each = {
        "whole ring": (n - 1, num_bytes),
        "ring": (2 * (n - 1), num_bytes / n),
        "tree": (2, num_bytes),
        "halving doubling": (2, k * num_bytes / 2),
    }[name]
    return crossings * (alpha + beta * num_bytes_each)


@formula(
    (list("ABAB"),),
    (list("AABB"),),
    (list("BACABC"),),
    (list("CABABCAAB"),),
    (["nodeB", "nodeA"],),
    trial=_crossings,
)
def ring_order(hosts):
    """Return a list of the ranks in an order in which a ring leaves each host only once. `hosts[r]` names the host of
    rank r. For A, B, A, B it is 0, 2, 1, 3, or any other that passes one host after the other.

    Hint: The ranks of one host have to stand next to each other.
    Hint: `sorted` takes a `key`, a function of a rank.
    """
    return sorted(range(len(hosts)), key=hosts.__getitem__)


@exercise(
    cases=((8, "AABB"), (7, "ABAB"), ((10, torch.float64), "ABBB"), ((5, torch.int64), "ABCA")),
    given=lambda rank, n, case: (*numbers(rank, n, case[0]), list(case[1])[:n]),
    trial=_by_host,
)
def hierarchical_all_reduce(tensor, first, inside, leaders):
    """Replace the numbers of `tensor`, on every rank, by their sums over all ranks, host by host.

    `inside` is the group of the ranks on this host, `first` the first of them, and `leaders` the group of the first
    ranks of all hosts. Only these may talk to ranks of other hosts.

    Hint: Three collectives: one inside of each host, one between the leaders, and one inside of each host again.
    Hint: `dist.reduce(tensor, dst=first, group=inside)` brings the sum of a host to its first rank.
    Hint: `leaders` may be used by its members only: by the ranks with `dist.get_rank() == first`.

    Stuck: Does every rank of a group make the same calls on it, and no other rank?
    """
    dist.reduce(tensor, dst=first, group=inside)
    if dist.get_rank() == first:
        dist.all_reduce(tensor, group=leaders)
    dist.broadcast(tensor, src=first, group=inside)


@question(27)
def micro_batches_for_a_quarter(answer):
    """A micro-batch takes 20 ms to compute, and the all-reduce of its gradients over a slow cable 180 ms; they do not
    overlap. With `no_sync`, how many micro-batches must there be at least for each all-reduce, so that it takes no more
    than a quarter of the time?

    Hint: With k micro-batches the whole takes 20 k + 180 ms.
    Hint: Which share of that is 180 ms?

    Not 36: That makes the all-reduce a quarter of the computing, and not of the whole time.
    Not 9: With 9 the all-reduce takes as long as the computing: half of the time.
    Not 26: With 26 it is still a little more than a quarter.
    Otherwise: Solve 180 / (20 k + 180) = 1/4 for k.

    Why: 27 micro-batches compute for 540 ms, and 180 of 720 ms are a quarter.
    """
