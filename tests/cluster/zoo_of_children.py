"""Programs that communicate in forked processes, which have none of a rank's connections."""

import functools
import multiprocessing
import os
import tempfile

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.utils.data import DataLoader, Dataset

from tests.cluster.zoo import breaks, ones

REFUSED = "This process was forked from rank"


class Communicating(Dataset):
    """Data whose items are added up over the ranks, which only the rank itself can do."""

    def __len__(self):
        return 4

    def __getitem__(self, index):
        item = torch.tensor([index])
        dist.all_reduce(item)
        return item


@breaks(2, error="RankError")
def a_dataset_that_communicates_in_a_worker(rank, n):
    """RuntimeError: This process was forked from rank 0, by a DataLoader worker or multiprocessing,
    and has none of its connections: communicate on the rank itself.
    """
    for _ in DataLoader(Communicating(), num_workers=1, multiprocessing_context="fork"):
        pass


@breaks(2, error="RankError", check=True)
def a_checked_dataset_that_communicates_in_a_worker(rank, n):
    """communicate on the rank itself."""
    for _ in DataLoader(Communicating(), num_workers=1, multiprocessing_context="fork"):
        pass


# --- right ones ---


def in_children(*calls):
    """What each call returns, in a forked process of its own, all at once."""
    context = multiprocessing.get_context("fork")
    answers = [context.SimpleQueue() for _ in calls]
    children = [
        context.Process(target=lambda call=call, its=its: its.put(call()))
        for call, its in zip(calls, answers, strict=True)
    ]
    for child in children:
        child.start()
    for child in children:
        child.join()
    codes = [child.exitcode for child in children]
    assert codes == [0] * len(calls), codes
    return [its.get() for its in answers]


def outcomes(calls):
    """How each call fails."""
    found = []
    for call in calls:
        try:
            call()
            found.append("nothing")
        except RuntimeError as error:
            found.append(str(error))
    return found


def every_call_of_a_child_is_refused(rank, n):
    """It waits for nothing, and the rank itself goes on as before."""
    following = (rank + 1) % n
    total = ones()
    begun = dist.all_reduce(total, async_op=True)
    awaited = dist.irecv(ones(), src=(rank - 1) % n)
    calls = [
        dist.barrier,
        begun.wait,
        awaited.wait,
        lambda: dist.send(ones(), dst=following),
        lambda: dist.irecv(ones(), src=following),
        lambda: dist.all_gather_object([None] * n, rank),
        lambda: dist.new_group([rank]),
        lambda: dist.new_group(),
        lambda: functional.all_reduce(ones(), "sum", dist.group.WORLD),
    ]
    (found,) = in_children(lambda: outcomes(calls))
    dist.send(ones(), dst=following)
    awaited.wait()
    begun.wait()
    dist.barrier()
    return all(words.startswith(f"{REFUSED} {rank},") for words in found)


def a_group_that_only_a_child_tries_to_make(rank, n):
    """It waits for nobody, and the ranks make another one under the same number."""
    found = in_children(lambda: outcomes([dist.new_group])) if rank == 0 else []
    total = ones()
    group = dist.new_group([0, 1])
    if rank < 2:
        dist.all_reduce(total, group=group)
    return (
        all(words.startswith(REFUSED) for (words,) in found)
        and total.tolist() == [2.0 if rank < 2 else 1.0] * 2
    )


def sums_in_own_groups(rank, paths):
    """In a group of two for each path, one after another, and in a group that these two make
    there.
    """
    dist.destroy_process_group()
    total = ones()
    for path in paths:
        dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)
        dist.all_reduce(total)
        dist.all_reduce(total, group=dist.new_group([0, 1]))
        dist.destroy_process_group()
    return total.tolist()


def children_with_groups_of_their_own(rank, n):
    """Two of each rank, with their parent's group gone."""
    with tempfile.TemporaryDirectory() as folder:
        paths = [os.path.join(folder, name) for name in ("first", "second")]
        found = in_children(
            *(functools.partial(sums_in_own_groups, number, paths) for number in range(2))
        )
    return found == [[16.0, 16.0]] * 2


def a_dataset_that_asks_only_who_it_is(rank, n):
    def numbered(items):
        return dist.get_rank(), dist.get_world_size(), len(items)

    loader = DataLoader(
        range(4), batch_size=2, num_workers=1, collate_fn=numbered, multiprocessing_context="fork"
    )
    return list(loader) == [(rank, n, 2)] * 2
