"""`Cluster`: ranks, a process group, and code that runs on them; where the notebook's side and the ranks' meet.

Runs on the notebook's kernel; the ranks answer through worker.py.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from distlab import arguments, diagnosis, display, history, interrupts, limits, payload
from distlab.cell import Cell
from distlab.errors import ClusterError, rank_list, refuse
from distlab.processes import Processes, check_launcher
from distlab.ranks import Plan, Ranks
from distlab.remote import on_rank
from distlab.versions import warn_of_newer_torch

if TYPE_CHECKING:
    from distlab.export import Export
    from distlab.trace import Trace


class Cluster:
    """A cluster of `n` ranks with a process group, ready when the call returns.

    Made again in the same process, at any size, it replaces the one that ran. On every rank the names `rank`,
    `world_size`, `torch` and `dist` are defined. Rank r is ipyparallel's engine r.

    Runs on: the notebook's kernel, or any Python process.

    Args:
        n: number of ranks, 1 or more.
        backend: torch.distributed backend that this torch was built with (nccl needs a GPU for each rank), or
            "mpi4py" with engines="mpi".
        init_method: how the ranks find each other: "tcp" (a store on this machine), "env" or "file", or "tcp://" etc.
        engines: ipyparallel engine launcher; None takes the best one here. "mpi" starts the ranks by mpiexec: `MPI`,
            of mpi4py, is defined on every rank then, and a rank that dies takes the others with it.
        timeout: seconds that a communication call waits for its peers before it raises.
        threads: OpenMP threads of each rank; None takes max(1, cores // n).

    Attributes:
        last_trace: the newest `Trace`, from `trace()` or `%%px --trace`; None before the first.
        steps: what has run on the ranks since they started, for `export`.

    Raises:
        ArgumentError: an argument breaks its rule; a cluster that runs already goes on running.
        ClusterError: the ranks could not be started.
    """

    current: Cluster | None = None
    last_trace: Trace | None = None

    def __init__(
        self,
        n: int,
        *,
        backend: str = "gloo",
        init_method: str = "tcp",
        engines: str | None = None,
        timeout: float = 30.0,
        threads: int | None = None,
    ):
        self._ranks: Ranks | None = None
        self._why_stopped = "did not start"
        self.steps: list[history.Step] = []
        engines = check_launcher(engines)
        n, backend = arguments.check_size(n, engines), arguments.check_backend(backend, n)
        arguments.check_mpi(backend, engines)
        limits.check(n)
        self._plan = Plan(
            n=n,
            backend=backend,
            init_method=arguments.check_init_method(init_method),
            engines=engines,
            timeout=arguments.check_seconds("timeout", timeout),
            threads=arguments.check_threads(threads) or max(1, (os.cpu_count() or 1) // n),
        )
        warn_of_newer_torch()
        self._start()

    # --- life ---

    @interrupts.held()
    def _start(self) -> None:
        """Start the ranks; those of the cluster that they replace, if any, end first."""
        warm = None
        if Cluster.current is not None:
            warm = Cluster.current._give_way(self._plan)
        self._why_stopped = "did not start"
        self._ranks = Ranks(self._plan, warm)
        self.steps.clear()
        Cluster.current = self
        atexit.register(self._end, "was stopped at exit")
        _register_magics()

    def _give_way(self, plan: Plan) -> Processes | None:
        """End for the sake of another cluster; what it can use goes on, which saves it most of the time to start."""
        same = plan.engines == self._plan.engines
        warm = self._ranks.release() if same and self._ranks is not None else None
        self._end(f"was replaced by Cluster({plan.n})")
        return warm

    @interrupts.held()
    def _end(self, why: str) -> None:
        if self._ranks is not None:
            ranks, self._ranks = self._ranks, None
            self._why_stopped = why
            ranks.stop()
            atexit.unregister(self._end)
        if Cluster.current is self:
            Cluster.current = None

    def stop(self) -> None:
        """End every rank and process of this cluster. It may be called twice."""
        self._end("was stopped")

    @interrupts.held()
    def restart(self) -> None:
        """End every rank and start as many new ones. The variables on the ranks are lost."""
        if self._ranks is not None and Cluster.current is not self:
            self._end("is restarting")
        self._start()

    @interrupts.held()
    def heal(self) -> None:
        """Rebuild the process group, whatever state it is in, with new processes for ranks that have died.

        The variables of the others are kept. Groups made with dist.new_group are gone with the old group and must be
        made anew.

        Raises:
            ClusterError: a rank has died and this launcher cannot start a single one; restart() starts all.
        """
        self._reached().rebuild()

    @interrupts.held()
    def interrupt(self) -> None:
        """Free every rank now, whatever it does, and rebuild the process group; variables are kept.

        A rank that cannot be freed within two seconds is ended and a new process takes its place; what was lost with it
        is printed.

        Raises:
            ClusterError: a rank cannot be freed, and this launcher cannot replace it; restart() replaces all.
        """
        replaced = self._reached().free_all()
        self.ranks.rebuild()
        for rank, lost in replaced.items():
            print(f"Rank {rank} could not be freed: a new process took its place, {lost}.")

    def __enter__(self) -> Cluster:
        self.ranks  # noqa: B018 - raises after stop
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    # --- code and variables ---

    @property
    def client(self) -> Any:
        """The ipyparallel Client of this cluster; everything ipyparallel can do works through it."""
        return self.ranks.client

    def run(
        self,
        fn: Callable[..., Any],
        *args: Any,
        ranks: Sequence[int] | None = None,
        timeout: float | None = None,
        check: bool = False,
        **kwargs: Any,
    ) -> list[Any]:
        """Call fn(rank, world_size, *args, **kwargs) on every rank and return the values by rank.

        The function, its arguments and values travel by value: functions written in the notebook, closures, lambdas,
        tensors and modules all work. What a rank prints is shown under its rank.

        Runs on: the notebook's kernel; `fn` runs on the ranks.

        Args:
            ranks: numbers of the ranks that call it; None for all. Only these may communicate in `fn`.
            timeout: seconds before ranks that have not returned are freed; None waits without a limit, and
                communication calls raise after the cluster's own timeout.
            check: compare op, shape, dtype, root and reduce op of each collective, and size and dtype of each message,
                between the ranks before data moves; a rank's call raises MismatchError where they do not fit.

        Raises:
            RankError: the function raised on some rank. RankDied: a rank's process ended.
            DeadlockError: no rank can go on. RankTimeout: a rank did not return in time.
            SerializationError: the function, an argument or a value cannot be sent.
        """
        if not callable(fn):
            refuse("fn", "callable", fn, "Call cluster.run(fn, *args) with the function itself.", wrong_type=True)
        if timeout is not None:
            arguments.check_seconds("timeout", timeout)
        targets = self.check_ranks(ranks)
        packed = payload.pack((fn, args, kwargs), "The function or one of its arguments")
        with interrupts.held():
            self.ready()
            how = ("checked_call", self.ranks.checks()) if check else ("call",)
            cell = self._on(targets, *how, *packed)
            with history.noting(self.steps, history.call(fn, args, kwargs, targets)):
                replies = cell.finish(timeout)
        return payload.unpack(replies, targets)

    def push(self, names: Mapping[str, Any], ranks: Sequence[int] | None = None) -> None:
        """Define variables on every rank, or on `ranks`: cluster.push({"x": 1}).

        Raises:
            ArgumentError: the names are not a mapping of identifiers. SerializationError: a value cannot be sent.
        """
        example = 'cluster.push({"x": 1})'
        if not isinstance(names, Mapping):
            refuse("names", "a mapping of names to values", names, f"Call {example}.", wrong_type=True)
        for name in names:
            arguments.check_name(name, example)
        targets = self.check_ranks(ranks)
        packed = payload.pack(dict(names), f"A value of {', '.join(names)}")
        with interrupts.held():
            self.ready()
            cell = self._on(targets, "push", *packed)
            with history.noting(self.steps, history.push(names, targets)):
                cell.finish()

    def pull(self, names: str | Sequence[str], ranks: Sequence[int] | None = None) -> list[Any]:
        """The values of a variable by rank; for a list of names, a list of values by rank.

        Raises:
            ArgumentError: a rank has no variable of that name. SerializationError: a value cannot be sent.
        """
        listed = isinstance(names, (list, tuple))
        wanted = [arguments.check_name(name, 'cluster.pull("x")') for name in (names if listed else [names])]
        targets = self.check_ranks(ranks)
        with interrupts.held():
            self.ready()
            replies = self._on(targets, "pull", wanted).finish()
        missing = {rank: reply[1] for rank, reply in zip(targets, replies, strict=True) if reply[0] == "missing"}
        if missing:
            name = next(iter(missing.values()))
            where = rank_list([rank for rank, missed in missing.items() if missed == name])
            advice = f'It is not on {where}. Define it there: cluster.push({{"{name}": ...}}).'
            refuse("names", "defined on every rank that is asked", name, advice)
        values = payload.unpack(replies, targets)
        return values if listed else [value[0] for value in values]

    def export(self, path: str | os.PathLike, force: bool = False) -> Export:
        """Write what has run on the ranks so far as a script for torchrun that prints the same: `%%px` cells and `run`.

        The steps come in the order in which they ran, pushed numbers and text included. What failed is a comment. Of a
        value that cannot be written down, such as a tensor that was pushed, the script says where to define it.
        What was sent through `cluster.client` is not known here.

        Runs on: the notebook's kernel.

        Args:
            path: name of the new .py file.
            force: whether a file of that name is replaced.

        Returns:
            what was written and what was not, and the command that runs it.

        Raises:
            ArgumentError: the path cannot be used, or a file is there and `force` is False; nothing was written.
        """
        from distlab.export import check_path, export

        return export(self.steps, check_path(path, force), self.n, self.backend, self.threads)

    @contextlib.contextmanager
    def trace(self, ranks: Sequence[int] | None = None) -> Iterator[Trace]:
        """Record what the ranks do: `with cluster.trace() as trace: ...`, then trace.plot() and trace.table().

        What runs in the with block, `run` and %%px cells alike, is recorded by torch's profiler on every rank. If it
        raises, what was recorded until then is kept. Outside of a trace nothing of it costs time.

        Runs on: the notebook's kernel.

        Args:
            ranks: those that are recorded; None for all.

        Raises:
            ClusterError: the cluster is not running, or is being traced already, or a rank is being profiled.
        """
        targets = self.check_ranks(ranks)
        if self.last_trace is not None and self.last_trace.recording:
            raise ClusterError("This cluster is being traced already. End that trace first: leave its with block.")
        from distlab.trace import Trace
        from distlab.trace.record import Recorder

        self.ready()
        recorder = Recorder(self.ranks, targets)
        recorder.start()
        self.last_trace = trace = Trace(targets)
        try:
            yield trace
        finally:
            recorder.finish(trace)

    def _on(self, targets: list[int], name: str, *args: Any) -> Cell:
        """Have some ranks call worker.<name>(*args); the cell that it is then."""
        result = self.client.direct_view(targets).apply_async(on_rank, name, *args)
        return Cell(self.ranks, result, targets)

    # --- state ---

    @property
    def ranks(self) -> Ranks:
        """The processes and their group; ClusterError when they are not running."""
        if self._ranks is None:
            advice = f"Make one with distlab.Cluster({self.n}), or call restart()."
            raise ClusterError(f"This cluster {self._why_stopped}. {advice}")
        return self._ranks

    @property
    def n(self) -> int:
        """Number of ranks."""
        return self._plan.n

    @property
    def backend(self) -> str:
        """torch.distributed's backend."""
        return self._plan.backend

    @property
    def timeout(self) -> float:
        """Seconds that a communication call waits for its peers."""
        return self._plan.timeout

    @property
    def threads(self) -> int:
        """OpenMP threads of each rank."""
        return self._plan.threads

    @property
    def engines(self) -> str:
        """Name of the launcher that started the ranks."""
        return self._plan.engines

    def check_ranks(self, ranks: Sequence[int] | None) -> list[int]:
        """The ranks that are meant, all for None; ArgumentError for one that is not there, ClusterError after stop."""
        self.ranks  # noqa: B018 - raises after stop
        return arguments.check_ranks(ranks, self.n)

    def ready(self) -> None:
        """Before a cell: every rank is there and the group is sound; healed where it was left broken."""
        if self._reached().broken:
            self.ranks.rebuild()

    def _reached(self) -> Ranks:
        """The ranks, after it was told which have died since the last cell.

        ClusterError when the process that carries messages to and from them has ended.
        """
        if self._ranks is not None and not self._ranks.reachable:
            self._end("has lost its controller process, and its ranks with it")
        died = self.ranks.note_deaths()
        if died and self.ranks.can_respawn:
            print(diagnosis.died_between_cells(died))
        return self.ranks

    def describe(self) -> list[dict[str, Any]]:
        """One dict a rank: rank, pid, state ("idle", what it does and in which line, or how it died), megabytes.

        Memory counts shared pages by their share (PSS) where the system tells it, else whole (RSS); None after death.
        """
        return [] if self._ranks is None else self._ranks.describe()

    def __repr__(self) -> str:
        return display.cluster_text(self._headline(), self.describe())

    def _repr_html_(self) -> str:
        return display.cluster_html(self._headline(), self.describe())

    def _headline(self) -> str:
        if self._ranks is None:
            return f"Cluster({self.n}) {self._why_stopped}"
        engines = "" if self.engines == check_launcher(None) else f", engines {self.engines}"
        return f"Cluster({self.n}): backend {self.backend}{engines}"


def _register_magics() -> None:
    """In IPython, %%px means this cluster from now on."""
    get_ipython = getattr(sys.modules.get("IPython"), "get_ipython", None)
    if get_ipython is not None and get_ipython() is not None:
        from distlab.magics import register

        register(get_ipython(), lambda: Cluster.current)
