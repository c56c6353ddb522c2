"""Practice hosts in network namespaces: names, addresses, slow and cut links, and ends."""

import os
import signal
import socket
import subprocess
import sys

import psutil
import pytest

from distlab_course import practice_hosts
from tests.network.conftest import networks_left
from tests.processes import python_that_goes_on, until, wait_until_gone

# sends back what comes, until nothing comes
ECHO = """
import socketserver
class Echo(socketserver.BaseRequestHandler):
    def handle(self):
        while data := self.request.recv(1 << 16):
            self.request.sendall(data)
with socketserver.ThreadingTCPServer(("", 0), Echo) as server:
    print(server.server_address[1], flush=True)
    server.serve_forever()
"""
# the seconds of a short round trip, and of one of so many bytes; then one for each line that comes
PING = """
import socket, sys, threading, time
name, port, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
peer = socket.create_connection((name, port), timeout=20)
peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
def seconds(size):
    began, left = time.perf_counter(), size
    threading.Thread(target=peer.sendall, args=(bytes(size),)).start()
    while left:
        left -= len(peer.recv(1 << 16))
    return time.perf_counter() - began
seconds(1)
print(min(seconds(1) for _ in range(10)), seconds(size), flush=True)
for _ in sys.stdin:
    print(seconds(1), flush=True)
"""


def start(hosts, name, *arguments):
    """A Python of its own on a host, with pipes."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    return subprocess.Popen(
        [*hosts.command(name), sys.executable, "-uc", *map(str, arguments)], **pipes
    )


def output(hosts, name, *words):
    return subprocess.run(
        [*hosts.command(name), *words], capture_output=True, text=True, check=True
    ).stdout


@pytest.fixture
def port(hosts):
    """Where a program on nodeB sends back what it gets; it ends with its host."""
    echo = start(hosts, "nodeB", ECHO)
    yield int(echo.stdout.readline())
    hosts.close()
    echo.communicate()


def ping(hosts, port, size=1):
    """Seconds of a round trip from nodeA to nodeB of one byte, and of `size` bytes."""
    done = start(hosts, "nodeA", PING, "nodeB", port, size).communicate("")[0]
    return [float(word) for word in done.split()]


def test_each_host_has_its_name_and_knows_the_others(hosts):
    """Each host finds the others by their names; files are shared."""
    for name in hosts:
        assert output(hosts, name, "hostname") == f"{name}\n"
        for other, address in [
            *((n, hosts.address(n)) for n in hosts),
            (socket.gethostname(), hosts.here),
        ]:
            assert output(hosts, name, "getent", "ahostsv4", other).split()[0] == address
        assert output(hosts, name, "pwd") == f"{os.getcwd()}\n"
        assert output(hosts, name, "ls", "/sys/fs/cgroup").split() == sorted(
            os.listdir("/sys/fs/cgroup")
        )
    assert socket.gethostname() not in hosts


def test_a_slow_link(hosts, port):
    """50 ms each way are 100 ms of a round trip; 2 MB at 80 Mbit/s take 0.2 s more.

    Mended it is quick again.
    """
    client = start(hosts, "nodeA", PING, "nodeB", port, 1)
    assert float(client.stdout.readline().split()[0]) < 5
    hosts.shape("nodeB", "80 Mbit/s", "50 ms")
    client.stdin.write("\n")
    client.stdin.flush()
    assert 0.1 <= float(client.stdout.readline()) < 5
    client.communicate()
    short, long = ping(hosts, port, 2_000_000)
    assert 0.1 <= short < 5
    assert long > 0.29
    hosts.repair("nodeB")
    assert ping(hosts, port)[0] < 0.1


@pytest.mark.parametrize("latency", [None, 0.001])
def test_a_cable_is_pulled_and_put_back(hosts, port, latency):
    """What was under way arrives once the cable is back; meanwhile nobody reaches the host."""
    if latency is not None:
        hosts.shape("nodeB", latency=latency)
    client = start(hosts, "nodeA", PING, "nodeB", port, 1)
    client.stdout.readline()
    hosts.cut("nodeB")
    client.stdin.write("\n")
    client.stdin.flush()
    with pytest.raises(OSError, match=r"timed out|No route"):
        socket.create_connection((hosts.address("nodeB"), port), timeout=0.5)
    hosts.repair("nodeB")
    assert float(client.stdout.readline()) > 0.5
    client.communicate()


PROGRAM = """
import os, subprocess, sys
from distlab_course import practice_hosts
hosts = practice_hosts({"nodeA": 1, "nodeB": 1})
hosts.shape("nodeB", latency=0.01)
sleeper = subprocess.Popen([*hosts.command("nodeA"), "sleep", "100"])
print(os.getpid(), sleeper.pid, hosts._slow_links["nodeB"].pid, flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("killed", [False, True])
def test_nothing_is_left_of_a_process_that_ended(hosts, killed):
    """At its exit, and, where it was killed, at the next call of practice_hosts() by anybody."""
    program = python_that_goes_on(PROGRAM)
    owner, *pids = program.stdout.readline().split()
    until(lambda: psutil.Process(int(pids[0])).name() == "sleep")
    assert networks_left(int(owner))
    if killed:
        program.send_signal(signal.SIGKILL)
    program.stdin.close()
    program.wait()
    program.stdout.close()
    practice_hosts({"nodeA": 1}).close()
    assert networks_left(int(owner)) == []
    assert wait_until_gone(lambda: [pid for pid in pids if psutil.pid_exists(int(pid))]) == []
