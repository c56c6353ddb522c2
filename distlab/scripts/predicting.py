"""`distlab run --predict N`: what a program would do on many ranks of machines that are not there.

Runs in the launcher's process, called by run.py; `run_as_recorded` runs where `distlab.predict`
records a rank.
"""

from __future__ import annotations

import functools
import os
import sys
from dataclasses import replace

import distlab
from distlab.errors import ArgumentError, DistlabError
from distlab.scripts.options import Chosen
from distlab.scripts.statuses import FAILED, WRONG
from distlab.simulated.devices import Device
from distlab.simulated.known_devices import DEVICES
from distlab.simulated.network import NETWORKS, Network
from distlab.wire.program import Program

NOTHING_SAID = "29500"  # of torchrun, the port at which nobody meets here
NETWORK_RULE = (
    'a latency and a bandwidth, as in "5 us, 50 GB/s", or a name, as in "InfiniBand NDR"; names: '
)


def predict(chosen: Chosen) -> int:
    """Print what a step of the program would take on so many ranks; returns the exit status."""
    try:
        network = network_of(chosen.network, chosen.predict)
        device = device_of(chosen.device)
    except ArgumentError as error:
        print(f"distlab run: error: {error}", file=sys.stderr)
        return WRONG
    program = chosen.as_program()
    as_recorded = functools.partial(run_as_recorded, program=program, on_host=chosen.ranks)
    try:
        found = distlab.predict(as_recorded, chosen.predict, network, device)
    except DistlabError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return FAILED
    print(found.table())
    return 0


def network_of(text: str, ranks: int) -> Network:
    """A network from its latency and its bandwidth, or by its name.

    Args:
        text: the option.
        ranks: how many it is for; named hosts are as many as these need.

    Raises:
        ArgumentError: it is neither.
    """
    if text in NETWORKS:
        network = Network.named(text)
        if not network.hosts:
            return network
        full, left = divmod(ranks, network.hosts[0])
        hosts = [network.hosts[0]] * full
        if left:
            hosts.append(left)
        return replace(network, hosts=hosts)
    latency, comma, bandwidth = text.partition(",")
    if not comma:
        names = ", ".join(NETWORKS)
        raise ArgumentError(f"--network must be {NETWORK_RULE}{names}; got {text!r}.")
    return Network(latency.strip(), bandwidth.strip())


def device_of(text: str) -> Device:
    """A device by its name, or from its operations a second.

    Raises:
        ArgumentError: it is neither.
    """
    if text in DEVICES:
        return Device.named(text)
    return Device(text)


def run_as_recorded(rank: int, world_size: int, program: Program, on_host: int) -> None:
    """Run a program as a rank of many, which is recorded without data.

    Args:
        rank: as which.
        world_size: how many there are.
        program: what to run.
        on_host: how many ranks each machine has.
    """
    from distlab.rank.main_module import run_as_main  # the launcher needs no torch

    os.environ.update(variables_of(rank, world_size, on_host))
    os.environ.update(TORCHELASTIC_RUN_ID=program.run_id, ROLE_NAME=program.role)
    run_as_main(program, is_first_to_write=lambda _: False)  # the prediction shows its error


def variables_of(rank: int, world_size: int, on_host: int) -> dict[str, str]:
    """The environment variables that torchrun would set."""
    on_this_host = min(on_host, world_size)
    hosts = -(-world_size // on_this_host)
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "LOCAL_RANK": str(rank % on_this_host),
        "LOCAL_WORLD_SIZE": str(on_this_host),
        "GROUP_RANK": str(rank // on_this_host),
        "GROUP_WORLD_SIZE": str(hosts),
        "ROLE_RANK": str(rank),
        "ROLE_WORLD_SIZE": str(world_size),
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": NOTHING_SAID,
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
    }
