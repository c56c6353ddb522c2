"""`Cluster`: code that runs on ranks with a process group.

Runs on the notebook's kernel, where a person makes one; rank/entry.py replies on the ranks.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from distlab import arguments, simulated
from distlab.arguments import refuse
from distlab.compat import warn_of_newer_torch
from distlab.diagnosis import afterwards
from distlab.errors import ClusterError
from distlab.notebook import ahead, freeing, interrupts, overview, paragraphs, questions
from distlab.notebook.attached import Attached, attach_to
from distlab.notebook.cell import Cell, Options, may_pause, source_lines_of
from distlab.notebook.export import Export, ScriptStep, write
from distlab.notebook.name_clashes import NameClashes
from distlab.notebook.plan import TIMEOUT, Plan, check_network, make_plan
from distlab.notebook.processes import Processes
from distlab.notebook.ranks import Ranks
from distlab.notebook.start_methods import StartMethod
from distlab.rank import entry
from distlab.wire import pickling
from distlab.wire.preemption import GRACE

if TYPE_CHECKING:
    from distlab.notebook.preempting import Preemption
    from distlab.simulated.network import Network
    from distlab.traces.trace import Trace

PACKED = "The function or one of its arguments"  # what cannot be sent


@dataclass(frozen=True)
class Ended:
    """What a cluster has instead of ranks when it has none.

    Attributes:
        why: how that came, as the end of a sentence about the cluster, such as "was stopped".
    """

    why: str


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
            "slurm" or "ssh", or an object with more choices: `Mpi(...)`, `Slurm(nodes=2, ...)` or
            `Ssh(...)`; None takes the best one here. With "mpi", mpiexec starts them: mpi4py's
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
        fresh: whether each rank is an interpreter of its own, as under torchrun, which takes a few
            seconds longer. Forked ranks, the default on Linux, have one hash seed, so that a set of
            strings has the same order on all of them; docs/testing.md lists what else they share.

    Attributes:
        n: number of ranks.
        backend: name of the backend of the process group.
        timeout: seconds, as given.
        of_tests: whether pytest's plugin has made it for marked tests: then a test without the mark
            may replace it.
        threads: OpenMP threads of each rank, as given or as chosen.
        engines: the name of what started the ranks, such as "fork".
        last_trace: the newest `Trace`, from `trace()` or `%%px --trace`; None before the first.
        steps: what has run on the ranks since they started, for `export`.

    Raises:
        ArgumentError: an argument breaks its rule, or does not fit another one.
        HostError: a host cannot be used.
        ClusterError: the processes did not start, or their group could not be built.
    """

    current: Cluster | None = None
    last_trace: Trace | None = None
    of_tests: bool = False

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
        fresh: bool = False,
    ):
        self._running: Ranks | Ended = Ended("did not start")
        self.steps: list[ScriptStep] = []
        self._clashes = NameClashes()
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
            fresh=fresh,
        )
        plan = self._adapted(plan)
        self._plan = plan
        self.n = plan.n
        self.backend = plan.backend
        self.engines = plan.engines
        self.timeout = plan.timeout
        self.threads = plan.threads
        try:
            self._begin()
        finally:
            warn_of_newer_torch()

    def _adapted(self, plan: Plan) -> Plan:
        """The plan as a cluster of another kind changes it."""
        return plan

    @classmethod
    def attach(
        cls,
        where: str | os.PathLike[str] = "default",
        *,
        backend: str = "gloo",
        timeout: float = TIMEOUT,
    ) -> Cluster:
        """Use the engines of a running ipyparallel cluster as ranks.

        They keep running after `stop`. Each needs the same Python, torch and distlab as this
        machine.

        Args:
            where: the name of an ipyparallel profile, or the path of a connection file.
            backend, timeout: as of `Cluster`.

        Raises:
            ClusterError: no engines are found.
            HostError: they cannot be used.
        """
        return cls(engines=attach_to(where), backend=backend, timeout=timeout)

    def restart(self) -> None:
        """End every rank and start new ones, without variables.

        Attached engines cannot be restarted from here: that is a ClusterError.
        """
        if self._plan.attached is not None:
            raise ClusterError(f"This cluster was started elsewhere: {self._plan.again}.")
        self._begin()

    @interrupts.held()
    def _begin(self) -> None:
        """Start the ranks, in place of those of the cluster that is running."""
        plan = self._plan
        why = f"was replaced by Cluster({plan.n})"
        warm = None
        before = Cluster.current
        if before is not None and plan.hosts in (None, before.ranks.plan.hosts):
            # processes that this one can use keep running: it starts sooner
            warm = before._end(why, keep=before.ranks.can_serve(plan))
        self._running = Ended("did not start")
        ranks = Ranks.start(plan, warm)
        self._running = ranks
        if Cluster.current is not None:  # hosts may be refused; then the old cluster keeps running
            Cluster.current._end(why)
        self.threads = ranks.plan.threads
        self.steps.clear()
        Cluster.current = self
        atexit.register(self._end, "was stopped at exit")

    @interrupts.held()
    def _end(self, why: str, keep: bool = False) -> Processes | None:
        """End the ranks; with `keep`, return their processes if another cluster can use them."""
        if Cluster.current is self:
            Cluster.current = None
        ranks = self._running
        if isinstance(ranks, Ended):
            return None
        self._running = Ended(why)
        atexit.unregister(self._end)
        return ranks.end(keep)

    @interrupts.held()
    def stop(self) -> None:
        """End every rank of this cluster and all that they have started; it may be called twice.

        In a notebook, the process that has forked the ranks waits for the next cluster, which then
        starts at once. If none comes, it ends after five minutes; without a notebook it ends now.
        """
        kept = self._end("was stopped", keep=ahead.keeps())
        if kept is not None:
            ahead.keep_for_next_cluster(kept)

    def heal(self) -> None:
        """Rebuild the process group, and replace ranks that have died with new processes.

        The other ranks keep their variables.
        """
        gone = self.ranks.rebuild(anew=True).words()
        if gone:
            paragraphs.say(gone, sys.stdout)

    @interrupts.held()
    def interrupt(self) -> None:
        """Free every rank now and rebuild the process group.

        Variables stay, but not on ranks that must be ended.
        """
        replaced = freeing.free_all(self.ranks)
        sentences = [self.ranks.rebuild().words(), *afterwards.not_freed(replaced)]
        for sentence in sentences:
            if sentence:
                paragraphs.say(sentence, sys.stdout)

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    @property
    def client(self) -> Any:
        """The ipyparallel Client of this cluster: all that ipyparallel can do works through it."""
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
        notebook, closures, lambdas, tensors and modules all work. A name that the function uses is
        the notebook's if the notebook has one, and otherwise the rank's own; where both have it and
        differ, the notebook says so once. What a rank prints is shown under its rank.

        Args:
            ranks: those that call it, and may communicate in `fn`; None for all.
            timeout: seconds before ranks that have not returned are freed; None for no limit except
                the cluster's own, which only ends communication calls.
            check: before data moves, compare op, shape, dtype, root and reduce op of each
                collective that is not functional, and size and dtype of each message; a call that
                does not match raises MismatchError. At the end, calls are shown that NCCL lacks.

        Raises:
            RankError: the function raised on some rank.
            RankDied: a rank's process ended.
            DeadlockError: no rank can go on.
            RankTimeout: a rank did not return in time.
            SerializationError: something cannot be sent.
        """
        if not callable(fn):
            advice = "Call cluster.run(fn, *args) with the function itself."
            refuse("fn", "callable", fn, advice, wrong_type=True)
        targets = self.check_ranks(ranks)
        packed = pickling.pack((fn, args, kwargs), PACKED)
        options = Options(timeout, check, pauses=may_pause(packed[0]), lines=source_lines_of(fn))
        replies = self._ask(targets, options, entry.call_function, *packed)
        name = getattr(fn, "__name__", "a function")
        self.steps.append(ScriptStep("called", tuple(targets), f"{name}(rank, ...)"))
        self._clashes.show(fn, targets, replies)
        return pickling.unpack(replies)

    def call(
        self,
        fn: Callable[..., Any],
        *args: Any,
        ranks: Sequence[int] | None = None,
        timeout: float | None = None,
    ) -> list[Any]:
        """Like `run`, for a tool that sends many calls: no live view, and no step in an export."""
        targets = self.check_ranks(ranks)
        packed = pickling.pack((fn, args, {}), PACKED)
        options = Options(timeout, quiet=True)
        return pickling.unpack(self._ask(targets, options, entry.call_function, *packed))

    def push(self, names: Mapping[str, Any], ranks: Sequence[int] | None = None) -> None:
        """Define variables on every rank, or on `ranks`: cluster.push({"x": 1})."""
        arguments.mapping("names", names, "names to values", 'Call cluster.push({"x": 1}).')
        targets = self.check_ranks(ranks)
        described = ", ".join(names)
        packed = pickling.pack(names, f"A value of {described}")
        self._ask(targets, Options(), entry.push, *packed)
        self.steps.append(ScriptStep("pushed", tuple(targets), described))

    def pull(self, names: str | Sequence[str], ranks: Sequence[int] | None = None) -> list[Any]:
        """The values of a variable by rank; for a list of names, a list of values by rank."""
        targets = self.check_ranks(ranks)
        several = isinstance(names, (list, tuple))
        wanted = list(names) if several else [names]
        values = pickling.unpack(self._ask(targets, Options(), entry.pull, wanted))
        if several:
            return values
        return [value for (value,) in values]

    def export(
        self, path: str | os.PathLike[str], force: bool = False, slurm: bool = False
    ) -> Export:
        """Write the `%%px` cells that have run on the ranks so far as a script for torchrun.

        They are written word for word. What failed is left out. What only the notebook has, such as
        a pushed value or a function that was run, becomes a comment that says what to define. The
        report lists these and says how to run the script.

        Args:
            path: name of the new .py file.
            force: whether to replace a file of that name.
            slurm: whether to write train.sbatch for train.py, too, which runs it on as many nodes
                as here; it is always written for a cluster that Slurm started.
        """
        return write(self.steps, Path(path), force, self.ranks.plan, self.ranks.hosts, slurm)

    @contextlib.contextmanager
    def trace(self, ranks: Sequence[int] | None = None) -> Iterator[Trace]:
        """Record what the ranks do: `with cluster.trace() as trace: ...`.

        Afterwards trace.plot() and trace.table() show it. torch's profiler records what runs in the
        with block on every rank, or on `ranks`, even if the block raises; on a simulated cluster
        the trace holds what happened in virtual time.
        """
        # only now: figures of a trace take time to import
        from distlab.notebook.tracing import record_trace

        if self.last_trace is not None and self.last_trace.recording:
            raise ClusterError(
                "This cluster is already being traced. Leave the with block of that trace first."
            )
        with record_trace(self, self.check_ranks(ranks)) as self.last_trace:
            yield self.last_trace

    @contextlib.contextmanager
    def preempt(
        self,
        rank: int | str,
        *,
        after: float | None = None,
        step: int | None = None,
        grace: float = GRACE,
    ) -> Iterator[Preemption]:
        """Preempt a rank in what runs in a with block, as a scheduler does.

            with cluster.preempt(1, step=20, grace=5) as preempted:
                cluster.run(train)
            print(preempted.report)

        The rank gets SIGTERM, and SIGKILL if it has not ended after the grace time. The report says
        whether a handler ran and when, what the rank and the others did, and whether what was saved
        is complete.

        Args:
            rank: the rank; "all" for all ranks and their child processes, as Slurm does.
            after: seconds after the first cell or call in the block began.
            step: how many optimizer steps the rank has finished; instead of `after`.
            grace: seconds between SIGTERM and SIGKILL.

        Raises:
            ArgumentError: an argument breaks its rule.
            ClusterError: the ranks were not forked, or are being preempted already.
        """
        # only now: most programs are not preempted
        from distlab.notebook.preempting import order_of, preempting

        order = order_of(rank, after, step, self.n)
        with preempting(self, [order], grace) as found:
            yield found

    @contextlib.contextmanager
    def network(self, network: Network) -> Iterator[Cluster]:
        """Put the ranks on simulated machines while a with block runs.

        For example, `with cluster.network(distlab.Network("5 us", "25 GB/s")): ...`. Variables
        stay; groups made with dist.new_group do not, because the process group is rebuilt at both
        ends of the block.
        """
        before = self.ranks.plan.network
        after = check_network(network, self.n, self.backend)
        try:
            self._move_to(after)
        except BaseException:  # also where a person has interrupted the wait for busy ranks
            self._plan_on(before)
            raise
        try:
            yield self
        finally:
            if isinstance(self._running, Ranks):  # the block may have stopped them
                self._move_to(before)

    @interrupts.held()
    def _move_to(self, network: Network | None) -> None:
        """Rebuild the group on simulated machines, or on real ones for None."""
        self._plan_on(network)
        self.ranks.rebuild()

    def _plan_on(self, network: Network | None) -> None:
        """Have the group be on these machines from its next rebuild, before the next cell."""
        self._plan = replace(self._plan, network=network)
        self.ranks.plan_on(network)

    def clock(self) -> float:
        """Virtual seconds since the group was built, on the slowest rank.

        The next cell starts at that time. A cluster in real time has no such clock: ClusterError.
        """
        if self._plan.network is None:
            no_clock = "This cluster has no virtual clock, because it runs in real time."
            raise ClusterError(f"{no_clock} Call Cluster(n, network=...).")
        times: list[float] = self.call(simulated.clock)
        return max(times)

    @property
    def simulated(self) -> str:
        """What figures and tables say where times are virtual, else "".

        For example, "simulated: 8 ranks, 5 us, 25 GB/s".
        """
        if self._plan.network is None:
            return ""
        return f"simulated: {self.n} ranks, {self._plan.network}"

    @interrupts.held()
    def _ask(
        self, targets: list[int], options: Options, function: Callable[..., Any], *args: Any
    ) -> list[Any]:
        """The replies of some ranks to a call of a function of entry.py."""

        def send(view: Any) -> Any:
            return view.apply_async(function, *args)

        return Cell.send(self.ranks, targets, send, options).finish()

    @property
    def ranks(self) -> Ranks:
        """The processes and their group; ClusterError if they are not running."""
        if isinstance(self._running, Ended):
            advice = f"Make one with distlab.Cluster({self.n}), or call restart()."
            raise ClusterError(f"This cluster {self._running.why}. {advice}")
        return self._running

    def check_ranks(self, ranks: Sequence[int] | None) -> list[int]:
        """The ranks that are meant, all for None.

        Raises:
            ArgumentError: one of them is not there.
            ClusterError: the ranks are not running.
        """
        n = self.ranks.plan.n
        if ranks is None:
            return list(range(n))
        return arguments.ranks("ranks", ranks, n, "Leave out ranks= to use all of them.")

    def __reduce__(self) -> NoReturn:
        """Refuse to travel, and so refuse a function for the ranks that uses the cluster."""
        raise TypeError("a Cluster stays in the notebook; a rank has `rank` and `world_size`")

    def describe(self) -> list[dict[str, Any]]:
        """One dict for each rank, with what it does; none for a cluster that has ended.

        Its keys are rank, pid, state ("idle", what it is doing where, or how it died), megabytes
        and host. Memory counts shared pages in proportion (PSS) where the system reports that.
        """
        if isinstance(self._running, Ended):
            return []
        return questions.describe(self._running)

    def __repr__(self) -> str:
        return self._repr_mimebundle_()["text/plain"]

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        running = self._running
        if isinstance(running, Ended):
            headline = f"Cluster({self.n}) {running.why}"
        else:
            headline = overview.headline_of(running.plan, running.hosts, self.simulated)
        return overview.bundle_of_cluster(headline, self.describe())


def current_cluster() -> Cluster:
    """The cluster of this notebook; ClusterError if there is none."""
    if Cluster.current is None:
        raise ClusterError(
            "No cluster is running here. Make one first: cluster = distlab.Cluster(4)."
        )
    return Cluster.current


# --- the cluster of this notebook, without its name ---


def run(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> list[Any]:
    """`Cluster.run` of the current cluster."""
    return current_cluster().run(fn, *args, **kwargs)


def trace(ranks: Sequence[int] | None = None) -> contextlib.AbstractContextManager[Trace]:
    """`Cluster.trace` of the current cluster."""
    return current_cluster().trace(ranks)
