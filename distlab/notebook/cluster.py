"""`Cluster`: code that runs on ranks with a process group. Runs on the notebook's kernel; entry.py
replies.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from distlab import arguments, simulated
from distlab.arguments import refuse
from distlab.compat import warn_of_newer_torch
from distlab.diagnosis import failures
from distlab.errors import ClusterError
from distlab.notebook import ahead, display, freeing, interrupts, questions
from distlab.notebook.attached import Attached, connect
from distlab.notebook.cell import Cell, Options, lines_of, may_pause
from distlab.notebook.export import Export, Step, write
from distlab.notebook.plan import TIMEOUT, check_network, make_plan
from distlab.notebook.processes import Processes
from distlab.notebook.ranks import Ranks
from distlab.notebook.start_methods import StartMethod
from distlab.rank import entry
from distlab.wire import pickling

if TYPE_CHECKING:
    from distlab.simulated.network import Network
    from distlab.traces.trace import Trace

PACKED = "The function or one of its arguments"  # what cannot be sent


class Cluster:
    """A cluster of `n` ranks with a process group, ready when the call returns.

    A new one in the same process, of any size, replaces the one that was running, unless an
    argument is refused. All ranks have the names `rank`, `world_size`, `torch` and `dist`. Rank r
    is ipyparallel's engine r. The connection between notebook and hosts is encrypted; what ranks
    send each other is not, as with torchrun.

    Args:
        n: number of ranks, 1 or more; left out with hosts.
        backend: one that this torch has (nccl needs a GPU for each rank), or the name of a module,
            such as "my_backend" for my_backend.py, which every rank imports: it calls
            dist.Backend.register_backend(NAME, ...) when it is imported, and has that name as NAME.
            "distlab_course.mpi_backend" needs engines="mpi".
        init_method: how the ranks find each other: "tcp" (a store on this machine), "env" or
            "file".
        engines: what starts the ranks: "fork", "local" (a process for each by ipyparallel), "mpi",
            "slurm" or "ssh", or an object with more choices, `Mpi(...)`, `Slurm(nodes=2, ...)` or
            `Ssh(...)`; None takes the best one here. Forked ranks have one hash seed, so that a set
            of strings has the same order on all of them, unlike under torchrun and with "local";
            docs/testing.md lists what else differs. With "mpi", mpiexec starts them: mpi4py's
            `MPI` is then defined on every rank, and a rank that dies ends the others.
        timeout: seconds that a communication call waits for its peers before it raises; a deadlock
            is reported long before that.
        threads: OpenMP threads of each rank; None takes max(1, cores // n). The cores are those
            that this process may use, in a container or a job its share, or as many as the variable
            DISTLAB_CORES says.
        network: a `Network` to simulate: messages take virtual time, which `clock` shows; None for
            real time.
        preload: modules imported once, before the ranks are forked; "torch._dynamo" is for ranks
            that train.
        hosts: machines that ssh reaches, with their numbers of ranks, {"nodeA": 4, "nodeB": 4};
            rank 0 is on the first. They need the same Python, torch and distlab as this machine.
            With engines="mpi" they are mpiexec's. A mapping with two methods does without ssh:
            reach(name) returns the words to put before a command to run it on a host, and
            address(name) the host's address for the other hosts; its `here` is that of this
            machine.

    Attributes:
        n, backend, engines, timeout, threads: as given, or as chosen; of engines, the name.
        last_trace: the newest `Trace`, from `trace()` or `%%px --trace`; None before the first.
        steps: what has run on the ranks since they started, for `export`.
    """

    current: Cluster | None = None
    last_trace: Trace | None = None

    def __init__(
        self,
        n: int | None = None,
        *,
        backend: str = "gloo",
        init_method: str = "tcp",
        engines: str | StartMethod | Attached | None = None,
        timeout: float = TIMEOUT,
        threads: int | None = None,
        network: Network | None = None,
        preload: Sequence[str] = (),
        hosts: Mapping[str, int] | None = None,
    ):
        self._ranks: Ranks | None = None
        self.steps: list[Step] = []
        plan = make_plan(
            n,
            backend=backend,
            init_method=init_method,
            engines=engines,
            timeout=timeout,
            threads=threads,
            network=network,
            preload=preload,
            hosts=hosts,
        )
        self._plan = plan
        self.n, self.backend, self.engines = plan.n, plan.backend, plan.engines
        self.timeout, self.threads = plan.timeout, plan.threads
        try:
            self._begin()
        finally:
            warn_of_newer_torch()

    @classmethod
    def attach(
        cls,
        where: str | os.PathLike = "default",
        *,
        backend: str = "gloo",
        timeout: float = TIMEOUT,
    ) -> Cluster:
        """Use the engines of a running ipyparallel cluster as ranks; they keep running after
        `stop`.

        Each needs the same Python, torch and distlab as this machine. `where` is the name of an
        ipyparallel profile, or the path of a connection file.
        """
        return cls(engines=connect(where), backend=backend, timeout=timeout)

    def restart(self) -> None:
        """End every rank and start new ones, without variables; attached engines cannot be
        restarted from here.
        """
        if self._plan.attached is not None:
            raise ClusterError(f"This cluster was started elsewhere: {self._plan.again}.")
        self._begin()

    @interrupts.held()
    def _begin(self) -> None:
        before, warm, plan = Cluster.current, None, self._plan
        why = f"was replaced by Cluster({plan.n})"
        if before is not None and (plan.hosts is None or before.ranks.plan.hosts == plan.hosts):
            old = before.ranks.plan
            same = (plan.engines, plan.hosts, plan.preload) == (old.engines, old.hosts, old.preload)
            # processes that it can use keep running: it starts sooner
            warm = before._end(why, keep=same)
        self._why_stopped = "did not start"
        self._ranks = Ranks.start(plan, warm)
        if Cluster.current is not None:  # hosts may be refused; then the old cluster keeps running
            Cluster.current._end(why)
        self.threads = self._ranks.plan.threads
        self.steps.clear()
        Cluster.current = self
        atexit.register(self._end, "was stopped at exit")

    @interrupts.held()
    def _end(self, why: str, keep: bool = False) -> Processes | None:
        """End the ranks; with `keep`, return their processes if another cluster can use them."""
        ranks, self._ranks = self._ranks, None
        if Cluster.current is self:
            Cluster.current = None
        if ranks is None:
            return None
        self._why_stopped = why
        atexit.unregister(self._end)
        return ranks.end(keep)

    @interrupts.held()
    def stop(self) -> None:
        """End every rank of this cluster and all that they have started; it may be called twice.

        In a notebook, the process that has forked the ranks waits for the next cluster, which then
        starts at once. If none comes, it ends after five minutes; without a notebook it ends now.
        """
        if (kept := self._end("was stopped", keep=ahead.keeps())) is not None:
            ahead.keep(kept)

    def heal(self) -> None:
        """Rebuild the process group, and replace ranks that have died with new processes; the
        others keep variables.
        """
        if gone := self.ranks.rebuild(anew=True):
            display.say(gone, sys.stdout)

    @interrupts.held()
    def interrupt(self) -> None:
        """Free every rank now and rebuild the process group; variables stay, but not on ranks that
        must be ended.
        """
        replaced = freeing.free_all(self.ranks)
        for sentence in filter(None, [self.ranks.rebuild(), *failures.not_freed(replaced)]):
            display.say(sentence, sys.stdout)

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

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

        The function, its arguments and the values travel by value: functions written in the
        notebook, closures, lambdas, tensors and modules all work. What a rank prints is shown under
        its rank.

        Args:
            ranks: those that call it, and may communicate in `fn`; None for all.
            timeout: seconds before ranks that have not returned are freed; None for no limit except
                the cluster's own, which only ends communication calls.
            check: before data moves, compare op, shape, dtype, root and reduce op of each
                collective that is not functional, and size and dtype of each message; a call that
                does not match raises MismatchError.

        Raises:
            RankError: the function raised on some rank. RankDied: a rank's process ended.
                DeadlockError: no rank can
            go on. RankTimeout: a rank did not return in time. SerializationError: something cannot
                be sent.
        """
        if not callable(fn):
            refuse(
                "fn",
                "callable",
                fn,
                "Call cluster.run(fn, *args) with the function itself.",
                wrong_type=True,
            )
        targets, packed = self.check_ranks(ranks), pickling.pack((fn, args, kwargs), PACKED)
        options = Options(timeout, check, pauses=may_pause(packed[0]), lines=lines_of(fn))
        replies = self._ask(targets, options, entry.call, *packed)
        self.steps.append(
            Step("called", tuple(targets), f"{getattr(fn, '__name__', 'a function')}(rank, ...)")
        )
        return pickling.unpack(replies)

    def call(
        self,
        fn: Callable[..., Any],
        *args: Any,
        ranks: Sequence[int] | None = None,
        timeout: float | None = None,
    ) -> list[Any]:
        """Like `run`, for a tool that sends many calls: no live view, and no step in an export."""
        targets, packed = self.check_ranks(ranks), pickling.pack((fn, args, {}), PACKED)
        return pickling.unpack(
            self._ask(targets, Options(timeout, quiet=True), entry.call, *packed)
        )

    def push(self, names: Mapping[str, Any], ranks: Sequence[int] | None = None) -> None:
        """Define variables on every rank, or on `ranks`: cluster.push({"x": 1})."""
        arguments.mapping("names", names, "names to values", 'Call cluster.push({"x": 1}).')
        targets, described = self.check_ranks(ranks), ", ".join(names)
        self._ask(targets, Options(), entry.push, *pickling.pack(names, f"A value of {described}"))
        self.steps.append(Step("pushed", tuple(targets), described))

    def pull(self, names: str | Sequence[str], ranks: Sequence[int] | None = None) -> list[Any]:
        """The values of a variable by rank; for a list of names, a list of values by rank."""
        listed, targets = isinstance(names, (list, tuple)), self.check_ranks(ranks)
        values = pickling.unpack(
            self._ask(targets, Options(), entry.pull, list(names) if listed else [names])
        )
        return values if listed else [value[0] for value in values]

    def export(self, path: str | os.PathLike, force: bool = False, slurm: bool = False) -> Export:
        """Write the `%%px` cells that have run on the ranks so far, word for word, as a script for
        torchrun.

        What failed is left out. What only the notebook has, such as a pushed value or a function
        that was run, becomes a comment that says what to define. The report lists these and says
        how to run the script.

        Args:
            path: name of the new .py file. force: whether to replace a file of that name.
            slurm: whether to write train.sbatch for train.py, too, which runs it on as many nodes
                as here; it is always written for a cluster that Slurm started.
        """
        return write(self.steps, Path(path), force, self.ranks.plan, self.ranks.hosts, slurm)

    @contextlib.contextmanager
    def trace(self, ranks: Sequence[int] | None = None) -> Iterator[Trace]:
        """Record what the ranks do: `with cluster.trace() as trace: ...`, then trace.plot() and
        trace.table().

        torch's profiler records what runs in the with block on every rank, or on `ranks`, even if
        the block raises; on a simulated cluster the trace holds what happened in virtual time.
        """
        # only now: figures of a trace take time to import
        from distlab.notebook.tracing import traced

        if self.last_trace is not None and self.last_trace.recording:
            raise ClusterError(
                "This cluster is already being traced. End that trace first: leave its with block."
            )
        with traced(self, self.check_ranks(ranks)) as self.last_trace:
            yield self.last_trace

    @contextlib.contextmanager
    def network(self, network: Network) -> Iterator[Cluster]:
        """Put the ranks on simulated machines: `with cluster.network(distlab.Network("5 us", "25
        GB/s")): ...`.

        Variables stay; groups made with dist.new_group do not: the process group is rebuilt at both
        ends of the block.
        """
        before = self.ranks.plan.network
        self._move_to(check_network(network, self.n, self.backend))
        try:
            yield self
        finally:
            if self._ranks is not None:
                self._move_to(before)

    @interrupts.held()
    def _move_to(self, network: Network | None) -> None:
        self._plan = self.ranks.plan = replace(self._plan, network=network)
        self.ranks.rebuild()

    def clock(self) -> float:
        """Virtual seconds since the group was built, on the slowest rank; the next cell starts at
        that time.
        """
        if self._plan.network is None:
            raise ClusterError(
                "This cluster has no virtual clock: it runs in real time. Call Cluster(n, network=...)."
            )
        return max(self.call(simulated.clock))

    @property
    def simulated(self) -> str:
        """What figures and tables say where times are virtual: "simulated: 8 ranks, 5 us, 25 GB/s";
        else "".
        """
        return (
            "" if self._plan.network is None else f"simulated: {self.n} ranks, {self._plan.network}"
        )

    @interrupts.held()
    def _ask(
        self, targets: list[int], options: Options, function: Callable[..., Any], *args: Any
    ) -> list[Any]:
        """The replies of some ranks to a call of a function of entry.py."""
        return Cell(
            self.ranks, targets, lambda view: view.apply_async(function, *args), options
        ).finish()

    @property
    def ranks(self) -> Ranks:
        """The processes and their group; ClusterError when they are not running."""
        if self._ranks is None:
            advice = f"Make one with distlab.Cluster({self.n}), or call restart()."
            raise ClusterError(f"This cluster {self._why_stopped}. {advice}")
        return self._ranks

    def check_ranks(self, ranks: Sequence[int] | None) -> list[int]:
        """The ranks that are meant, all for None; ArgumentError for one that is not there,
        ClusterError after stop.
        """
        everyone = list(range(self.ranks.plan.n))
        return (
            everyone
            if ranks is None
            else arguments.ranks("ranks", ranks, self.n, "Leave ranks out to mean all of them.")
        )

    def __reduce__(self) -> NoReturn:
        """Refuse to travel: a function for the ranks that uses the notebook's cluster is told so."""
        raise TypeError("a Cluster stays in the notebook; a rank has `rank` and `world_size`")

    def describe(self) -> list[dict[str, Any]]:
        """One dict for each rank: rank, pid, state ("idle", what it is doing where, or how it
        died), megabytes, host.

        Memory counts shared pages in proportion (PSS) where the system reports that.
        """
        return [] if self._ranks is None else questions.describe(self._ranks)

    def __repr__(self) -> str:
        return self._repr_mimebundle_()["text/plain"]

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        headline = f"Cluster({self.n}) {self._why_stopped}"
        if self._ranks is not None:
            headline = display.headline(self._ranks.plan, self._ranks.hosts, self.simulated)
        return display.cluster(headline, self.describe())


def current_cluster() -> Cluster:
    """The cluster of this notebook; ClusterError when there is none."""
    if Cluster.current is None:
        raise ClusterError(
            "No cluster is running here. Make one first: cluster = distlab.Cluster(4)."
        )
    return Cluster.current


# --- the cluster of this notebook, without its name ---

attach = Cluster.attach


def run(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> list[Any]:
    """`Cluster.run` of the current cluster."""
    return current_cluster().run(fn, *args, **kwargs)


def trace(ranks: Sequence[int] | None = None) -> contextlib.AbstractContextManager[Trace]:
    """`Cluster.trace` of the current cluster."""
    return current_cluster().trace(ranks)


def export(path: str | os.PathLike, force: bool = False, slurm: bool = False) -> Export:
    """`Cluster.export` of the current cluster."""
    return current_cluster().export(path, force, slurm)
