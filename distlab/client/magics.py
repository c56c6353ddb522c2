"""%%px on the ranks of the current cluster: ipyparallel's own magic, its options kept, with our output and errors.

Runs on the notebook's kernel; registered by `%load_ext distlab`, or at the first use after `import distlab`.
"""

from __future__ import annotations

import contextlib
import signal
from types import SimpleNamespace
from typing import Any

from ipyparallel.client.magics import ParallelMagics, exec_args, output_args
from ipyparallel.error import CompositeError, RemoteError
from IPython.core.magic_arguments import argument, magic_arguments, parse_argstring
from IPython.display import display as ipython_display

from distlab import text
from distlab.client import display, export, waiting
from distlab.client.cell import Cell, Options
from distlab.client.cluster import current_cluster
from distlab.compat.ipyparallel import ReadsOptions
from distlab.text import rank_list, refuse
from distlab.wire import seconds


def register(shell: Any) -> None:
    """Register %%px, %px, %pxresult, %pxconfig and %autopx in an IPython shell; once is enough."""
    registered = shell.magics_manager.magics["cell"].get("px")
    if not isinstance(getattr(registered, "__self__", None), PxMagics):
        shell.register_magics(PxMagics(shell, None))


class PxMagics(ReadsOptions, ParallelMagics):
    """ipyparallel's magics for whatever cluster is the current one of this notebook."""

    @property
    def view(self) -> SimpleNamespace:
        """As a DirectView of ipyparallel: the current cluster, and the targets and block that %pxconfig sets."""
        cluster = current_cluster()
        if self._view is None or self._view.cluster is not cluster:
            self._view = SimpleNamespace(cluster=cluster, client=cluster.client, targets=None, block=True)
        return self._view

    @view.setter
    def view(self, none: None) -> None:
        self._view: SimpleNamespace | None = none

    def check_targets(self, given: str, targets: Any) -> Any:
        """What --targets means: a list of ranks, or None for all. `targets` is ipyparallel's reading of it, or None."""
        if targets == "all":
            return None
        as_list = [targets] if isinstance(targets, int) else targets
        if not isinstance(as_list, (list, tuple, range)):
            advice = "Write for example --targets 0,2 or --targets ::2."
            refuse("--targets", "a rank, a list of ranks, a slice or all", given, advice)
        return self.view.cluster.check_ranks(list(as_list))

    def parallel_execute(self, cell: str, **_: Any) -> Any:
        """Run a line of %px, or a cell while %autopx is on, as %pxconfig says."""
        return self.cell_px("", cell)

    @waiting.held()
    def _run(self, line: str, cell: str, args: Any, targets: list[int], block: bool) -> Any:
        """Send the cell to the ranks; show what they wrote and raise what they raised, or return an AsyncResult.

        What `args`, of its %%px line, do not say is as %pxconfig said it.
        """
        cluster = self.view.cluster
        stream = self.stream_output if args.stream is None else args.stream
        patience = self.progress_after_seconds if args.progress_after_seconds is None else args.progress_after_seconds
        options = Options(
            timeout=args.timeout,
            check=args.check,
            groupby=args.groupby,
            live_after=min(patience, seconds.LIVE_AFTER) if stream and patience >= 0 else None,
            interrupt_with=_signal_number(args.signal_on_interrupt or self.signal_on_interrupt),
            source=f"%%px {line}".rstrip() + f"\n{cell}",
        )
        if self.verbose:
            print(f"{'Parallel' if block else 'Async parallel'} execution on {rank_list(targets)}")
        sent = Cell(cluster.ranks, targets, lambda view: view.execute(cell, silent=False, block=False), options)
        self.last_result = sent.result
        _adopt(sent, targets)
        if args.save_name:
            self.shell.user_ns[args.save_name] = sent.result
        if args.local:  # the notebook runs it meanwhile
            with waiting.allowed():
                self.shell.run_cell(cell)
        step = export.Step("cell", tuple(targets), cell, pending=None if block else sent.result)
        cluster.steps.append(step)
        if not block:
            return sent.result
        sent.finish(step)
        return None

    @magic_arguments()
    @exec_args
    @output_args
    @argument("--local", action="store_true", help="also run the cell in the notebook")
    @argument("--timeout", type=float, help="seconds before the cell is judged stuck and its ranks are freed")
    @argument("--check", action="store_true", help="compare the arguments of each communication call between the ranks")
    @argument("--trace", action="store_true", help="record and show what the ranks do; it stays as cluster.last_trace")
    @argument("--export", metavar="NAME.py", help="then write this and the cells before it into a script for torchrun")
    @argument("--force", action="store_true", help="with --export: replace a file that is there")
    def cell_px(self, line: str = "", cell: str | None = None) -> Any:
        """Run the cell on every rank, where `rank`, `world_size`, `torch` and `dist` are defined.

        Examples
        --------
        ::

            %%px
            tensor = torch.ones(1) * rank
            dist.all_reduce(tensor)
            print(tensor.item())
        """
        args = parse_argstring(self.cell_px, line)
        view, cluster = self.view, self.view.cluster
        block = view.block if args.block is None else args.block
        if args.timeout is not None:
            text.seconds("timeout", args.timeout)
        if args.export is not None:
            if not block:
                advice = 'Leave it out, and call cluster.export("NAME.py") later.'
                refuse("--export", "without --noblock", args.export, advice)
            export.check_path(args.export, args.force)
        if args.trace and (args.local or not block):
            refuse("--trace", "without --noblock", "--noblock", "Leave one of them out.")
        wanted = view.targets if args.targets is None else self.targets_in(args.targets)
        targets = cluster.check_ranks(wanted)
        with contextlib.ExitStack() as afterwards, contextlib.ExitStack() as meanwhile:
            if args.trace:  # what is recorded is shown also when the cell fails
                afterwards.callback(ipython_display, meanwhile.enter_context(cluster.trace(targets)))
            result = self._run(line, cell, args, targets, block)
        if args.export is not None:
            ipython_display(cluster.export(args.export, args.force))
        return result


def _adopt(sent: Cell, targets: list[int]) -> None:
    """Make an AsyncResult show its output, raise its errors and find its deadlocks as %%px does."""
    result, get = sent.result, sent.result.get

    def get_or_raise(timeout: float | None = None, **kwargs: Any) -> Any:
        if timeout is None or timeout < 0:
            sent.wait()
        try:
            return get(timeout, **kwargs)
        except (CompositeError, RemoteError):
            sent.replies()
            raise

    result.get = get_or_raise
    result.display_outputs = lambda groupby="type", **_: display.show(result, targets, groupby)


def _signal_number(signal_or_name: int | str) -> int:
    known = signal.Signals.__members__
    if not str(signal_or_name).isdigit() and signal_or_name not in known:
        advice = "Write for example SIGINT, SIGKILL or 0 for none."
        refuse("--signal-on-interrupt", "a signal's name or number", signal_or_name, advice)
    return int(known.get(signal_or_name, signal_or_name))
