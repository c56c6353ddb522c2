"""What the controller's process becomes: ipyparallel's controller, with a heart of its own.

Runs as a process of its own on the notebook's machine; notebook/starting.py starts it, or
fork_server.py forks it. It beats fast only while engines come. An engine is registered when it has
answered a heartbeat, so a slow heart makes a cluster start late, and a fast one leaves the machine
no rest for as long as the cluster lives, also while its ranks do nothing.
"""

import time
from typing import Any

import zmq
from ipyparallel.controller import app
from ipyparallel.controller.heartmonitor import HeartMonitor
from zmq.eventloop.zmqstream import ZMQStream

from distlab.compat.ipyparallel import change_controller

FAST = 5  # milliseconds between two heartbeats while engines come
FAST_SECONDS = 3.0  # for how long after one has connected, if it does not answer


class SoonCalmMonitor(HeartMonitor):
    """Beats fast from the moment when an engine connects until it answers, else with its period."""

    _coming = 0  # engines that have connected, and not answered yet

    def start(self) -> None:
        super().start()
        accepted = self.pong_stream.socket.get_monitor_socket(zmq.EVENT_ACCEPTED)
        self._connections = ZMQStream(accepted)
        self._connections.on_recv(self._come)
        self.hasten()

    def _come(self, event: list[bytes]) -> None:
        self._coming += 1
        self.hasten()

    def hasten(self) -> None:
        """Beat fast for a while, from now on."""
        self._calm_at = time.monotonic() + FAST_SECONDS
        if self.caller.callback_time != FAST:
            self.caller.stop()
            self.caller.callback_time = FAST
            self.caller.start()

    def handle_pong(self, message: list[bytes]) -> None:
        """Register an engine that is new as soon as it answers, and not only at the next beat."""
        super().handle_pong(message)
        new = self.responses - self.hearts
        if new:
            self.handle_new_hearts(new)
            self._coming = max(0, self._coming - len(new))
            if not self._coming:
                self._calm_at = time.monotonic()

    def beat(self) -> None:
        super().beat()
        if time.monotonic() > self._calm_at:
            self.caller.callback_time = self.period
            self._coming = 0

    def _check_missed(
        self, missed: set[bytes], on_probation: dict[bytes, int], hearts: set[bytes]
    ) -> Any:
        """Count missed beats while calm only, so that their number stands for a time."""
        if time.monotonic() > self._calm_at:
            return super()._check_missed(missed, on_probation, hearts)
        return [], on_probation


def main() -> None:
    """Be a controller with the arguments of the command line."""
    change_controller(SoonCalmMonitor)
    app.main()
