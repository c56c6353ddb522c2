"""Hosts that this machine makes itself, so that one laptop is enough to try several machines.

Called in the notebook's kernel. As root on Linux a host is a network namespace: it has a host name,
an address and a cable of its own, and shares files, users and processes with the notebook's
machine. The cables meet in one bridge. Elsewhere a host is no more than an address of the loopback
interface.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import psutil

from distlab.arguments import (
    BYTES_PER_SECOND,
    SECONDS,
    mapping,
    one_of,
    quantity,
    refuse,
    whole_number,
)
from distlab.errors import ClusterError
from distlab_course.piped import pipes_of

# where ip and tc are
PATH = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])
# a folder for each network, its number, with /etc/hosts of its hosts
NETWORKS = Path("/run/distlab")
NAMESPACES = Path("/run/netns")  # where `ip netns` has them
HOST_NAME = re.compile(r"[a-zA-Z0-9]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?")
AS_HOST = 'hostname "$0" && mount --bind "$1" /etc/hosts && shift && exec "$@"'
PROGRAMS = [sys.executable, str(Path(__file__).with_name("practice_programs.py"))]
BURST_SECONDS = 0.0025  # for so long a link that was idle may be quicker than its rate
SMALLEST_BURST = 4000  # bytes
EXAMPLE = 'Call practice_hosts({"nodeA": 2, "nodeB": 2}).'


def loopback_interface() -> str:
    """Name of the network interface that carries 127.0.0.1: "lo" on Linux, "lo0" on macOS.

    Runs on: anywhere.
    """
    return "lo0" if sys.platform == "darwin" else "lo"


def practice_hosts(hosts: Mapping[str, int]) -> PracticeHosts:
    """Make hosts on this machine.

    They are network namespaces where it may make them, which takes root on Linux, and loopback
    addresses elsewhere.

        with distlab_course.practice_hosts({"nodeA": 2, "nodeB": 2}) as hosts:
            subprocess.run([*hosts.command("nodeA"), "hostname"])

    They and all that runs on them are taken away by close(), at the interpreter's exit, and, where
    the process that made them was killed, by the next call of practice_hosts() on this machine.

    Runs on: the notebook's kernel.

    Args:
        hosts: number of ranks by the host's name.

    Raises:
        ArgumentError: no hosts, a name that is no host's, or a number below 1.
    """
    checked = mapping("hosts", hosts, "host names to numbers of ranks", EXAMPLE)
    for name, ranks in checked.items():
        if not HOST_NAME.fullmatch(name):
            refuse("name of a host", "letters, digits and hyphens", name, EXAMPLE)
        whole_number(f"hosts[{name!r}]", ranks, 1, advice=EXAMPLE)
    return PracticeHosts(hosts)


class PracticeHosts(dict[str, int], contextlib.AbstractContextManager):
    """Number of ranks by host, as `Cluster(hosts=...)` takes it; made by `practice_hosts`.

    Attributes:
        kind: "network namespaces" or "loopback addresses".
        here: the address of the notebook's machine on the network of the hosts.
    """

    def __init__(self, hosts: Mapping[str, int]):
        super().__init__(hosts)
        self._slow_links: dict[str, subprocess.Popen[bytes]] = {}
        self._folder: Path | None = None  # of the network, while there is one
        self.kind = "network namespaces"
        try:
            self._make_network()
            for name in self:
                self._make_namespace(name)
        except (ClusterError, OSError) as error:
            self.close()
            self.why = str(error).rstrip(".")
            self._use_loopback()

    def _use_loopback(self) -> None:
        """Let each host be a loopback address of its own; elsewhere than on Linux, there is one."""
        self.kind = "loopback addresses"
        self.here = "127.0.0.1"
        self._addresses = dict.fromkeys(self, "127.0.0.1")
        if sys.platform == "linux":
            for number, name in enumerate(self, 2):
                self._addresses[name] = f"127.0.0.{number}"

    def _make_network(self) -> None:
        """Take a number that no other network has, and make the bridge in which cables meet."""
        number = self._take_number()
        self._bridge = f"distlab{number}"
        self.here = f"10.77.{number}.254"
        self._addresses = {name: f"10.77.{number}.{host}" for host, name in enumerate(self, 1)}
        names = {"127.0.0.1": "localhost", self.here: socket.gethostname()}
        for name, address in self._addresses.items():
            names[address] = name
        lines = [f"{address} {name}\n" for address, name in names.items()]
        (NETWORKS / str(number) / "hosts").write_text("".join(lines))
        # without one of its own, a bridge has the address of a port, and another when ports change
        hardware = f"02:00:10:77:{number:02x}:fe"
        _call("ip", "link", "add", self._bridge, "address", hardware, "type", "bridge")
        _call("ip", "address", "add", f"{self.here}/24", "dev", self._bridge)
        _call("ip", "link", "set", self._bridge, "up")

    def _take_number(self) -> int:
        """Clear up networks whose processes are gone, and make a folder for a new one."""
        NETWORKS.mkdir(exist_ok=True)
        # one process at a time clears up and takes a number
        with open(NETWORKS / "lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            for folder in NETWORKS.glob("[0-9]*"):
                if not _is_used(folder):
                    _remove(folder)
            number = _free_number()
            self._folder = NETWORKS / str(number)
            self._folder.mkdir()
            self._owner_file = os.open(self._folder / "owner", os.O_CREAT | os.O_WRONLY)
            fcntl.flock(self._owner_file, fcntl.LOCK_EX)  # for as long as this process lives
            os.write(self._owner_file, str(os.getpid()).encode())
            atexit.register(self.close)
        return number

    def _make_namespace(self, name: str) -> None:
        """Make the namespace of a host, and a cable from it to the bridge."""
        namespace = self.namespace(name).name
        link = self._link(name)
        inside = ("ip", "-n", namespace)
        _call("ip", "netns", "add", namespace)
        _call("ip", "link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", namespace)
        _call("ip", "link", "set", link, "master", self._bridge, "up")
        _call(*inside, "address", "add", f"{self.address(name)}/24", "dev", "eth0")
        _call(*inside, "link", "set", "eth0", "up")
        _call(*inside, "link", "set", "lo", "up")
        _call(*self.command(name), "true")

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """End what runs on the hosts, and take the hosts away, unless that was done already."""
        atexit.unregister(self.close)
        if self._folder:
            _remove(self._folder)
            os.close(self._owner_file)
        self._folder = None
        for process in self._slow_links.values():
            process.communicate()

    def address(self, name: str) -> str:
        """The IP address of a host."""
        return self._addresses[one_of("name", name, self)]

    def namespace(self, name: str) -> Path:
        """The file that stands for the network namespace of a host."""
        return NAMESPACES / f"{self._bridge}-{name}"

    def _link(self, name: str) -> str:
        """The end of a host's cable that is in the bridge.

        It has 15 characters at most, as the name of every interface.
        """
        _, _, host = self.address(name).rpartition(".")
        return f"{self._bridge}h{host}"

    def command(self, name: str) -> list[str]:
        """What to put before the words of a command, so that it runs on a host.

        It is empty for loopback addresses.
        """
        self.address(name)
        if self.kind == "loopback addresses":
            return []
        command = ["nsenter", f"--net={self.namespace(name)}", "unshare", "--uts", "--mount"]
        # so that a namespace that is deleted outside disappears here
        command += ["--propagation", "slave"]
        command += ["sh", "-c", AS_HOST, name, f"{self._folder}/hosts"]
        return command

    def reach(self, name: str) -> list[str]:
        """As `command`, with stdin and stdout over the host's cable; a cut cable is silent.

        `Cluster(hosts=...)` calls it, as of any mapping that has `reach` and `address`.
        """
        enter = self.command(name)
        if not enter:
            return []
        return [*PROGRAMS, "cable", self.here, str(self.namespace(name)), *enter]

    def shape(
        self, name: str, bandwidth: float | str | None = None, latency: float | str | None = None
    ) -> None:
        """Make the link of a host slow, in each direction; `repair` undoes it.

        An earlier `shape` or `cut` counts no more.

        Args:
            bandwidth: bytes a second, or a text such as "100 Mbit/s"; the kernel's token bucket (tc
                tbf) keeps it.
            latency: seconds, or a text such as "5 ms", in one direction: a round trip takes twice
                that. Linux kernels are often without tc netem, so a program of our own carries the
                packets, at most about 1 Gbit a second.

        Raises:
            ArgumentError: no such host, or not such numbers or texts.
            ClusterError: the hosts are loopback addresses.
        """
        rate = None
        if bandwidth is not None:
            rate = quantity("bandwidth", bandwidth, BYTES_PER_SECOND, "100 Mbit/s")
        seconds = None
        if latency is not None:
            seconds = quantity("latency", latency, SECONDS, "5 ms", zero=True)
        self.repair(name)
        ends = (self._link(name), "eth0")
        if seconds is not None:
            ends = self._carry_slowly(name, seconds)
        if rate is not None:
            self._queue(name, ends, *_token_bucket(rate))

    def _queue(self, name: str, ends: tuple[str, str], *discipline: str) -> None:
        """Say how packets wait at the two ends of a cable: in the bridge, and in the host."""
        in_bridge, in_host = ends
        _call("tc", "qdisc", "replace", "dev", in_bridge, "root", *discipline)
        inside = ("tc", "-n", self.namespace(name).name)
        _call(*inside, "qdisc", "replace", "dev", in_host, "root", *discipline)

    def _carry_slowly(self, name: str, seconds: float) -> tuple[str, str]:
        """Put a slow link between bridge and host, and return the names of its ends.

        The host's own link keeps the address.
        """
        namespace = self.namespace(name)
        link = self._link(name)
        slow_link = f"{link}s"
        ends = (slow_link, "slow0")
        self._start_slow_link(name, ends, seconds)
        inside = ("ip", "-n", namespace.name)
        _, _, hardware, *_ = _call(*inside, "-brief", "link", "show", "eth0").split()
        _call(*inside, "link", "set", "slow0", "address", hardware, "up")
        prefix, _, _ = self.here.rpartition(".")
        network = f"{prefix}.0/24"
        _call(*inside, "route", "prepend", network, "dev", "slow0", "src", self.address(name))
        _call("ip", "link", "set", link, "nomaster")
        _call("ip", "link", "set", slow_link, "master", self._bridge, "up")
        return ends

    def _start_slow_link(self, name: str, ends: tuple[str, str], seconds: float) -> None:
        """Start the program that makes these two interfaces and carries packets between them."""
        process = subprocess.Popen(
            [*PROGRAMS, "slow_link", str(self.namespace(name)), *ends, str(seconds)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # no Ctrl-C reaches it
        )
        self._slow_links[name] = process
        _, stdout = pipes_of(process)
        if not stdout.readline():
            advice = f"Without it, call hosts.shape({name!r}, bandwidth=...) alone."
            raise ClusterError(
                f"The slow link of {name} did not start: it needs /dev/net/tun. {advice}"
            )

    def cut(self, name: str) -> None:
        """Pull the cable of a host: what is sent over it is lost, until `repair` puts it back.

        Raises as `shape` does.
        """
        self.repair(name)
        _call("ip", "link", "set", self._link(name), "down")

    def repair(self, name: str) -> None:
        """Put the cable of a host back, as quick as it was at first. Raises as `shape` does."""
        self.address(name)
        if self.kind == "loopback addresses":
            why = f"network namespaces, which have links, take root on Linux ({self.why})"
            instead = "distlab.Network describes slow links for Cluster(n, network=...)"
            raise ClusterError(
                f"Loopback addresses have no links to shape or cut, and {why}; {instead}."
            )
        if name in self._slow_links:
            self._slow_links.pop(name).communicate()
        _call("ip", "link", "set", self._link(name), "master", self._bridge, "up")
        self._queue(name, (self._link(name), "eth0"), "noqueue")


def _token_bucket(rate: float) -> list[str]:
    """The words for tc that limit a link to so many bytes a second."""
    bits = f"{round(8 * rate)}bit"
    burst = str(max(SMALLEST_BURST, round(rate * BURST_SECONDS)))
    return ["tbf", "rate", bits, "burst", burst, "latency", "400ms"]


def processes_in(namespace: Path) -> list[psutil.Process]:
    """The processes that run in a network namespace."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(OSError):
            if os.path.samefile(f"/proc/{process.pid}/ns/net", namespace):
                found.append(process)
    return found


