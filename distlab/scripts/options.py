"""The command line of `distlab run`: torchrun's options where they mean the same, and its own.

Runs in the launcher's process, called by run.py.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

from distlab import machine
from distlab.arguments import seconds
from distlab.errors import ArgumentError
from distlab.scripts import preempting
from distlab.wire.preemption import GRACE, Order


@dataclass(frozen=True)
class Chosen:
    """What a person has asked for on the command line.

    Attributes:
        program: the path of the script, or the name of the module.
        arguments: what follows it.
        is_module: whether it is a module.
        ranks: how many ranks run it.
        timeout: seconds until the ranks are freed; None for no limit.
        check: whether calls are compared before data moves.
        fresh: whether each rank is an interpreter of its own, as under torchrun; they are with
            `check`, too.
        trace: file for a trace; "" for none.
        prefix: whether each line says which rank has written it; None to decide by what is written.
        preempt: which ranks get SIGTERM, and when.
        grace: seconds after which a rank that got it is killed.
    """

    program: str
    arguments: tuple[str, ...]
    is_module: bool
    ranks: int
    timeout: float | None
    check: bool
    fresh: bool
    trace: str
    prefix: bool | None
    preempt: tuple[Order, ...]
    grace: float


def read(arguments: Sequence[str]) -> Chosen:
    """What a command line asks for; wrong ones end the process with status 2, as argparse does."""
    parser = _parser()
    given = parser.parse_args(arguments)
    try:
        orders = preempting.orders_of(given.preempt, _ranks(given.nproc_per_node))
        grace = seconds("--grace", given.grace)
    except ArgumentError as error:
        parser.error(str(error))
    return Chosen(
        program=given.program,
        arguments=tuple(given.arguments),
        is_module=given.module,
        ranks=_ranks(given.nproc_per_node),
        timeout=given.timeout,
        check=given.check,
        fresh=given.fresh or given.check,
        trace=given.trace,
        prefix=given.prefix,
        preempt=orders,
        grace=grace,
    )


def _ranks(asked: str) -> int:
    """The number of ranks: torchrun also takes "auto", "cpu" and "gpu"."""
    if asked in ("auto", "cpu", "gpu"):
        return machine.cores()
    return int(asked)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "distlab run",
        description="Run a program for torchrun, as it is, on ranks that explain why they wait.",
    )
    parser.add_argument(
        "--nproc-per-node", "--nproc_per_node", default="1", metavar="N", help="how many ranks"
    )
    parser.add_argument(
        "--standalone", action="store_true", help="one machine, as always here: changes nothing"
    )
    parser.add_argument(
        "-m", "--module", action="store_true", help="the program is a module, as for python -m"
    )
    parser.add_argument(
        "--timeout", type=float, metavar="SECONDS", help="end the ranks after so many seconds"
    )
    parser.add_argument(
        "--check", action="store_true", help="compare the calls of the ranks before data moves"
    )
    parser.add_argument(
        "--fresh",
        action="store_true",
        help="give each rank a Python of its own, as torchrun does: it starts later, and a loop "
        "over a set has another order on each rank; --check does it, too",
    )
    parser.add_argument(
        "--trace", default="", metavar="FILE.json", help="write what the ranks did, for Perfetto"
    )
    parser.add_argument(
        "--prefix",
        action=argparse.BooleanOptionalAction,
        help="say before each line which rank has written it",
    )
    parser.add_argument(
        "--preempt",
        action="append",
        default=[],
        metavar="RANK:SECONDS",
        help="send a rank SIGTERM then, and SIGKILL after --grace; RANK:stepN counts the steps of "
        "its optimizer, all:SECONDS means every rank; may be given several times",
    )
    parser.add_argument(
        "--grace", type=float, default=GRACE, metavar="SECONDS", help="between the two signals"
    )
    parser.add_argument("program", help="the script, or with -m the module")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="what the program is given")
    return parser
