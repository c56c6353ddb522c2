"""A person's own program as the launcher sends it to every rank.

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
        backend: of the groups that it makes, whatever it asks for; "" for those.
        streams: by rank, the paths where its stdout and its stderr go; empty leaves them.
        writes_all: whether each rank writes the traceback of its error, also where it is another
            rank's.
        stdin: what rank 0 reads; "" for nothing, as on the other ranks.
        run_id: the name of the run.
        role: torchrun's name for what the ranks are.
        environment: variables that it finds besides torchrun's.
        unset: variables that it does not find, though the rank has them.
    """

    name: str
    arguments: tuple[str, ...] = ()
    is_module: bool = False
    folder: str = "."
    backend: str = ""
    streams: tuple[tuple[str, str], ...] = ()
    writes_all: bool = False
    stdin: str = ""
    run_id: str = "distlab"
    role: str = "default"
    environment: Mapping[str, str] = field(default_factory=dict)
    unset: tuple[str, ...] = ()
