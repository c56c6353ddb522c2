"""The command line of `distlab run`: torchrun's options where they mean the same, and its own.

Runs in the launcher's process, called by run.py. A new option is one `add_argument` in the group
to which it belongs, an attribute of `Chosen`, and a line in `_chosen`.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from distlab.errors import ArgumentError
from distlab.scripts import streams, values
from distlab.scripts.finding import why_not_found
from distlab.scripts.streams import Streams
from distlab.wire.preemption import GRACE as PREEMPTED
from distlab.wire.preemption import Order
from distlab.wire.program import Program

USAGE = """distlab run [options] train.py [arguments of the script]
       distlab run [options] -m package.module [arguments of the module]"""
DESCRIPTION = """\
Run a program for torchrun, as it is, on ranks that explain why they wait. Put
`distlab run` where you wrote `torchrun`: a deadlock is proven and explained within
two seconds, and of ranks that fail the one at fault comes first."""
EXAMPLES = """\
examples:
  distlab run --nproc-per-node 4 train.py --epochs 2
  distlab run --nproc-per-node 4 --check train.py
  distlab run --nproc-per-node 4 --trace out.json -m package.train

exit status: 0, or that of the first rank that failed: what it gave to sys.exit, 1 for
an exception or a deadlock, 128 and the signal's number; 2 for a wrong command line."""

WIDTH = 88  # columns of the help
GRACE = 30.0  # seconds, as torchrun's
NETWORK = "5 us, 50 GB/s"  # of a cluster of H100s, as is the device
DEVICE = "989 TFLOP/s"
SIGNALS = "SIGTERM,SIGINT,SIGHUP,SIGQUIT"  # that torchrun hands on
# options of torchrun's that change nothing here: there is one machine, and one meeting
WITHOUT_MEANING = {
    "--standalone": "",
    "--rdzv-backend": "NAME",
    "--rdzv-endpoint": "ADDRESS",
    "--rdzv-conf": "CONF",
    "--master-addr": "ADDRESS",
    "--master-port": "PORT",
    "--local-addr": "ADDRESS",
    "--monitor-interval": "SECONDS",
    "--start-method": "NAME",
    "--event-log-handler": "NAME",
    "--run-path": "",
}
# those that a person might count on, and what to do instead
REFUSED = {
    "--no-python": "the ranks run Python; start another program with torchrun --no-python",
    "--logs-specs": "use --log-dir, --redirects and --tee",
    "--numa-binding": "use numactl or taskset before distlab run, or torchrun",
    "--virtual-local-rank": "use torchrun, or set CUDA_VISIBLE_DEVICES in the script",
    "--duplicate-stdout-filters": "use --tee 1 --log-dir DIR, and grep in the files",
    "--duplicate-stderr-filters": "use --tee 2 --log-dir DIR, and grep in the files",
}


@dataclass(frozen=True)
class Chosen:
    """What a person has asked for on the command line.

    Attributes:
        program: the path of the script, or the name of the module.
        arguments: what follows it.
        is_module: whether it is a module.
        ranks: how many ranks run it.
        run_id: the name of the run.
        role: torchrun's name for what the ranks are.
        backend: the backend that the program's groups have, whatever it asks for; "" for those.
        timeout: seconds until the ranks are freed; None for no limit.
        grace: seconds that ranks have after SIGTERM until they are killed; None for the usual ones.
        check: whether calls are compared before data moves.
        fresh: whether each rank is an interpreter of its own, as under torchrun; they are with
            `check`, too.
        trace: file for a trace; "" for none.
        signals: those that are handed on to the ranks, which then have that time.
        preempt: which ranks get SIGTERM, and when.
        predict: how many ranks are predicted, and none runs; 0 for a run.
        network: of those machines, in words.
        device: likewise.
        compare: whether the ranks are compared with one process.
        streams: where what ranks write goes.
        ignored: options that were given and change nothing, though a person might count on them.
    """

    program: str
    arguments: tuple[str, ...]
    is_module: bool
    ranks: int
    run_id: str
    role: str
    backend: str
    timeout: float | None
    grace: float | None
    signals: tuple[signal.Signals, ...]
    preempt: tuple[Order, ...]
    check: bool
    fresh: bool
    trace: str
    predict: int
    network: str
    device: str
    compare: bool
    streams: Streams
    ignored: tuple[str, ...]

    def as_program(self) -> Program:
        """The program as ranks get it, whoever starts them."""
        return Program(
            name=self.program,
            arguments=self.arguments,
            is_module=self.is_module,
            folder=os.getcwd(),
            backend=self.backend,
            run_id=self.run_id,
            role=self.role,
        )


