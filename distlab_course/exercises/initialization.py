"""The exercises of lab 30: how ranks find each other."""

import tempfile
import time
import uuid
from datetime import timedelta
from functools import partial

import torch
import torch.distributed as dist

from distlab.checking import Exercise, gathered, nothing, question

# the trial makes the store
with_store = partial(Exercise, worlds=(1, 2, 3), cases=(None,), given=nothing)

CAUSES = {  # of the logs in the lab
    "A": "rank missing",
    "B": "world size",
    "C": "port taken",
    "D": "stale keys",
    "E": "interface",
}


class _SlowStore(dist.FileStore):
    """A store far away: what is written arrives late."""

    def set(self, key, value):
        time.sleep(0.5)
        super().set(key, value)


class _WriteOnceStore(dist.Store):
    """A store that refuses to write a key again; it has what a process group needs."""

    def __init__(self, store):
        super().__init__()
        self.store = store

    def set(self, key, value):
        if self.store.check([key]):
            raise RuntimeError(f"the key {key} is there already, from the group before")
        self.store.set(key, value)

    def get(self, key):
        return self.store.get(key)

    def wait(self, keys, *timeout):
        self.store.wait(keys, *timeout)


def new_store(kind=dist.FileStore):
    """A store for the ranks of this world, with no key in it; it waits for 2 seconds."""
    own_path = f"{tempfile.gettempdir()}/distlab-{uuid.uuid4().hex}"
    path = gathered(own_path)[0]
    store = kind(path, dist.get_world_size())
    store.set_timeout(timedelta(seconds=2))
    return store


def _wait_for(store, other):
    """Return when another rank has left, or 0.2 s after it has arrived.

    A barrier that holds the other rank back keeps it from leaving, and then the 0.2 s pass.
    """
    store.wait([f"{other} came"])
    limit = time.monotonic() + 0.2
    while not store.check([f"{other} left"]) and time.monotonic() < limit:
        time.sleep(0.01)


def _try_barrier(barrier):
    """How many ranks had arrived when this one left, in each of three rounds."""
    rank = dist.get_rank()
    n = dist.get_world_size()
    store = new_store()
    came = []
    for turn in range(3):
        dist.barrier()
        # in each round another rank comes first, and the others one by one after it
        if (rank + turn) % n != 0:
            previous = (rank - 1) % n
            _wait_for(store, f"round {turn}, rank {previous}")
        store.add(f"came {turn}", 1)
        store.set(f"round {turn}, rank {rank} came", "")
        barrier(dist.PrefixStore("barrier", store), rank, n, f"round {turn}")
        count = store.add(f"came {turn}", 0)
        came.append(str(count))
        store.set(f"round {turn}, rank {rank} left", "")
    counts = ", ".join(came)
    return f"{counts} of {n} had arrived"


@with_store("30", trial=_try_barrier)
def store_barrier(store, rank, world_size, name):
    """Block until every rank has called this function with the same name; use only the store's
    `add`, `set` and `wait`.

    It is called in three rounds, each under another name. The check notes how many ranks had
    arrived when each rank left.

    Title: 1.1 A barrier made of a store
    Hint: `store.add(key, 1)` counts the ranks that have arrived. Which rank can tell that it is the
    last one?
    Hint: The last rank to arrive sets a key for which all ranks wait: `store.wait([key])`.
    Hint: Both keys need the name in them, or the second round finds those of the first.
    """
    dist.barrier()


@question("30", 4096)
def store_reads(answer):
    """64 ranks call `init_process_group` over gloo. How many times is a key read, counting all
    ranks?

    Title: 2.1 How many reads?
    Hint: Look at the picture of 3 ranks. How many keys does each of them read?

    Otherwise: With 3 ranks there are 9 reads, 3 by each rank.

    Why: Each rank reads the address of every rank, its own included: 64 * 64 are 4096 reads, of
    only 64 keys.
    """


def _try_numbers(take):
    """What two calls on each rank have given, sorted."""
    store = new_store(_SlowStore)
    mine = [take(store), take(store)]
    numbers = []
    for theirs in gathered(mine):
        numbers += [str(number) for number in theirs]
    words = ", ".join(sorted(numbers))
    if len(set(numbers)) < len(numbers):
        words += " (the same number twice)"
    return words


@with_store("30", trial=_try_numbers)
def take_number(store):
    """Return the next unused number, counting from 0; no two calls on any rank may get the same
    one.

    Each rank calls it twice; the check compares the numbers of all ranks, sorted.

    Title: 3.1 Numbers without a launcher
    Hint: Between a `get` and a `set`, another rank may do the same. One call has to do both.
    Hint: `store.add(key, 1)` adds and returns the sum in one step, and its first sum is 1.
    """
    return store.add("taken", 1) - 1


@question("30")
def five_logs(answer):
    """Give each of the logs A to E its cause: a dict such as {"A": "port taken", "B": ...}.

    The causes: "rank missing", "world size" (the ranks disagree about it), "port taken",
    "interface" (an address that others cannot reach), "stale keys" (of an earlier attempt), and
    "wrong address" (of the store).

    Title: 4.1 Five anonymous logs
    Hint: Which ranks have reached the store, and which have passed it? Who serves it?
    Hint: "Connection refused" means that an address was read in the store. Whose address, and
    from when?

    Why: In A one client is missing; in B rank 0 expects more ranks than the others do; in C the
    port is taken; in D rank 0 has read the address of a rank 1 that is gone; in E two machines
    exchange loopback addresses.
    """
    given = dict(answer)
    right = []
    wrong = []
    for log, cause in CAUSES.items():
        if given.get(log) == cause:
            right.append(log)
        else:
            wrong.append(log)
    if wrong:
        return f"Right: {', '.join(right) or 'none'}. Read again: {', '.join(wrong)}."
    return True


def _try_building_again(build):
    """The sum over the ranks in each of three groups, and how many keys these have written.

    The keys count as far as they have to be written.
    """
    rank = dist.get_rank()
    n = dist.get_world_size()
    sums = []
    store = new_store()
    for cycle in range(3):
        build(_WriteOnceStore(store), rank, n, cycle)
        total = torch.tensor(10**rank)
        dist.all_reduce(total)
        sums.append(total.item())
    keys = min(store.num_keys(), 3 * n)  # those that have to be written
    return f"sums {sums} with {keys} keys"


@with_store("30", worlds=(1, 2), trial=_try_building_again)
def build_again(store, rank, world_size, cycle):
    """Leave the default group and build it again on `store`, which is the same store each time.

    `cycle` counts the calls from 0. Three groups in a row must add up correctly, and none may write
    a key that an earlier one wrote.

    Title: 5.1 Build the group again
    Hint: `dist.destroy_process_group()` leaves it; `dist.init_process_group("gloo", store=...,
    rank=..., ...)` joins.
    Hint: `dist.PrefixStore(prefix, store)` puts a prefix before every key. Which prefix does no
    other cycle have?
    """
    dist.destroy_process_group()
    own = dist.PrefixStore(f"cycle {cycle}", store)
    dist.init_process_group("gloo", store=own, rank=rank, world_size=world_size)
