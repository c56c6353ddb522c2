"""Lab 61: a script on each of two practice hosts tries to join one group, again and again, with
different settings.

Called in the notebook's kernel. `python attempts.py SCRIPT` is what runs on a host: it imports the
script once, and for each line of its standard input forks a process that calls the script's
`join(report)` in the environment that the line describes, and prints what came of it.
"""

import json
import os
import random
import re
import runpy
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from distlab_course.practice import PracticeHosts, loopback_interface

# a place in gloo's sources, a retry, a wrong address
NOISE = r"\[[^]]*gloo/[^]]*\] |\$\d|(?<=Connect timeout) .*"


class Attempts:
    """Two scripts that wait for settings. A call lets both try to join, and returns and keeps what
    they reported.

    Attributes:
        real: whether every mistake can be made on this machine.
        interface: the setting that is right on every practice host.
        outcomes: by mistake, what both ranks reported, with the seconds until then.
    """

    def __init__(self, hosts: PracticeHosts, script: str):
        self.hosts, self.outcomes = hosts, {}
        namespaces = hosts.kind == "network namespaces"
        self.real = namespaces and shutil.which("iptables") is not None
        self.interface = {"GLOO_SOCKET_IFNAME": "eth0" if namespaces else loopback_interface()}
        self._ports = iter(random.sample(range(20_000, 30_000), 20))
        self._scripts = [self._start(rank, name, script) for rank, name in enumerate(hosts)]

    def _start(self, rank: int, name: str, script: str) -> subprocess.Popen:
        """The script on a host whose own name leads to 127.0.0.1 there, as on many real machines."""
        command = self.hosts.command(name)
        if command:
            names = {one: self.hosts.address(one) for one in self.hosts} | {
                "localhost": "127.0.0.1",
                name: "127.0.0.1",
            }
            Path(f"hosts.{name}").write_text(
                "".join(f"{address} {one}\n" for one, address in names.items())
            )
            command += ["sh", "-c", 'mount --bind "$0" /etc/hosts && exec "$@"', f"hosts.{name}"]
        settings = {**os.environ, "RANK": str(rank), "HOST": self.hosts.address(name)}
        settings.pop("GLOO_SOCKET_IFNAME", None)
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        return subprocess.Popen(
            [*command, sys.executable, __file__, script], env=settings, text=True, **pipes
        )

    def __call__(
        self, mistake: str, *changes: dict[str, str], seconds: float = 1, recorded: Any = None
    ) -> list[dict]:
        """Let rank 0 and rank 1 try, each with its changes of the environment and a timeout; what
        they reported.

        Where a mistake cannot be made on this machine, `recorded` is what they reported on another
        one.
        """
        outcome = recorded
        if recorded is None or self.real:
            usual = {
                "MASTER_ADDR": self.hosts.address("nodeA"),
                "MASTER_PORT": str(next(self._ports)),
            }
            for script, change in zip(self._scripts, changes, strict=True):
                script.stdin.write(json.dumps({**usual, **change, "LIMIT": str(seconds)}) + "\n")
                script.stdin.flush()
            outcome = [
                json.loads(next(line for line in one.stdout if line.startswith("{")))
                for one in self._scripts
            ]
        for one in outcome:
            one["message"] = re.sub(NOISE, "", one["message"])
            for name in self.hosts:
                one["message"] = re.sub(
                    rf"{re.escape(self.hosts.address(name))}(, \d+)?", name, one["message"]
                )
        self.outcomes[mistake] = outcome
        return outcome


def serve(lines: Sequence[str], script: str) -> None:
    """Try once for each line; runs on a host."""
    join = runpy.run_path(script)["join"]
    for line in lines:
        if os.fork() == 0:
            os.environ.update(json.loads(line))
            began, report = time.monotonic(), {}
            try:
                report["message"] = join(report)
            except Exception as error:
                report["message"] = f"{type(error).__name__}: {error}"
            print(json.dumps({"seconds": time.monotonic() - began, **report}), flush=True)
            os._exit(0)
        os.wait()


if __name__ == "__main__":
    serve(sys.stdin, sys.argv[1])
