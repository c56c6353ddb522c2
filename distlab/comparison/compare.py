"""`compare`: does a training program on several ranks do the same as in one process?

Runs on the notebook's kernel, or in pytest. The program runs in one world after the other, made of
the ranks of a cluster; entry.py looks at it there, and verdict.py says what was found.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from distlab import arguments
from distlab.arguments import refuse
from distlab.comparison.findings import Cause
from distlab.comparison.given import EXAMPLE, check_program
from distlab.comparison.records import PERTURBED_RUNS, RankRecord, WatchOptions
from distlab.comparison.verdict import Comparison, compared
from distlab.comparison.watching import entry
from distlab.diagnosis.afterwards import NEXT_STEP
from distlab.errors import ArgumentError, ClusterError, RanksFailed
from distlab.notebook import paragraphs
from distlab.notebook.cluster import PACKED, Cluster
from distlab.notebook.ranks import Ranks
from distlab.progress_bar import progress_bar
from distlab.rank.this_rank import THIS_RANK
from distlab.wire import pickling

UNSTEADY = "The ranks do not do the same twice."
UNSTEADY_REASONS = (
    "Usual reasons: an operation with async_op=True that nobody waits for, or something that a "
    "process keeps from one run to the next."
)
MOST_SEED = 2**31  # numpy's seeds end at 2**32, and rank r takes seed + r


def compare(
    train: Callable[..., Any],
    worlds: Sequence[int] = (1, 2, 4),
    *args: Any,
    seed: int = 0,
    timeout: float | None = None,
    **kwargs: Any,
) -> Comparison:
    """Run a training program in one process and on several ranks: does it do the same?

    train(rank, world_size, *args, **kwargs) is called on a world of one rank and on worlds of
    several, with the same seeds. It takes its part of the work by `rank` and `world_size`, and
    steps an optimizer; nothing in it is written for the comparison. At each step the gradients and
    the values of all parameters are compared, and so are the rows, the losses and the random
    states. In one process the program runs twice more, with its numbers changed by one unit of
    rounding: what that changes is what rounding may change. A world that differs, and one process,
    run once more, to find out why.

    Dropout is left out in every run, because masks over other parts of a batch can never be equal.
    What the program prints is shown only if it fails. Progress is shown while it runs, and is not
    saved.

    The worlds are made from the ranks of the running cluster, whose group is rebuilt afterwards:
    variables stay, groups made with dist.new_group do not. Where no cluster runs, one is started,
    and stopped at the end. A program finds the default group and the variables that torchrun gives
    it, and may destroy that group, or make its own.

    Runs on: the notebook's kernel, or a script, or pytest; `train` runs on the ranks.

    Args:
        train: the program; it travels to the ranks by value, as with `Cluster.run`.
        worlds: numbers of ranks; the smallest world is what the others are compared with.
        args, kwargs: further arguments of `train`.
        seed: of torch's, numpy's and Python's random numbers on rank 0; rank r begins with
            seed + r.
        timeout: seconds that one run may take; None for no limit.

    Returns:
        a `Comparison`: true if every world did the same as the smallest one. Its repr says why not,
        with the lines of the program.

    Raises:
        ArgumentError: an argument breaks its rule, or the running cluster is too small.
        RankError, RankDied, DeadlockError, RankTimeout: the program failed; the message says in
            which world. Interrupted, where a person has ended it.
        ClusterError: this is a rank.
        SerializationError: the program, or an argument, cannot be sent.
    """
    _refuse_on_rank()
    sizes = _check_worlds(worlds)
    check_program(train, args, kwargs)
    arguments.whole_number("seed", seed, 0, MOST_SEED)
    if timeout is not None:
        timeout = arguments.seconds("timeout", timeout)
    # also has a module of the learner's travel by value, as that of a function for `Cluster.run`
    pickling.pack((train, args, kwargs), PACKED)
    with _cluster_of(sizes[-1]) as cluster:
        program = Program(cluster, train, args, kwargs, seed, timeout)
        with _group_restored(cluster.ranks):
            return _verdict_on(program, sizes)


def _refuse_on_rank() -> None:
    """Refuse to start clusters on a rank, each of which would start its own."""
    if THIS_RANK.meeting is not None:
        raise ClusterError(
            f"distlab.compare makes worlds of ranks, and this is rank {THIS_RANK.rank}: call it in "
            "the notebook, without %%px, or in a test without the mark. A test on ranks has the "
            "fixture same_as_one_process(train, ...)."
        )


def _check_worlds(worlds: Any) -> list[int]:
    """The sizes of the worlds, from the smallest on."""
    rule = "two or more different numbers of ranks"
    advice = f"{EXAMPLE} Arguments of train follow after the worlds."
    if not isinstance(worlds, Sequence) or isinstance(worlds, (str, bytes)):
        refuse("worlds", rule, worlds, advice, wrong_type=True)
    for n in worlds:
        arguments.whole_number("each of worlds", n, 1, advice=advice)
    if len(worlds) < 2 or len(set(worlds)) < len(worlds):
        refuse("worlds", rule, worlds, advice)
    return sorted(worlds)


@contextlib.contextmanager
def _cluster_of(n: int) -> Iterator[Cluster]:
    """The running cluster, or one of `n` ranks that is stopped at the end.

    That of marked tests is not used: its size and its options are those of another test.
    """
    running = Cluster.current
    if running is None or running.of_tests:
        # processes that were started in the same way are used again
        preload = () if running is None else running.ranks.plan.preload
        with _started(n, preload) as started:
            try:
                yield started
            except RanksFailed as error:
                error.args = (NEXT_STEP.sub("", str(error)), *error.args[1:])
                raise
        return
    if running.n < n:
        possible = tuple(size for size in (1, 2, 4, 8) if size <= running.n)
        fewer = f"distlab.compare(train, {possible}), or "
        advice = f"Call {fewer if running.n > 1 else ''}distlab.Cluster({n}) first."
        refuse("worlds", f"of at most {running.n} ranks, as the cluster has", n, advice)
    yield running


def _started(n: int, preload: Sequence[str]) -> Cluster:
    """A new cluster; where this machine has no room for it, the error speaks of worlds."""
    try:
        return Cluster(n, preload=preload)
    except ArgumentError as error:
        error.args = (f"The largest of worlds needs a cluster of {n} ranks. {error}",)
        raise


# --- runs ---


@dataclass(frozen=True)
class Program:
    """What is run, and where.

    Attributes:
        cluster: whose ranks the worlds are made of.
        train: the function.
        args, kwargs: its arguments, after `rank` and `world_size`.
        seed: of rank 0.
        timeout: seconds that a run may take; None for no limit.
    """

    cluster: Cluster
    train: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    seed: int
    timeout: float | None

    def run(self, n: int, options: WatchOptions) -> list[RankRecord]:
        """Run it once on a world of `n` ranks; what was seen, by rank."""
        options = replace(options, seed=self.seed)
        self.cluster.ranks.rebuild(world=n)
        try:
            return self.cluster.call(
                entry.watch_program,
                self.train,
                self.args,
                self.kwargs,
                options,
                ranks=range(n),
                timeout=self.timeout,
            )
        except (RanksFailed, KeyboardInterrupt) as error:
            name = getattr(self.train, "__name__", "the program")
            what = "failed" if isinstance(error, RanksFailed) else "was interrupted"
            first = f"{name} {what} {_run_words(n, options)}:"
            error.args = (f"{first}\n{error}".rstrip(), *error.args[1:])
            raise


def _run_words(n: int, options: WatchOptions) -> str:
    """Which run it is, in words."""
    where = "in one process" if n == 1 else f"in the world of {n} ranks"
    if options.perturbation is not None:
        where += ", with numbers that are changed by a rounding"
    return where


@contextlib.contextmanager
def _group_restored(ranks: Ranks) -> Iterator[None]:
    """Have the group of all ranks be built again after the block, also if it fails.

    It is built before as well: what ends then is the learner's, and said; later it may be groups
    that the program has made.
    """
    gone = ranks.rebuild().words()
    if gone:
        paragraphs.say(gone, sys.stdout)
    try:
        yield
        ranks.rebuild()
    except BaseException:
        # by the next cell: what has failed here matters more than what that may raise
        ranks.broken = True
        raise


def _verdict_on(program: Program, sizes: Sequence[int]) -> Comparison:
    """Run a program in worlds of these sizes, the smallest first, and compare what it did.

    What differs runs once more, and is looked at in detail. Meanwhile it is shown how far this has
    got.
    """
    smallest, *others = sizes
    with progress_bar(1 + len(PERTURBED_RUNS) + len(others)) as bar:

        def run(n: int, options: WatchOptions) -> list[RankRecord]:
            bar.set_postfix_str(_run_words(n, options))
            records = program.run(n, options)
            bar.update()
            return records

        reference = run(smallest, WatchOptions())
        perturbed = [run(smallest, WatchOptions(perturbation=k)) for k in PERTURBED_RUNS]
        seen = {n: run(n, WatchOptions()) for n in others}
        first = compared(reference, perturbed, seen)
        differing = {finding.world_size for finding in first.findings} & set(others)
        if not differing:
            return first
        bar.total += 1 + len(differing)
        reference = run(smallest, WatchOptions(detailed=True))
        for n in sorted(differing):
            del seen[n]  # two records of a large model take much memory
            seen[n] = run(n, WatchOptions(detailed=True))
        return _with_passing(first, compared(reference, perturbed, seen))


def _with_passing(first: Comparison, second: Comparison) -> Comparison:
    """The second verdict, with the mistakes that only the first one found: they come and go."""
    found_again = {finding.world_size for finding in second.findings}
    findings = []
    differences = dict(second.differences)
    for finding in first.findings:
        n = finding.world_size
        if n in found_again or n not in differences or finding.hinders:
            continue
        details = (f"Only one of two runs shows it. {finding.sentence}", UNSTEADY_REASONS)
        findings.append(
            replace(
                finding, cause=Cause.UNREPEATABLE, sentence=UNSTEADY, details=details, factor=None
            )
        )
        differences[n] = first.differences[n]
    return replace(second, findings=(*findings, *second.findings), differences=differences)
