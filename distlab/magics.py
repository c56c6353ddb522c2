"""%%px on the ranks of the current cluster: ipyparallel's own magic, its options kept, with our output and errors.

Runs on the notebook's kernel; registered by `%load_ext distlab`, and by the first `Cluster` of a notebook.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from ipyparallel.client.magics import ParallelMagics, exec_args, output_args
from ipyparallel.error import CompositeError, RemoteError
from IPython.core import magic_arguments
from IPython.display import display as ipython_display

from distlab import display, history, interrupts, live
from distlab.arguments import check_seconds
from distlab.cell import Cell
from distlab.errors import ClusterError, rank_list, refuse
from distlab.export import check_path
from distlab.remote import on_rank


def register(shell: Any, current: Callable[[], Any]) -> None:
    """Register %%px, %px, %pxresult, %pxconfig and %autopx in an IPython shell; once is enough.

    Args:
        current: gives the `Cluster` whose ranks run the cells; None when there is none.
    """
    if not isinstance(_registered(shell), PxMagics):
        PxMagics.current = staticmethod(current)
        shell.register_magics(PxMagics(shell, None))


def _registered(shell: Any) -> Any:
    return getattr(shell.magics_manager.magics["cell"].get("px"), "__self__", None)


class PxMagics(ParallelMagics):
    """ipyparallel's magics for whatever cluster is the current one of this notebook."""

    current: Callable[[], Any]
    _view: Any = None
    _view_of: Any = None  # the ranks and the client that the view is of: a new cluster may come with the same client
    _timeout: float | None = None
    _check = False
    _line = ""
    _trace = False
    _local = False

    @property
    def cluster(self) -> Any:
        """The cluster whose ranks run the cells; ClusterError when there is none."""
        cluster = self.current()
        if cluster is None:
            raise ClusterError("No cluster is running here. Make one first: cluster = distlab.Cluster(4).")
        return cluster

    @property
    def view(self) -> Any:
        """A DirectView of the current cluster; its targets are what %pxconfig made them."""
        cluster = self.cluster
        if self._view_of != (cluster.ranks, cluster.client):
            self._view, self._view_of = cluster.client.direct_view("all"), (cluster.ranks, cluster.client)
            self._view.block = True
        return self._view

    @view.setter
    def view(self, value: Any) -> None:
        self._view = value

    def _eval_target_str(self, ts: str) -> Any:
        try:
            targets = super()._eval_target_str(ts)
        except Exception:
            targets = None
        if targets != "all":
            as_list = [targets] if isinstance(targets, int) else targets
            if not isinstance(as_list, (list, tuple, range)):
                refuse(
                    "--targets",
                    "a rank, a list of ranks, a slice or all",
                    ts,
                    "Write for example --targets 0,2 or --targets ::2.",
                )
            targets = self.cluster.check_ranks(list(as_list))
        return targets

    @interrupts.held()
    def parallel_execute(
        self,
        cell: str,
        block: bool | None = None,
        groupby: str = "type",
        save_name: str | None = None,
        stream_output: bool | None = None,
        progress_after: float | None = None,
        signal_on_interrupt: Any = None,
    ) -> Any:
        """Send the cell to the ranks; show what they wrote and raise what they raised, or return an AsyncResult."""
        cluster, view = self.cluster, self.view
        block = view.block if block is None else block
        targets = cluster.check_ranks(None if view.targets in ("all", None) else _as_list(view.targets))
        number = _signal_number(self.signal_on_interrupt if signal_on_interrupt is None else signal_on_interrupt)
        if self._trace and not block:
            refuse("--trace", "without --noblock", "--noblock", "Leave one of them out.")
        cluster.ready()
        if self.verbose:
            print(f"{'Parallel' if block else 'Async parallel'} execution on {rank_list(targets)}")
        with self._traced(cluster, targets):
            ranks = cluster.client.direct_view(targets)
            if self._check:
                ranks.apply_async(on_rank, "begin_checks", *cluster.ranks.checks())
            result = ranks.execute(cell, silent=False, block=False)
            if self._check:
                ranks.apply_async(on_rank, "end_checks")
            result._fname = "%px"
            self.last_result = result
            source = f"%%px {self._line}".rstrip() + f"\n{cell}"
            _adopt(result, cluster, targets, source)
            if save_name:
                self.shell.user_ns[save_name] = result
            step = history.Step("cell", tuple(targets), cell)
            if not block:
                cluster.steps.append(replace(step, pending=result, waited=self._local))
                return result
            stream = self.stream_output if stream_output is None else stream_output
            patience = self.progress_after_seconds if progress_after is None else progress_after
            live_after = None if not stream or patience < 0 else min(patience, live.LIVE_AFTER_SECONDS)
            with history.noting(cluster.steps, step):
                Cell(cluster.ranks, result, targets, source).finish(self._timeout, groupby, live_after, number)
        return None

    @contextlib.contextmanager
    def _traced(self, cluster: Any, targets: list[int]) -> Iterator[None]:
        """With --trace, record what the ranks do meanwhile, and show it at the end, also when the cell fails."""
        if not self._trace:
            yield
            return
        trace = None
        try:
            with cluster.trace(targets) as trace:
                yield
        finally:
            if trace is not None:
                ipython_display(trace)

    @magic_arguments.magic_arguments()
    @exec_args
    @output_args
    @magic_arguments.argument(
        "--local", action="store_const", const=True, dest="local", help="also run the cell in the notebook"
    )
    @magic_arguments.argument(
        "--timeout", type=float, default=None, help="seconds before the cell is judged stuck and its ranks are freed"
    )
    @magic_arguments.argument(
        "--check", action="store_true", help="compare the arguments of each communication call between the ranks"
    )
    @magic_arguments.argument(
        "--trace", action="store_true", help="record what the ranks do, and show it; it stays as cluster.last_trace"
    )
    @magic_arguments.argument(
        "--export", metavar="NAME.py", help="then write this and the cells before it into a script for torchrun"
    )
    @magic_arguments.argument("--force", action="store_true", help="with --export: replace a file that is there")
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
        args = magic_arguments.parse_argstring(self.cell_px, line)
        if args.timeout is not None:
            check_seconds("timeout", args.timeout)
        if args.export is not None:
            _check_export(args, self.view.block)
        self._timeout, self._check, self._trace, self._line = args.timeout, args.check, args.trace, line
        self._local = bool(args.local)
        try:
            outcome = super().cell_px(line, cell)
        finally:
            self._timeout, self._check, self._trace, self._line, self._local = None, False, False, "", False
        if args.export is not None:
            ipython_display(self.cluster.export(args.export, args.force))
        return outcome

    @magic_arguments.magic_arguments()
    @output_args
    def result(self, line: str = "") -> Any:
        """Show the output of the last %%px again, or wait for it when it was sent with --noblock."""
        return super().result(line)


