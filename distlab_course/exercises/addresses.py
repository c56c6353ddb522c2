"""The exercises of lab 61: interfaces, and what an error says about a group that does not form."""

import ipaddress

from distlab.checking import formula, question

BRIDGES = {
    "lo": "127.0.0.1/8",
    "docker0": "172.17.0.1/16",
    "eno1": "10.1.20.7/16",
    "ib0": "10.1.200.7/22",
}
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


@formula(
    "61", ("10.1.21.9", BRIDGES), ("10.1.201.9", BRIDGES), ("10.12.0.9", {"eth0": "10.1.0.7/16"})
)
def interface_towards(peer, interfaces):
    """Return the name of the interface whose network contains the address `peer`, or "".

    `interfaces` maps each name to an address with its prefix length. If several networks contain
    `peer`, take the one with the longest prefix.

    Title: 2.1 Which interface?
    Hint: `ipaddress.ip_interface("10.77.0.1/24").network` is a network, and `address in network` is
    True or False.
    Hint: `ipaddress.ip_address(peer)` turns text into an address, and `network.prefixlen` is the
    prefix length, 24.
    """
    address = ipaddress.ip_address(peer)
    best = ""
    longest = -1  # prefix of a network with the address
    for name, text in interfaces.items():
        network = ipaddress.ip_interface(text).network
        if address in network and network.prefixlen > longest:
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
