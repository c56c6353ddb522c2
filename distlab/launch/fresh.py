"""What a child of the fork server becomes where ranks are fresh: an engine in a Python of its own.

`become_engine` runs in a child of fork_server.py, which calls it, and replaces the child's program
by a new interpreter; `main` runs there. The process stays the child of the fork server, which
reports its end as that of any engine, and the system still ends it with the server. A fresh rank
has its own seed of string hashes and its own addresses, and has imported every module by itself, as
a process that torchrun starts.
"""

import gc
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from distlab import programs
from distlab.launch.forked import serve
from distlab.launch.logs import open_stderr, write_into_log
from distlab.wire import direct


def become_engine(
    server: int, number: int, reader: int, writer: int, preload: Sequence[str]
) -> NoReturn:
    """Execute a new interpreter that is engine `number`. Runs in a forked child.

    Args:
        server: the number of the fork server's process.
        number: the engine's.
        reader, writer: the ends of a pipe, which this process and its parent can read.
        preload: modules that a person wants imported.
    """
    write_into_log(number)
    os.setsid()  # a rank that signals its process group reaches its own children alone
    descriptors = (reader, writer, open_stderr(number))
    for descriptor in descriptors:
        os.set_inheritable(descriptor, True)
    command = [*programs.command(__name__), *map(str, (server, number, *descriptors)), *preload]
    os.execv(command[0], command)


def main() -> None:
    """Be the engine that the command line names. Runs in the new interpreter."""
    server, number, reader, writer, stderr = map(int, sys.argv[1:6])
    preload = sys.argv[6:]
    # the system has kept this over the change of the program; the server may have ended meanwhile
    programs.end_with_parent(server)
    for descriptor in (reader, writer, stderr):
        os.set_inheritable(descriptor, False)
    # nothing that is imported is garbage
    gc.disable()
    from distlab.compat.ipython import debugger_hidden
    from distlab.launch.preloading import import_engine, import_ranks, import_ranks_of_launcher

    with debugger_hidden():
        if direct.address_of_launcher() is None:
            import_engine()
            import_ranks(preload)
        else:
            import_ranks_of_launcher(preload)
    gc.freeze()
    gc.enable()
    serve(number, reader, writer, stderr)
