"""The exercises of notebook 08, first half: calls, references, threads, and backward through a message.

Remote calls do not run in the small worlds of a check: what they are made of is written by hand there.
"""

from functools import partial

import torch
import torch.distributed as dist

from distlab.checking import COLLECTIVES, Exercise, Limits, Question, Seen, gathered, on_rank, returned

question, messages = partial(Question, "08"), partial(Exercise, "08", worlds=(2, 3, 4), forbids=COLLECTIVES)


def square(number):
    """Which rank runs this, and the number squared."""
    return f"rank {dist.get_rank()}: {number**2}"


def _called(fn, *given):
    """What a call gives, in words: a value or an exception."""
    try:
        got = fn(*given)
    except ZeroDivisionError:
        return f"rank {dist.get_rank()} raises ZeroDivisionError"
    why = "An exception is a value only on its way: raise it on rank 0." if isinstance(got, Exception) else ""
    return Seen(f"{got!r} is returned", why)


@messages(
    cases=((0, square, (3,)), (1, square, (4,)), (0, max, ([2, 5],)), (1, divmod, (7, 2)), (1, divmod, (1, 0))),
    given=lambda rank, n, case: ((1, n - 1)[case[0]], *((None, None) if rank else case[1:])),
    trial=_called,
)
def call_on(to, function, args):
    """Run `function(*args)` on rank `to`, and return on rank 0 what it returns; the other ranks return None.

    Every rank calls it with the same `to`, but only rank 0 has `function` and `args`. Where the function raises an
    exception, rank 0 raises it, and rank `to` does not.

    Hint: `dist.send_object_list([function, args], dst=to)` is the request; `dist.recv_object_list` fills a list.
    Hint: The callee wraps the call in `try`, and sends either `[value, None]` or `[None, error]`.

    Stuck: Which ranks take part in a call? Does the callee send an answer where the function raises, too?
    """
    function, args = gathered((function, args))[0]
    answer = None
    try:
        answer = function(*args) if dist.get_rank() == to else None
    except ZeroDivisionError as error:
        answer = error
    answer = on_rank(0, gathered(answer)[to])
    if isinstance(answer, Exception):
        raise answer
    return answer


def _asked(fn, tensor):
    """The answers that a rank returns, unless two of them are one tensor."""
    answers = fn(tensor)
    if isinstance(answers, list) and len({*map(id, answers)}) < len(answers):
        return Seen("one tensor several times", "A later answer overwrites it: each needs a tensor of its own.")
    return answers


@messages(
    cases=(4, 1, 1000),
    given=lambda rank, n, length: (torch.zeros(length) if rank else torch.arange(1.0, length + 1),),
    trial=_asked,
    limits=Limits(steps=2),
)
def ask_all(tensor):
    """Rank 0 sends `tensor` to all other ranks, and each of them answers with its rank times that tensor.

    Rank 0 returns the list of answers in the order of the ranks, and the other ranks return None. On them `tensor` is
    zeros of the same shape, to receive into.

    Hint: `dist.isend` starts a question, and `dist.irecv` the receive of an answer, which needs a tensor of its own.
    Hint: Start all of them in one list of works, and only then wait for each.

    Limit: Are all questions on their way before rank 0 waits for the first answer?
    """
    return on_rank(0, [rank * gathered(tensor)[0] for rank in range(1, dist.get_world_size())])


@question(106)
def copy_or_original(answer):
    """Rank 0 makes `box = rpc.remote("worker1", Box, args=(5,))`, whose method `add` adds to its number and returns it.
    It calls `box.rpc_sync().add(1)`, `box.to_here().add(10)`, and `box.rpc_sync().add(100)`. What does the last return?

    Hint: Two of the three calls run on rank 1. Which object does the other one change?

    Not 116: The 10 went to a copy: where does the object live that `to_here()` returns?
    Not 105: And the 1?

    Why: 5 + 1 + 100: `to_here()` brought a copy to rank 0, and only that copy got the 10.
    """
    return f"{answer} is not it: what does each of the three calls change?"


@question(6)
def threads_of_ping(answer):
    """Rank 0 calls `ping(9)` on rank 1, which calls `ping(8)` on rank 0, and so on until `ping(0)` returns. Each call
    waits for the next. Which is the smallest `num_worker_threads` with which it ends?

    Hint: Rank 0's first call is made by its cell, and not by a thread that serves.
    Hint: How many of the ten calls does each rank serve at the same time, and which thread takes in an answer?

    Not 5: Five calls wait on rank 1 when ping(0) returns. Which thread of rank 1 takes in its answer?
    Not 10: Those are all calls. Which rank serves which?
    Not 9: The calls take turns between two ranks.
    Otherwise: At ping(0), how many calls has rank 1 begun and not ended?

    Why: Rank 1 serves ping(9), ping(7), ... ping(1), five calls that all wait, and a sixth thread takes in the answer.
    """


def _split(rank, n, case):
    """The batch on rank 0, and this rank's weights."""
    weights = torch.tensor(([[1.0, -1.0, 2.0], [2.0, 1.0, case]], [[1.0], [2.0], [-1.0]])[rank])
    return torch.tensor([[1.0, 2.0], [3.0, 1.0]]) if rank == 0 else None, weights.requires_grad_()


@Exercise("08", worlds=(2,), cases=(0, -3), given=_split, trial=returned, forbids=COLLECTIVES)
def split_gradient(x, weights):
    """A model is split: rank 0 has a batch `x` of 2 rows and `weights` of 2 x 3, rank 1 has `weights` of 3 x 1.

    The loss is `(hidden @ weights).square().sum()` on rank 1, where `hidden = (x @ weights).relu()` is rank 0's.
    Each rank returns the gradient of its own weights.

    Hint: A message carries numbers and no graph: rank 1 receives into `hidden = torch.zeros(2, 3)`, and then calls
    `hidden.requires_grad_()`, so that backward stops there and leaves `hidden.grad`.
    Hint: Rank 1 sends `hidden.grad`; rank 0 goes on with `hidden.backward(gradient)`.
    """
    (x, first), (_, second) = gathered((x, weights.detach()))
    own = first.requires_grad_(), second.requires_grad_()
    ((x @ first).relu() @ second).square().sum().backward()
    return own[dist.get_rank()].grad
