"""The exercises of notebook 00: ranks, and the first things that they do together."""

from functools import partial

import torch.distributed as dist

from distlab.checking import Exercise, Question, gathered, nothing, on_rank, returned

exercise, question = partial(Exercise, "00"), partial(Question, "00")


@exercise(cases=(None,), given=nothing)
def my_square():
    """Return the square of this rank's number.

    Hint: On every rank, `rank` is its number.
    Hint: `rank**2` is its square, and `return` hands it to the caller of the function; `print` does not.
    """
    return dist.get_rank() ** 2


@question(1)
def whose_list(answer):
    """The notebook has a list of one fruit and pushes it to four ranks. Then every rank appends a fruit to its list.
    How many fruits are in the list of the notebook?

    Hint: Did `push` send the list itself, or what was in it?
    Hint: Print `basket` in a cell without `%%px`: that is the notebook's list.

    Not 2: On each rank there are two.
    Not 5: That would be one list that all processes share.
    Otherwise: It is a number of fruits.

    Why: `push` sends a copy to each rank. Five processes have five lists, and the notebook's own still has one fruit.
    """


@exercise(worlds=(2, 3, 4))
def scale_by_rank(tensor):
    """Multiply the tensor of each rank, in place, by the rank's number.

    Hint: `tensor * rank` makes a new tensor, and leaves the old one as it was.
    Hint: `tensor *= rank` changes the tensor that the caller has.
    """
    tensor *= dist.get_rank()


@exercise()
def sum_of_squares(tensor):
    """Return, on every rank, the sum over all ranks of the squares of their tensors, element by element.

    `tensor` itself must not change.

    Hint: `dist.all_reduce(t)` replaces `t` by the sum over all ranks, so it needs a tensor of its own.
    Hint: `squares = tensor**2` is such a tensor.
    """
    return sum(theirs**2 for theirs in gathered(tensor))


@exercise(cases=(None,), given=nothing)
def my_role():
    """Return "coordinator" on rank 0, and "worker 1", "worker 2" and so on, with the rank's number, on the others.

    Hint: Every rank runs the same lines; `if rank == 0:` lets one of them do something else.
    Hint: `f"worker {rank}"` puts the number into the text.
    """
    return f"worker {dist.get_rank()}" if dist.get_rank() else "coordinator"


@exercise(worlds=(2, 3, 4), trial=returned)
def last_to_first(tensor):
    """Send the tensor of the last rank to rank 0, which returns what it received; the others return nothing.

    Hint: Two ranks do something: the last one, `world_size - 1`, and rank 0. The others do nothing at all.
    Hint: `dist.recv(t, src=...)` needs a tensor `t` to fill, of the same shape and dtype: `torch.empty_like(tensor)`.
    """
    return on_rank(0, gathered(tensor)[-1])


@question(3)
def the_culprit(answer):
    """A report says: rank 3 raised IndexError; rank 1 waited in recv(src=3), and ranks 0 and 2 in barrier().
    Which rank made the mistake?

    Hint: Waiting is no mistake. Which rank does not wait?
    Hint: Only one of them raised an exception.

    Otherwise: That rank only waited. For whom?

    Why: Rank 3 raised. Rank 1 waited for its message, and the others for both of them at the barrier.
    """


@question()
def who_waits_for_whom(answer):
    """Ranks 0 and 1 both call `dist.send` to each other first, and `dist.recv` only then. In which call are they stuck?

    Hint: A send returns when its receiver has called `recv`. When does the other rank come to its `recv`?
    Hint: Run it, and read the first sentence of the report.

    Otherwise: Which of its two calls does a rank make first?

    Why: A send waits until its receiver has come, and neither of them comes to its receive.
    """
    return str(answer).strip("`() ").removeprefix("dist.") == "send"
