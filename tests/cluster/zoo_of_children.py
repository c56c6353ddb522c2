"""Programs that communicate in processes which a rank has forked, and which have none of its connections."""

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
    """RuntimeError: This process was forked from rank 0, by a DataLoader worker or multiprocessing, and has none of its connections: communicate on the rank itself."""  # noqa: E501
    for _ in DataLoader(Communicating(), num_workers=1, multiprocessing_context="fork"):
        pass


@breaks(2, error="RankError", check=True)
def a_checked_dataset_that_communicates_in_a_worker(rank, n):
    """communicate on the rank itself."""
    for _ in DataLoader(Communicating(), num_workers=1, multiprocessing_context="fork"):
        pass


# --- right ones ---


def what_a_child_gets(function, *args):
    """What a function returns in a forked process."""
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    child = context.Process(target=lambda: answers.put(function(*args)))
    child.start()
    answer = answers.get()
    child.join()
    return answer


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
    found = what_a_child_gets(outcomes, calls)
    dist.send(ones(), dst=following)
    awaited.wait()
    begun.wait()
    dist.barrier()
    return all(words.startswith(f"{REFUSED} {rank},") for words in found)


def sum_in_own_group(rank, path):
    dist.destroy_process_group()
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)
    total = ones()
    dist.all_reduce(total)
    dist.all_reduce(total, group=dist.new_group([0, 1]))
    dist.destroy_process_group()
    return total.tolist()


def children_with_a_group_of_their_own(rank, n):
    """Two of each rank, with their parent's group gone."""
    path = os.path.join(tempfile.mkdtemp(), "group")
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    children = [context.Process(target=lambda r=r: answers.put(sum_in_own_group(r, path))) for r in range(2)]
    for child in children:
        child.start()
    found = [answers.get() for _ in children]
    for child in children:
        child.join()
    return found == [[4.0, 4.0]] * 2


def a_dataset_that_asks_only_who_it_is(rank, n):
    def numbered(items):
        return dist.get_rank(), dist.get_world_size(), len(items)

    loader = DataLoader(range(4), batch_size=2, num_workers=1, collate_fn=numbered, multiprocessing_context="fork")
    return list(loader) == [(rank, n, 2)] * 2
