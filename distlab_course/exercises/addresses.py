"""The exercises of lab 61: interfaces, groups that do not form, and who reaches whom."""

import ipaddress
import os
import socket

import psutil
import torch.distributed as dist

from distlab.checking import exercise, gathered, question, returned

# by rank, the address that the others should use, and the name of the fast interface
ADDRESSES = (
    (("10.1.200.7", "10.1.200.8", "10.1.200.9", "10.1.200.10"), ("ib0", "ib1", "ib0", "ib0")),
    (("10.1.200.7", "10.1.20.8", "10.1.200.9", "10.1.200.10"), ("ib0", "ib0", "ib0", "ib0")),
    (("10.1.200.7", "10.12.0.9", "10.1.200.9", "10.1.200.10"), ("ib0", "ib0", "ib0", "ib0")),
)
# as where a host's own name leads there; nobody listens at this one
WRONG_ADDRESS = "127.0.0.9"
# the ranks that tell the others a wrong address
MISTAKEN = ((), (1,), (0,))
CURES = {
    "A": (
        "set MASTER_ADDR to gpu01",
        "Rank 0 cannot reach its own store: where does it run, and where does it look?",
    ),
    "B": (
        "open the ports between the hosts",
        "The store has worked, no connection is refused, and none is made.",
    ),
    "C": (
        "correct GLOO_SOCKET_IFNAME on gpu02",
        "An interface has been set already; on which host does it not exist?",
    ),
    "D": ("set GLOO_SOCKET_IFNAME", "Whose address is 127.0.0.1, and why did another host get it?"),
}


def _host_on_networks(rank, n, case):
    """An address of the rank's host, and its interfaces."""
    given, fast = case
    interfaces = {
        "lo": "127.0.0.1/8",
        "docker0": "172.17.0.1/16",
        "eno1": f"10.1.20.{7 + rank}/16",
        fast[rank]: f"10.1.200.{7 + rank}/22",
    }
    return given[rank], interfaces


@exercise("61", worlds=(2, 3, 4), cases=ADDRESSES, given=_host_on_networks, trial=returned)
def interface_towards(address, interfaces):
    """Return the name of the interface of this rank's host whose network contains the addresses of
    all ranks, or "".

    `address` is the address of this rank's host that the others should use, and `interfaces` maps
    the name of each of its interfaces to an address with its prefix length. If several networks
    contain all ranks, take the one with the longest prefix.

    Title: 2.1 Which interface?
    Hint: `dist.all_gather_object(addresses, address)` fills the list `addresses`, which has a place
    for each rank.
    Hint: `ipaddress.ip_interface("10.77.0.1/24").network` is a network, and
    `ipaddress.ip_address(text) in network` is True or False.
    Hint: `network.prefixlen` is the prefix length, 24.
    """
    addresses = [ipaddress.ip_address(text) for text in gathered(address)]
    best = ""
    longest = -1  # prefix of a network with all addresses
    for name, text in interfaces.items():
        network = ipaddress.ip_interface(text).network
        contains_all = all(one in network for one in addresses)
        if contains_all and network.prefixlen > longest:
            best = name
            longest = network.prefixlen
    return best


@question("61")
def four_tickets(answer):
    """Say how to fix each of the four jobs, as a dict from its letter to the fix.

    Title: 3.1 Four tickets
    Hint: Which of the three steps worked: did both ranks reach the store, and did both write an
    address?
    Hint: "Connection refused" means that a host answered, and nothing listens on that port; "timed
    out" says only that it did not work in time, because the client of the store tries again even
    when it is refused.

    Why: Every message names the step that failed: the store (A), a missing address (C), a wrong
    address (D), or the way between two right ones (B).
    """
    for letter, (cure, why) in CURES.items():
        given = answer.get(letter)
        if given != cure:
            return f"{given!r} does not fix {letter}. {why}"
    return True


@question("61", "=eth1")
def only_eth1(answer):
    """On a host with the interfaces lo, eth0, eth1, eth10 and ib0, NCCL should use eth1 and no
    other. Which value of NCCL_SOCKET_IFNAME says so?

    Title: 4.1 Only eth1
    Hint: Without a sign in front, each word is a prefix.
    Hint: Which sign makes it a full name?

    Not "eth1": It is also a prefix of eth10.
    Not "==eth1": The first of the two signs is the shell's: it is not part of the value.
    Not "^eth1": That excludes eth1, and eth10 with it.
    Not "^lo,eth0,eth10,ib0": That is right on this host today, and wrong when somebody adds an
    interface.

    Why: `=` compares full names, so neither eth10 nor an interface that is added later is used.
    """


def _own_address():
    """The address of this rank's host that gloo uses; that of loopback where it is not known."""
    cards = psutil.net_if_addrs().get(os.environ.get("GLOO_SOCKET_IFNAME", ""), [])
    for card in cards:
        if card.family == socket.AF_INET:
            return card.address
    return "127.0.0.1"


def _addresses_of_rank(rank, n, mistaken):
    """Where the rank listens, and where the others look for it."""
    address = _own_address()
    if rank in mistaken:
        return address, WRONG_ADDRESS
    return address, address


@exercise(
    "61", worlds=(2, 3, 4), cases=MISTAKEN, given=_addresses_of_rank, trial=returned, seconds=20.0
)
def who_reaches_whom(listen, announce):
    """Return on every rank the same list of lists of bools: [i][j] says whether rank i can connect
    to rank j.

    Each rank listens at the address `listen` on a port that the system chooses, and tells the
    others to connect to the address `announce` and that port. The two addresses differ where a host
    is set up wrongly. Try every rank, this one too; an attempt fails if it is refused, or has not
    succeeded within 1 second.

    Title: 5.1 Does every rank reach every other?
    Hint: `socket.create_server((listen, 0))` listens on a port that the system chooses, and
    `server.getsockname()[1]` is that port.
    Hint: `socket.create_connection((address, port), timeout=1)` returns a socket, which you close,
    or raises an OSError.
    Hint: When may a rank stop listening? `all_gather_object` of the rows returns only when every
    rank has tried.

    Stuck: Does every rank make both exchanges, also a rank that nobody reaches?
    """
    with socket.create_server((listen, 0), backlog=dist.get_world_size()) as server:
        _, port = server.getsockname()
        places = gathered((announce, port))
        return gathered([_answers(place) for place in places])


def _answers(place):
    """Whether somebody accepts a connection at an address and port."""
    try:
        socket.create_connection(place, timeout=1).close()
    except OSError:
        return False
    return True
