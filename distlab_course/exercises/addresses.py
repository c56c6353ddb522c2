"""The exercises of lab 61: interfaces, ports, and what an error says about a group that does not form."""

import ipaddress

from distlab.checking import formula, question

BRIDGES = {"lo": "127.0.0.1/8", "docker0": "172.17.0.1/16", "eno1": "10.1.20.7/16", "ib0": "10.1.200.7/24"}
CARDS = ["lo", "docker0", "eth0", "eth1", "eth10", "ib0"]
SETTINGS = ("eth", "=eth1", "eth1", "ib,eth0", "^docker,lo", "=ib0,eth1", "^=eth1,lo", "wlan")
CURES = {
    "A": ("set MASTER_ADDR to gpu01", "Rank 0 cannot reach its own store: where does it run, and where does it look?"),
    "B": ("open the ports between the hosts", "The store has worked, no connection is refused, and none is made."),
    "C": ("correct GLOO_SOCKET_IFNAME on gpu02", "An interface has been set already; on which host does it not exist?"),
    "D": ("set GLOO_SOCKET_IFNAME", "Whose address is 127.0.0.1, and why did another host get it?"),
}


@formula(
    "61",
    ("10.77.0.2", {"lo": "127.0.0.1/8", "eth0": "10.77.0.1/24"}),
    ("10.1.21.9", BRIDGES),
    ("10.1.200.9", BRIDGES),
    ("10.12.0.9", {"lo": "127.0.0.1/8", "eth0": "10.1.0.7/16"}),
    ("192.168.130.5", {"lo": "127.0.0.1/8", "eth1": "192.168.129.4/22"}),
)
def interface_towards(peer, interfaces):
    """Return the name of the interface whose network contains the address `peer`, or "".

    `interfaces` maps each name to an address with its prefix length. If several networks contain `peer`, take the one
    with the longest prefix.

    Hint: `ipaddress.ip_interface("10.77.0.1/24").network` is a network, and `address in network` is True or False.
    Hint: `ipaddress.ip_address(peer)` turns text into an address, and `network.prefixlen` is the prefix length, 24.
    """
    networks = {name: ipaddress.ip_interface(text).network for name, text in interfaces.items()}
    found = [name for name, network in networks.items() if ipaddress.ip_address(peer) in network]
    return max(found, key=lambda name: networks[name].prefixlen, default="")


@formula("61", (60553,), (14742,), (256,), (1,))
def port_in_ss(printed):
    """Return the real port, given the port in gloo's error.

    Hint: A port is two bytes, `printed // 256` and `printed % 256`, and gloo prints them in the wrong order.
    Hint: `printed.to_bytes(2, "big")`, and back with `int.from_bytes(..., "little")`.
    """
    return printed % 256 * 256 + printed // 256


@question("61")
def four_tickets(answer):
    """Say how to fix each of the four jobs, as a dict from its letter to the fix.

    Hint: Which of the three steps worked: did both ranks reach the store, and did both write an address?
    Hint: "Connection refused" means that a host answered; "timed out" means that no answer came at all.

    Why: Every message names the step that failed: the store (A), a missing address (C), a wrong address (D), or the
    way between two right ones (B).
    """
    for letter, (cure, why) in CURES.items():
        if answer.get(letter) != cure:
            return f"{answer.get(letter)!r} does not fix {letter}. {why}"
    return True


@formula("61", *((setting, CARDS) for setting in SETTINGS))
def nccl_interfaces(setting, names):
    """Return the list of those of the `names` that NCCL may use if NCCL_SOCKET_IFNAME has the value `setting`.

    The value is a list of prefixes, separated by commas: an interface may be used if its name begins with one of them.
    `^` in front inverts that: it may be used if its name begins with none of them. `=` in front, after `^` if there is
    one, compares full names instead of beginnings.

    Hint: First take `^` and then `=` from the front, and remember which of them were there; then `split(",")`.
    Hint: Without `=` use `name.startswith(prefix)`, with it `name == prefix`; `listed != excluded` inverts an answer.
    """
    rest = setting.removeprefix("^")
    words = rest.removeprefix("=").split(",")

    def listed(name):
        return name in words if rest.startswith("=") else any(name.startswith(word) for word in words)

    return [name for name in names if listed(name) != setting.startswith("^")]