def read(arguments: Sequence[str]) -> Chosen:
    """What a command line asks for.

    Help, and what is wrong with a command line, end the process, with status 0 and 2.
    """
    parser = _parser()
    if not arguments:
        parser.print_help(sys.stderr)
        sys.exit(2)
    given = parser.parse_args(arguments)
    for option, instead in REFUSED.items():
        if getattr(given, _name_of(option)):
            parser.error(f"{option} is not for distlab run: {instead}")
    if given.program is None:
        parser.error("which program? Write `distlab run --nproc-per-node 4 train.py`")
    why = why_not_found(given.program, given.module)
    if why:
        parser.error(why)
    orders: tuple[Order, ...] = ()
    if given.preempt:
        from distlab.scripts import preempting  # which takes a while

        try:
            orders = preempting.orders_of(given.preempt, given.nproc_per_node)
        except ArgumentError as error:
            parser.error(str(error))
    return _chosen(given, orders)


def _chosen(given: argparse.Namespace, orders: tuple[Order, ...]) -> Chosen:
    """What was given, with torchrun's names, in ours."""
    ignored = []
    if given.max_restarts:
        ignored.append(f"--max-restarts {given.max_restarts}: ranks are not restarted")
    return Chosen(
        program=given.program,
        arguments=tuple(given.arguments),
        is_module=given.module,
        ranks=given.nproc_per_node,
        run_id=given.rdzv_id,
        role=given.role,
        backend=given.backend,
        timeout=given.timeout,
        grace=given.grace,
        signals=given.signals_to_handle,
        preempt=orders,
        check=given.check,
        fresh=given.fresh or given.check,
        trace=given.trace or "",
        predict=given.predict,
        network=given.network,
        device=given.device,
        compare=given.compare,
        streams=Streams(
            prefix=given.prefix,
            folder=given.log_dir or "",
            redirected=given.redirects,
            copied=given.tee,
            shown=given.local_ranks_filter,
        ),
        ignored=tuple(ignored),
    )


# --- the parser ---


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "distlab run",
        usage=USAGE,
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(
            prog, max_help_position=30, width=WIDTH
        ),
    )
    _add_ranks(parser)
    _add_reports(parser)
    _add_ends(parser)
    _add_output(parser)
    _add_instead(parser)
    _add_torchruns(parser)
    parser.add_argument("program", nargs="?", help=argparse.SUPPRESS)
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return parser


