"""The exercises of lab 00: ranks, and the first things that they do together."""

import torch.distributed as dist

from distlab.checking import exercise, gathered, nothing, on_rank, question, returned


@exercise("00", cases=(None,), given=nothing)
def my_square():
    """Return the square of this rank's number.

    Title: 1.1 A number of its own
    Hint: On every rank, `rank` is its own number.
    Hint: `rank**2` is its square. `return` hands it to whatever called the function; `print` only
    shows it.
    """
    return dist.get_rank() ** 2


@exercise("00", worlds=(2, 3, 4))
def scale_by_rank(tensor):
    """Multiply the tensor of each rank, in place, by the rank's number.

    Title: 2.1 In place
    Hint: `tensor * rank` makes a new tensor and leaves the old one as it was.
    Hint: `tensor *= rank` changes the tensor that the caller has.
    """
    tensor *= dist.get_rank()


@exercise("00", cases=(None,), given=nothing)
def my_role():
    """Return "coordinator" on rank 0, and "worker 1", "worker 2" and so on, with the rank's number,
    on the others.

    Title: 3.1 Roles
    Hint: Every rank runs the same lines; those under `if rank == 0:` are run by rank 0 only.
    Hint: `f"worker {rank}"` puts the number into the text.
    """
    rank = dist.get_rank()
    if rank == 0:
        return "coordinator"
    return f"worker {rank}"


@exercise("00", worlds=(2, 3, 4), trial=returned)
def last_to_first(tensor):
    """Send the tensor of the last rank to rank 0, which returns what it received; the others return
    nothing.

    Title: 3.2 From the last to the first
    Hint: Two ranks act: the last one, which is rank `world_size - 1`, and rank 0. The others do
    nothing at all.
    Hint: `dist.recv(t, src=...)` needs a tensor `t` to fill, of the same shape and dtype:
    `torch.empty_like(tensor)`.
    """
    return on_rank(0, gathered(tensor)[-1])


@exercise("00")
def sum_of_squares(tensor):
    """Return, on every rank, the sum over all ranks of the squares of their tensors, element by
    element.

    `tensor` itself must not change.

    Title: 4.1 Sum of squares
    Hint: `dist.all_reduce(t)` overwrites `t` with the sum over all ranks, so do not give it
    `tensor` itself.
    Hint: `squares = tensor**2` is a new tensor. `dist.all_reduce` returns nothing; the sum is in
    the tensor.
    """
    return sum(theirs**2 for theirs in gathered(tensor))


@question("00")
def who_waits_for_whom(answer):
    """Ranks 0 and 1 both call `dist.send` first and only then `dist.recv`. In which call are they
    stuck?

    Title: 6.1 Two polite senders
    Hint: A send returns only after its receiver has called `recv`. When does the other rank get to
    its `recv`?
    Hint: Run it, and read the first sentence of the report.

    Otherwise: Which of its two calls does a rank make first?

    Why: A send waits until its receiver has called `recv`, and neither rank reaches its `recv`.
    """
    call = str(answer).strip("`() ")
    return call in ("send", "dist.send")


@question("00", 120.0)
def product_of_five(answer):
    """Five ranks run `hello.py` with `op=dist.ReduceOp.PRODUCT`. Which number does each of them
    print?

    Title: 7.1 A script of your own
    Hint: Rank r contributes r + 1. What do the five ranks contribute?
    Hint: `torchrun --standalone --nproc-per-node 5 product.py` starts five ranks of a script that
    you have saved as `product.py`.

    Not 15.0: That is the sum of the five numbers. Does your copy have the `op`?
    Not 24.0: That is the product on four ranks. How many are to run it?
    Not 0.0: Rank 0 contributes 0 + 1.
    Otherwise: Multiply the numbers that the five ranks contribute.

    Why: The ranks contribute 1, 2, 3, 4 and 5, and 1 · 2 · 3 · 4 · 5 = 120, on every rank.
    """
