"""What the launcher hears from its fork server."""

import json
import socket

from distlab.launch.fork_launcher import ForkEngineSetLauncher


def test_a_process_that_gets_the_number_of_a_dead_one_lives():
    """Numbers of processes come again; on a busy machine soon."""
    launcher = ForkEngineSetLauncher()
    server, channel = socket.socketpair()
    events = [{"forked": 0, "pid": 7}, {"ended": 0, "pid": 7, "status": -9}, {"forked": 1, "pid": 7}]
    with server:
        server.sendall("".join(json.dumps(event) + "\n" for event in events).encode())
    launcher._listen(channel)
    assert (launcher.pids, launcher.exit_codes) == ({0: 7, 1: 7}, {})