def _add_ranks(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("ranks")
    _add(
        group,
        "--nproc-per-node",
        type=values.ranks,
        default="1",
        metavar="N",
        help="how many ranks; auto or gpu for one on each GPU, auto or cpu for one on each core "
        "(default 1)",
    )
    group.add_argument(
        "-m", "--module", action="store_true", help="the program is a module, as for python -m"
    )
    group.add_argument(
        "--fresh",
        action="store_true",
        help="give each rank a Python of its own, as torchrun does: it starts later, and a loop "
        "over a set has another order on each rank; --check also does it",
    )
    group.add_argument(
        "--backend",
        default="",
        metavar="NAME",
        help="of the program's groups, whatever it asks for: gloo where there are no GPUs",
    )


def _add_reports(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("reports")
    group.add_argument(
        "--check",
        action="store_true",
        help="compare the calls of the ranks before data moves, and name the one that differs",
    )
    group.add_argument(
        "--trace",
        type=values.new_file,
        metavar="FILE.json",
        help="write what every rank did when, for ui.perfetto.dev",
    )


def _add_ends(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("ends")
    group.add_argument(
        "--timeout",
        type=values.seconds,
        metavar="SECONDS",
        help="end ranks that still run then, and say where they are; a deadlock needs none",
    )
    _add(
        group,
        "--grace",
        "--shutdown-timeout",
        type=values.seconds,
        metavar="SECONDS",
        help="for ranks that are asked to end, by SIGTERM, to save what they have, before they "
        f"are killed (default {GRACE:g}, or {PREEMPTED:g} with --preempt)",
    )
    group.add_argument(
        "--preempt",
        action="append",
        default=[],
        metavar="RANK:SECONDS",
        help="send a rank SIGTERM then, as a cluster that needs its machine does, and say how it "
        "ended; RANK:stepN counts optimizer steps, all:SECONDS means every rank; may be repeated",
    )


def _add_output(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("output")
    group.add_argument(
        "--prefix",
        action=argparse.BooleanOptionalAction,
        help="begin each line with its rank; by default in a terminal, where several ranks write",
    )
    _add(group, "--log-dir", type=values.folder, metavar="DIR", help=streams.LOG_HELP)
    _add(
        group,
        "-r",
        "--redirects",
        type=values.streams,
        default={},
        metavar="STREAMS",
        help="write streams into files instead: 1 for stdout, 2 for stderr, 3 for both; 0:3,1:2 by "
        "rank",
    )
    _add(
        group,
        "-t",
        "--tee",
        type=values.streams,
        default={},
        metavar="STREAMS",
        help="also write streams into files",
    )
    _add(
        group,
        "--local-ranks-filter",
        type=values.some_ranks,
        default=None,
        metavar="0,1",
        help="show only what these ranks write",
    )


def _add_instead(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("instead of a run")
    group.add_argument(
        "--compare",
        action="store_true",
        help="also run the program in one process, and say whether both train alike, or why not",
    )
    group.add_argument(
        "--predict",
        type=values.predicted_ranks,
        default=0,
        metavar="N",
        help="say what a training step would take on so many ranks: one of each role runs, without "
        "data; --nproc-per-node of them are on a machine",
    )
    group.add_argument(
        "--network",
        default=NETWORK,
        metavar="NAME",
        help=f"for --predict: a name, or latency and bandwidth (default {NETWORK!r})",
    )
    group.add_argument(
        "--device",
        default=DEVICE,
        metavar="NAME",
        help=f"for --predict: a name, or operations a second of each rank (default {DEVICE!r})",
    )


def _add_torchruns(parser: argparse.ArgumentParser) -> None:
    words = ", ".join(("--nnodes 1", "--node-rank 0", *WITHOUT_MEANING))
    there_is_one = f"There is one machine, so these change nothing: {words}."
    group = parser.add_argument_group(
        "options of torchrun's",
        description=textwrap.fill(there_is_one, WIDTH - 4, break_on_hyphens=False),
    )
    hidden = argparse.SUPPRESS
    _add(group, "--nnodes", type=values.one_machine, default="1", help=hidden)
    _add(group, "--node-rank", type=values.first_machine, default=0, help=hidden)
    _add(group, "--rdzv-id", default="distlab", metavar="NAME", help="TORCHELASTIC_RUN_ID")
    _add(group, "--role", default="default", metavar="NAME", help="ROLE_NAME")
    _add(group, "--max-restarts", type=values.restarts, default=0, help=hidden)
    _add(group, "--signals-to-handle", type=values.signals, default=SIGNALS, help=hidden)
    for option, value in WITHOUT_MEANING.items():
        if value:
            _add(group, option, metavar=value, help=hidden)
        else:
            _add(group, option, action="store_true", help=hidden)
    for option in REFUSED:
        nargs = None if option in ("--no-python", "--virtual-local-rank") else 1
        if nargs is None:
            _add(group, option, action="store_true", help=hidden)
        else:
            _add(group, option, nargs=nargs, help=hidden)


def _add(group: argparse._ArgumentGroup, *names: str, **how: object) -> None:
    """Add an option that torchrun spells with hyphens or with underscores; help has the first."""
    spellings = list(names)
    for name in names:
        underscored = f"--{_name_of(name)}"
        if name.startswith("--") and underscored not in spellings:
            spellings.append(underscored)
    action = group.add_argument(*spellings, **how)  # type: ignore[arg-type]
    action.option_strings = list(names)


def _name_of(option: str) -> str:
    """The attribute of an option: no_python for --no-python."""
    return option.lstrip("-").replace("-", "_")