def _free_number() -> int:
    """A number whose addresses no network, and no interface of this machine, has."""
    used = [f"10.77.{folder.name}." for folder in NETWORKS.glob("[0-9]*")]
    for addresses in psutil.net_if_addrs().values():
        used += [one.address for one in addresses]
    for number in range(256):
        prefix = f"10.77.{number}."
        if not any(address.startswith(prefix) for address in used):
            return number
    raise OSError("every network 10.77.x.0/24 is in use")


def _is_used(folder: Path) -> bool:
    """Whether the process that made a network's folder lives; it has locked a file there."""
    with contextlib.suppress(FileNotFoundError), open(folder / "owner") as owner_file:
        try:
            fcntl.flock(owner_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _remove(folder: Path) -> None:
    """End what runs on the hosts of one network; take their namespaces, links and folder away."""
    bridge = f"distlab{folder.name}"
    for namespace in NAMESPACES.glob(f"{bridge}-*"):
        _end_processes(namespace)
        _call("ip", "netns", "delete", namespace.name)
    for link in psutil.net_if_addrs():
        if re.fullmatch(rf"{bridge}(h\d+)?", link):
            with contextlib.suppress(ClusterError):  # it may go away with its namespace
                _call("ip", "link", "delete", link)
    shutil.rmtree(folder, ignore_errors=True)


def _end_processes(namespace: Path) -> None:
    """End what runs in a network namespace.

    A process that is started meanwhile is found in the next round, hence the second SIGKILL.
    """
    for number in (signal.SIGTERM, signal.SIGKILL, signal.SIGKILL):
        for process in processes_in(namespace):
            with contextlib.suppress(psutil.Error):
                process.send_signal(number)
        deadline = time.monotonic() + 1.0
        while processes_in(namespace) and time.monotonic() < deadline:
            time.sleep(0.02)


def _call(*words: str) -> str:
    """What a command writes; ClusterError where it fails."""
    environment = {**os.environ, "PATH": PATH}
    done = subprocess.run(words, capture_output=True, text=True, env=environment)
    if done.returncode:
        raise ClusterError(f"{' '.join(words)}: {done.stderr.strip()}")
    return done.stdout
