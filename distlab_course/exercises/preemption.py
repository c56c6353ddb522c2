"""The exercises of lab 34: ranks that stop together, and what is left of an epoch."""

import torch
import torch.distributed as dist

from distlab.checking import Limits, exercise, question, returned


@question("34", 7)
def seconds_until_handler(answer):
    """Rank 1 has called all_reduce at second 1, and rank 0 calls it at second 10. Rank 1 gets
    SIGTERM at second 3, and has 30 seconds of grace. How many seconds after the signal does its
    handler run?

    Title: 2.1 When does it run?
    Hint: Which line of Python does the main thread of rank 1 execute while it waits inside gloo?
    Not 0: The operating system delivers the signal at once, but Python only notes it, and calls
    the handler between two instructions of the main thread.
    Not 10: That is the second at which the call returns; the signal arrived at second 3.
    Not 27: The grace period ends then, but the handler runs long before.
    Otherwise: When does the call that rank 1 waits in return?
    Why: The all_reduce returns at second 10, and the next instruction of Python runs after the
    handler. With 5 seconds of grace it would never run.
    """


# for each rank in turn: whether it was asked to stop; the list is repeated for larger worlds
ASKED = ((False,), (True,), (True, False, False, False), (False, False, False, True))


def _asked(rank, n, case):
    """Whether this rank was asked; in a smaller world the last rank stands for those left out."""
    mine = case[rank % len(case)]
    is_last = rank == n - 1
    left_out = is_last and any(case[n:])
    return (mine or left_out,)


@exercise(
    "34",
    cases=ASKED,
    given=_asked,
    limits=Limits(calls=1),
)
def stop_together(asked):
    """Return True on every rank if any rank was asked to stop, and False on every rank otherwise.

    `asked` is whether this rank was asked. Every rank calls this after each step, so make it one
    collective call.

    Title: 3.1 One answer for all
    Hint: Each rank puts its own answer into a tensor of one number. Which all-reduce makes one
    answer of them?
    Hint: `dist.all_reduce(flag, op=dist.ReduceOp.MAX)` leaves 1 on every rank if any rank had 1.
    Stuck: Does every rank make the call, also one that was not asked?
    Limit: Can one call tell every rank the answer?
    """
    flag = torch.tensor(int(asked))
    dist.all_reduce(flag, op=dist.ReduceOp.MAX)
    return bool(flag)


# for each rank in turn: after which of its steps it gets the signal; 0 for never
SIGNALS = ((0,), (2,), (0, 3), (3, 2), (0, 0, 0, 4), (5,))
STEPS = 5


def _signal_of(rank, n, case):
    """The batches, and after which step this rank gets the signal."""
    mine = case[rank % len(case)]
    return list(range(STEPS)), mine


def _try_loop(fn, batches, signal_after):
    """What `fn` returns, and in which order it made steps and saved."""
    done = []

    def step(batch):
        total = torch.tensor(batch)
        dist.all_reduce(total)
        done.append(f"step {batch}")

    def asked():
        return 0 < signal_after <= len(done)

    def save(number):
        dist.barrier()
        done.append(f"save {number}")

    return fn(batches, step, asked, save), done


@exercise("34", cases=SIGNALS, given=_signal_of, trial=_try_loop)
def train_until_asked(batches, step, asked, save):
    """Make a step for each batch; when any rank was asked to stop, save once on all ranks and stop.

    `step(batch)` makes a step, and communicates. `asked()` says whether this rank has received
    SIGTERM. `save(number)` saves, together with all ranks, that so many steps are done. Return how
    many steps were made. If no rank is asked, make all steps and save nothing.

    Title: 3.2 The loop
    Hint: After each step: have you or has anybody else been asked? That is exercise 3.1.
    Hint: All ranks must save after the same step, also those that were not asked.
    Stuck: Can one rank be in `save` while another one makes its next step?
    """
    for number, batch in enumerate(batches, start=1):
        step(batch)
        flag = torch.tensor(int(asked()))
        dist.all_reduce(flag, op=dist.ReduceOp.MAX)
        if flag:
            save(number)
            return number
    return len(batches)


@question("34", [180, 80])
def steps_repeated(answer):
    """A step takes 2 seconds. After every 100 steps `async_save` begins a save, which takes 170
    seconds while training continues. SIGTERM arrives right after step 780, with 30 seconds of
    grace. How many steps must the next run repeat, if the program ends at once, and if it waits for
    the save that is under way? Give both as a list.

    Title: 4.1 How much is lost?
    Hint: When did the save after step 700 begin, and when will it be complete?
    Hint: 80 steps after step 700 are 160 seconds.
    Not [80, 80]: The save after step 700 needs 170 seconds, and only 160 have passed.
    Not [80, 180]: The program that waits keeps more.
    Not [180, 180]: The save after step 700 needs 10 more seconds, and there are 30.
    Otherwise: Which save is complete, the one after step 600 or the one after step 700?
    Why: The save of step 700 is 10 seconds short. A program that waits for its future within the
    grace period continues from step 700, and a program that does not from step 600.
    """


ORDER = [7, 2, 9, 4, 0, 5, 8, 1, 6, 3]


def _read_by_rank_0(rank, n, seen):
    """The order and what was seen of it, where the checkpoint was read."""
    if rank == 0:
        return ORDER, seen
    return None, None


@exercise("34", cases=(0, 4, 5, 9, 10), given=_read_by_rank_0, trial=returned)
def samples_left(order, seen):
    """Return the list of the samples that this rank still has to see in an epoch that was
    interrupted.

    Only rank 0 has read the checkpoint, and the others get None twice. `order` is the order of all
    samples in this epoch, of which all ranks together have seen the first `seen`. The rest is dealt
    in turn: the first sample to rank 0, the next one to rank 1. Every rank gets the same number of
    samples, so leave out the last ones if they are not enough for all ranks. The number of ranks
    may have changed.

    Title: 5.1 The rest of an epoch
    Hint: `dist.broadcast_object_list(found, src=0)` fills the list `found` on every rank with what
    rank 0 has in its own, which has the same length.
    Hint: What all ranks have seen together is the beginning of `order`, however many ranks there
    were.
    Hint: `left[rank::world_size]` deals out in turn, and each rank gets `len(left) // world_size`.
    Stuck: Does every rank call the broadcast?
    """
    found = [order, seen]
    dist.broadcast_object_list(found, src=0)
    order, seen = found
    rank = dist.get_rank()
    world_size = dist.get_world_size()
    left = order[seen:]
    each = len(left) // world_size
    return left[rank : each * world_size : world_size]
