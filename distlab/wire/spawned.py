"""A function that `distlab.spawn` calls on every rank, with what its process finds there.

Made by scripts/spawning/packing.py in the caller's process, read by rank/spawned.py on every rank.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Spawned:
    """What a spawned process takes over from the one that spawns it.

    Attributes:
        payloads: folder of a file for each rank, `payload_of(payloads, rank)`, with two pickles:
            its stdout and stderr, and then the function and its arguments.
        folder: the working directory.
        path: `sys.path`.
        arguments: `sys.argv`.
        environment: all variables.
        key: by which the processes of one program know each other, see multiprocessing.
    """

    payloads: str
    folder: str
    path: tuple[str, ...]
    arguments: tuple[str, ...]
    environment: Mapping[str, str] = field(repr=False)
    key: bytes = field(repr=False)


def payload_of(payloads: str, rank: int) -> str:
    """The path of the file from which a rank reads what is meant for it alone."""
    return f"{payloads}/{rank}.pickle"
