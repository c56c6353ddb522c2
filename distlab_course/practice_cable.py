"""A command on a practice host whose stdin and stdout go over the host's cable, as ssh's do: what is cut is silent.

Runs as `python practice_cable.py HERE ENTER... -- COMMAND...` on the notebook's machine, for a cluster: it is the
command that `PracticeHosts.reach` gives. `HERE` is the machine's address on the hosts' network, `ENTER` runs a command
on the host. There the program runs once more, connects to the first, and becomes the command.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time

CONNECT_SECONDS = 10.0  # as distlab's for ssh


def main(here: str, words: list[str]) -> int:
    """Run the command on the host; its exit status."""
    split = words.index("--")
    with socket.create_server((here, 0)) as listener:
        address = [here, str(listener.getsockname()[1])]
        there = [*words[:split], sys.executable, __file__, "--there", *address, *words[split + 1 :]]
        process = subprocess.Popen(there, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        listener.settimeout(CONNECT_SECONDS)
        try:
            end, _ = listener.accept()
        except TimeoutError:
            process.kill()
            sys.exit("Connection timed out: the host does not answer")
    with end:
        threading.Thread(target=_send, args=(end,), daemon=True).start()
        while received := end.recv(1 << 16):
            os.write(1, received)
    return process.wait()


def _send(end: socket.socket) -> None:
    """Carry stdin there, until it ends."""
    with contextlib.suppress(OSError):  # the host has ended the connection
        while written := os.read(0, 1 << 16):
            end.sendall(written)
        end.shutdown(socket.SHUT_WR)


def there(here: str, port: str, *command: str) -> None:
    """On the host: connect stdin and stdout to the other end, and become the command."""
    deadline = time.monotonic() + CONNECT_SECONDS
    while True:  # right after a cable was plugged in again, the system may refuse for a second or two
        try:
            end = socket.create_connection((here, int(port)), timeout=CONNECT_SECONDS)
            break
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
    end.settimeout(None)
    os.dup2(end.fileno(), 0)
    os.dup2(end.fileno(), 1)
    os.execvp(command[0], command)


if __name__ == "__main__":
    if sys.argv[1] == "--there":
        there(*sys.argv[2:])
    sys.exit(main(sys.argv[1], sys.argv[2:]))
