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
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from distlab_course.piped import pipes_of
from distlab_course.practice import PracticeHosts, loopback_interface

# a place in gloo's sources, a retry, a wrong address
NOISE = r"\[[^]]*gloo/[^]]*\] |\$\d|(?<=Connect timeout) .*"


class Attempts:
    """Two scripts that wait for settings. A call lets both try to join, and keeps what they report.

    Attributes:
        real: whether every mistake can be made on this machine.
        interface: the setting that is right on every practice host.
        outcomes: by mistake, what both ranks reported, with the seconds until then.
    """

    def __init__(self, hosts: PracticeHosts, script: str):
        self.hosts = hosts
        self.outcomes: dict[str, list[dict[str, Any]]] = {}
        namespaces = hosts.kind == "network namespaces"
        self.real = namespaces and shutil.which("iptables") is not None
        self.interface = {"GLOO_SOCKET_IFNAME": "eth0" if namespaces else loopback_interface()}
        self._ports = iter(random.sample(range(20_000, 30_000), 20))
        self._scripts = [self._start(rank, name, script) for rank, name in enumerate(hosts)]

    def _start(self, rank: int, name: str, script: str) -> Script:
        """Start the script on a host, whose own name means 127.0.0.1 there, as on many machines."""
        command = self.hosts.command(name)
        if command:
            addresses = {other: self.hosts.address(other) for other in self.hosts}
            addresses |= {"localhost": "127.0.0.1", name: "127.0.0.1"}
            lines = [f"{address} {host}\n" for host, address in addresses.items()]
            Path(f"hosts.{name}").write_text("".join(lines))
            command += ["sh", "-c", 'mount --bind "$0" /etc/hosts && exec "$@"', f"hosts.{name}"]
        environment = {**os.environ, "RANK": str(rank), "HOST": self.hosts.address(name)}
        environment.pop("GLOO_SOCKET_IFNAME", None)
        return Script.start([*command, sys.executable, __file__, script], environment)

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
            changes: by rank, of its environment.
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
            script.send({**usual, **change, "LIMIT": str(seconds)})
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
        self._process = process  # which is not collected as long as its script is used
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
        return json.loads(next(line for line in self._stdout if line.startswith("{")))


def serve(lines: Iterable[str], script: str) -> None:
    """Try once for each line, in a process of its own; runs on a host."""
    join = runpy.run_path(script)["join"]
    for line in lines:
        if os.fork() == 0:
            os.environ.update(json.loads(line))
            report: dict[str, Any] = {}
            began = time.monotonic()
            try:
                report["message"] = join(report)
            except Exception as error:
                report["message"] = f"{type(error).__name__}: {error}"
            print(json.dumps({"seconds": time.monotonic() - began, **report}), flush=True)
            os._exit(0)
        os.wait()


if __name__ == "__main__":
    serve(sys.stdin, sys.argv[1])
