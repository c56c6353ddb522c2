"""The exercises of notebook 10 on addresses: interfaces, ports, and what an error says."""

import ipaddress

from distlab.checking import formula, question

CURES = {
    "A": ("set MASTER_ADDR to gpu01", "Rank 0 cannot reach its own store: where does it run, and where does it look?"),
    "B": ("open the ports between the hosts", "The store has worked, nobody is refused, and nobody hears anything."),
    "C": ("correct GLOO_SOCKET_IFNAME on gpu02", "Somebody has set an interface already; on which host is it missing?"),
    "D": ("set GLOO_SOCKET_IFNAME", "Whose address is 127.0.0.1, and why was it told to another host?"),
}
BRIDGES = {"lo": "127.0.0.1/8", "docker0": "172.17.0.1/16", "eno1": "10.1.20.7/16", "ib0": "10.1.200.7/24"}


@formula(
    "10",
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


@formula("10", (60553,), (14742,), (256,), (1,))
def port_in_ss(printed):
    """Return the real port, from the one that gloo's error shows.

    Hint: A port is two bytes, `printed // 256` and `printed % 256`, and gloo reads them in the wrong order.
    Hint: `printed.to_bytes(2, "big")`, and back by `int.from_bytes(..., "little")`.
    """
    return printed % 256 * 256 + printed // 256


@question("10")
def four_tickets(answer):
    """Give the cure of each of the four jobs, as a dict from its letter.

    Hint: Which of the three steps has worked: did both reach the store, and did both write an address?
    Hint: "Connection refused" comes from a host that was reached, "timed out" from none.

    Why: Every message names the step that failed: the store (A), a missing address (C), a wrong address (D), or the
    way between two right ones (B).
    """
    for letter, (cure, why) in CURES.items():
        if letter not in answer:
            return f"{letter} has no cure yet."
        if answer[letter] != cure:
            return f"{letter} is not cured by {answer[letter]!r}. {why}"
    return True
