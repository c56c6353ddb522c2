"""A comparison that the ranks of a test make by themselves: their world with one process.

Runs on every rank; the fixture `same_as_one_process` of testing/on_rank.py calls it.
"""

from __future__ import annotations

import copy
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch.distributed as dist

from distlab.comparison.given import check_program
from distlab.comparison.records import PERTURBED_RUNS, RankRecord, WatchOptions
from distlab.comparison.verdict import Comparison, compared
from distlab.comparison.watching import entry
from distlab.rank import group
from distlab.rank.cluster_store import connect_to_store
from distlab.rank.this_rank import THIS_RANK
from distlab.rank.waits import waiting
from distlab.wire.rendezvous import Meeting

LOOK_SECONDS = 0.002  # between two looks at who has come


def compare_in_test(
    train: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Comparison:
    """Call train(rank, world_size, *args, **kwargs) in this world and in one process.

    The world and the group of one process are built for it. Afterwards the group is built again:
    groups that the test has made before are gone.

    Runs on: every rank of a test.

    Returns:
        the same comparison on every rank.

    Raises:
        ArgumentError: the program does not take these arguments.
        Whatever it raises.
    """
    check_program(train, args, kwargs)
    meeting = THIS_RANK.meeting
    if meeting is None:
        raise RuntimeError("this process has not joined a group")
    ranks = _Ranks(meeting)

    def run(n: int, options: WatchOptions) -> RankRecord:
        ranks.build(n)
        own_args, own_kwargs = copy.deepcopy((args, kwargs))  # the run before may have changed them
        return entry.watch_program(ranks.rank, n, train, own_args, own_kwargs, options)

    def run_in_one_process() -> Comparison:
        reference = run(1, WatchOptions(detailed=True))
        perturbed = [run(1, WatchOptions(perturbation=k)) for k in PERTURBED_RUNS]
        worlds = {ranks.n: records} if ranks.n > 1 else {}
        return compared([reference], [[one] for one in perturbed], worlds)

    records = ranks.gather(run(ranks.n, WatchOptions(detailed=True)))
    return ranks.same_on_all(run_in_one_process)


class _Ranks:
    """The ranks of a test, which meet in the store of their cluster.

    Args:
        meeting: where they have met last.

    Attributes:
        rank: the number of this one.
        n: how many there are.
    """

    def __init__(self, meeting: Meeting):
        self.rank = THIS_RANK.rank
        self.n = meeting.world_size
        self._meeting = meeting
        self._built: Counter[int] = Counter()  # how many worlds, by their size

    def build(self, n: int) -> None:
        """Leave the group, and build one of the first `n` ranks."""
        self._built[n] += 1
        name = f"{self._meeting.name}-{n}-{self._built[n]}"
        hosts = self._meeting.hosts[:n]
        group.build(self.rank, replace(self._meeting, name=name, world_size=n, hosts=hosts))

    def gather(self, record: RankRecord) -> list[RankRecord]:
        """The records of all ranks, on rank 0; an empty list on the others."""
        self._wait_for("arrived", range(self.n))
        self.build(self.n)
        records: list[Any] = [None] * self.n if self.rank == 0 else []
        dist.gather_object(record, records or None)
        return records

    def same_on_all(self, compute: Callable[[], Comparison]) -> Comparison:
        """What rank 0 computes, on every rank, with a new group of all ranks.

        Raises:
            Whatever it raises, on rank 0; on the others a RuntimeError.
        """
        failure: Exception | None = None
        result: Comparison | None = None
        if self.rank == 0:
            try:
                result = compute()
            except Exception as error:
                failure = error
        self._wait_for("computed", [0])
        self.build(self.n)
        results = [result]
        dist.broadcast_object_list(results)
        if failure is not None:
            raise failure
        if results[0] is None:
            raise RuntimeError("Freed while it waited for the run of one process, which failed.")
        return results[0]

    def _wait_for(self, what: str, ranks: Sequence[int]) -> None:
        """Wait until some ranks have come here; for as long as that takes.

        Args:
            what: a name of this wait, the same on every rank.
            ranks: which ones.
        """
        of_cluster = connect_to_store(self._meeting.host, self._meeting.port)
        store = dist.PrefixStore(self._meeting.name, of_cluster)
        store.add(what, int(self.rank in ranks))
        others = [rank for rank in ranks if rank != self.rank]
        with waiting("in a comparison", others) as wait:
            while store.add(what, 0) < len(ranks):
                wait.check()
                time.sleep(LOOK_SECONDS)
