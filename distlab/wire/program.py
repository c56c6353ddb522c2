"""A person's program as the launcher sends it to every rank.

Made by scripts/run.py in the launcher's process, read by rank/program.py on every rank.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Program:
    """A script or module to run on every rank, as `python` would run it.

    Attributes:
        name: the path of the script, as it was given; or the name of the module.
        arguments: what follows it in `sys.argv`.
        is_module: whether it is run as `python -m`.
        folder: the working directory.
        streams: folder of two named pipes for each rank, `pipe_of(folder, rank, name)`: where its
            stdout and stderr go; "" leaves them.
        environment: variables that it finds besides torchrun's.
    """

    name: str
    arguments: tuple[str, ...] = ()
    is_module: bool = False
    folder: str = "."
    streams: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)


def pipe_of(folder: str, rank: int, name: str) -> str:
    """The path of the named pipe into which a rank writes its `name`, "stdout" or "stderr"."""
    return f"{folder}/{rank}.{name}"
