"""A command on a practice host whose stdin and stdout go over the host's cable, as ssh's do: what is cut is silent.

Runs as `python practice_cable.py HERE ENTER... -- COMMAND...` on the notebook's machine, started for a cluster by
hosts.py. `HERE` is its address on the hosts' network, `ENTER` what runs a command on the host. There the program runs
once more, connects to the first, and becomes the command.
"""

from __future__ import annotations

import os
import selectors
import socket
import subprocess
import sys


def main(here: str, words: list[str]) -> int:
    """Run the command on the host; its exit status."""
    split = words.index("--")
    with socket.create_server((here, 0)) as listener:
        address = [here, str(listener.getsockname()[1])]
        there = [*words[:split], sys.executable, __file__, "--there", *address, *words[split + 1 :]]
        process = subprocess.Popen(there, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        listener.settimeout(10.0)
        try:
            end, _ = listener.accept()
        except TimeoutError:
            process.kill()
            sys.exit("Connection timed out: the host does not answer")
    with end:
        _carry(end)
    return process.wait()


def _carry(end: socket.socket) -> None:
    """Carry stdin there, and what comes to stdout, until the host ends the connection."""
    with selectors.DefaultSelector() as ways:
        ways.register(0, selectors.EVENT_READ)
        ways.register(end, selectors.EVENT_READ)
        while True:
            for key, _ in ways.select():
                if key.fd != 0:
                    if not (received := end.recv(1 << 16)):
                        return
                    os.write(1, received)
                elif said := os.read(0, 1 << 16):
                    end.sendall(said)
                else:
                    ways.unregister(0)
                    end.shutdown(socket.SHUT_WR)


def there(here: str, port: str, *command: str) -> None:
    """On the host: connect stdin and stdout to the other end, and become the command."""
    end = socket.create_connection((here, int(port)), timeout=5.0)
    end.settimeout(None)
    os.dup2(end.fileno(), 0)
    os.dup2(end.fileno(), 1)
    os.execvp(command[0], command)


if __name__ == "__main__":
    if sys.argv[1] == "--there":
        there(*sys.argv[2:])
    sys.exit(main(sys.argv[1], sys.argv[2:]))
