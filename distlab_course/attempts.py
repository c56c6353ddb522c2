"""Lab 61: scripts on two practice hosts try to join one group, with different settings each time.

`Attempts` runs in the notebook's kernel. `python attempts.py SCRIPT` is what runs on a host: it
imports the script once. For each line of its standard input it forks a process, which calls the
script's `join(report)` in the environment that the line describes, and prints what came of it.
"""

from __future__ import annotations

import json
import os
import random
import re
import runpy
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from distlab_course.piped import pipes_of
from distlab_course.practice import PracticeHosts, loopback_interface

# what differs between two messages about the same mistake
NOISE = (
    r"\[[^]]*gloo/[^]]*\] "  # a place in gloo's sources
    r"|\$\d"  # the number of a retry
    r"|(?<=Connect timeout) .*"  # a wrong address
)
PORTS = range(20_000, 30_000)
MOST_ATTEMPTS = 20  # each has a port of its own


class Attempts:
    """Two scripts that wait for settings. A call lets both try to join, and keeps what they report.

    Attributes:
        real: whether every mistake can be made on this machine.
        interface: the setting that is right on every practice host.
        outcomes: what both ranks reported, with the seconds until then, by the mistake's name.
    """

    def __init__(self, hosts: PracticeHosts, script: str):
        self.hosts = hosts
        self.outcomes: dict[str, list[dict[str, Any]]] = {}
        self.real = False
        interface = loopback_interface()
        if hosts.kind == "network namespaces":
            self.real = shutil.which("iptables") is not None
            interface = "eth0"
        self.interface = {"GLOO_SOCKET_IFNAME": interface}
        self._ports = iter(random.sample(PORTS, MOST_ATTEMPTS))
        self._scripts = [self._start(rank, name, script) for rank, name in enumerate(hosts)]

    def _start(self, rank: int, name: str, script: str) -> Script:
        """Start the script on a host."""
        command = self.hosts.command(name)
        if command:
            file = self._write_hosts_file(name)
            command += ["sh", "-c", 'mount --bind "$0" /etc/hosts && exec "$@"', file]
        command += [sys.executable, __file__, script]
        environment = {**os.environ, "RANK": str(rank), "HOST": self.hosts.address(name)}
        environment.pop("GLOO_SOCKET_IFNAME", None)
        return Script.start(command, environment)

    def _write_hosts_file(self, name: str) -> str:
        """Write /etc/hosts for a host, and return the file's name.

        The host's own name means 127.0.0.1 there, as on many machines.
        """
        addresses = {other: self.hosts.address(other) for other in self.hosts}
        addresses["localhost"] = "127.0.0.1"
        addresses[name] = "127.0.0.1"
        lines = [f"{address} {host}\n" for host, address in addresses.items()]
        path = Path(f"hosts.{name}")
        path.write_text("".join(lines))
        return str(path)

    def __call__(
        self,
        mistake: str,
        *changes: dict[str, str],
        seconds: float = 1,
        recorded: list[dict[str, Any]] | None = None,
    ) -> list[dict[str, Any]]:
        """Let both ranks try, and return what they reported.

        Args:
            mistake: its name in `outcomes`.
            changes: for each rank, what is different in its environment.
            seconds: the timeout of both.
            recorded: what they reported on another machine, where the mistake cannot be made on
                this one.
        """
        outcome = recorded
        if outcome is None or self.real:
            outcome = self._try(changes, seconds)
        for report in outcome:
            report["message"] = self._without_places(report["message"])
        self.outcomes[mistake] = outcome
        return outcome

    def _try(self, changes: Sequence[dict[str, str]], seconds: float) -> list[dict[str, Any]]:
        """Send each script its settings, and read both reports."""
        usual = {
            "MASTER_ADDR": self.hosts.address("nodeA"),
            "MASTER_PORT": str(next(self._ports)),
        }
        for script, change in zip(self._scripts, changes, strict=True):
            settings = {**usual, **change, "LIMIT": str(seconds)}
            script.send(settings)
        return [script.read_report() for script in self._scripts]

    def _without_places(self, message: str) -> str:
        """A message with hosts' names for their addresses, and without places in gloo's sources."""
        message = re.sub(NOISE, "", message)
        for name in self.hosts:
            address = re.escape(self.hosts.address(name))
            message = re.sub(rf"{address}(, \d+)?", name, message)
        return message


class Script:
    """A script that runs on a host and waits for settings, as a process of the kernel's."""

    def __init__(self, process: subprocess.Popen[str]):
        self._process = process  # kept, so that it is not collected while its script is used
        self._stdin, self._stdout = pipes_of(process)

    @classmethod
    def start(cls, command: list[str], environment: dict[str, str]) -> Script:
        """Start a command that runs `attempts.py SCRIPT` on a host."""
        process = subprocess.Popen(
            command,
            env=environment,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        return cls(process)

    def send(self, settings: dict[str, str]) -> None:
        """Let the script try with these changes of its environment."""
        self._stdin.write(json.dumps(settings) + "\n")
        self._stdin.flush()

    def read_report(self) -> dict[str, Any]:
        """The script's next report, which is a line of JSON among its other output."""
        reports = (line for line in self._stdout if line.startswith("{"))
        return json.loads(next(reports))


def serve(lines: Iterable[str], script: str) -> None:
    """Try once for each line, in a process of its own; runs on a host."""
    join = runpy.run_path(script)["join"]
    for line in lines:
        if os.fork() == 0:
            os.environ.update(json.loads(line))
            print(json.dumps(tried(join)), flush=True)
            os._exit(0)
        os.wait()


def tried(join: Callable[[dict[str, Any]], str]) -> dict[str, Any]:
    """The report of one attempt to join: what the script noted, a message, and the seconds."""
    noted: dict[str, Any] = {}
    began = time.monotonic()
    try:
        noted["message"] = join(noted)
    except Exception as error:
        noted["message"] = f"{type(error).__name__}: {error}"
    return {"seconds": time.monotonic() - began, **noted}


if __name__ == "__main__":
    serve(sys.stdin, sys.argv[1])