def _adopt(result: Any, cluster: Any, targets: list[int], source: str) -> None:
    """Make an AsyncResult show its output, raise its errors and find its deadlocks as %%px does."""
    get = result.get
    cell = Cell(cluster.ranks, result, targets, source)

    def get_or_raise(timeout: float | None = None, **kwargs: Any) -> Any:
        if timeout is None or timeout < 0:
            cell.wait()
        try:
            return get(timeout, **kwargs)
        except (CompositeError, RemoteError):
            cell.replies()
            raise

    result.get = get_or_raise
    result.display_outputs = lambda groupby="type", **_: display.show(result, targets, groupby)


def _check_export(args: Any, blocks: bool) -> None:
    """Before a cell is run to be exported: it is waited for, and its script may be written."""
    if not (blocks if args.block is None else args.block):
        refuse("--export", "without --noblock", args.export, 'Leave it out, and call cluster.export("NAME.py") later.')
    check_path(args.export, args.force)


def _signal_number(name: int | str) -> int:
    if isinstance(name, str) and name not in signal.Signals.__members__:
        refuse(
            "--signal-on-interrupt",
            "a signal's name or number",
            name,
            "Write for example SIGINT, SIGKILL or 0 for none.",
        )
    return int(signal.Signals[name]) if isinstance(name, str) else int(name)


def _as_list(targets: Any) -> list[int]:
    return [targets] if isinstance(targets, int) else list(targets)
