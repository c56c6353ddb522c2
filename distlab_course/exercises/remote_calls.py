"""The exercises of lab 40: calls, several at once, references, threads.

`call_on` writes a call with messages. The others use torch's own functions, with the agents of
workers.py.
"""

import math

import torch.distributed as dist
from torch.distributed import rpc

from distlab.checking import COLLECTIVES, Seen, exercise, gathered, on_rank, question
from distlab_course.exercises.workers import DONE_HERE, Calls, agents, done_here


def square(number):
    """Which rank runs this, and the number squared."""
    return f"rank {dist.get_rank()}: {number**2}"


# which rank is called, rank 1 or the last one, and what it is to do
CALLS = (
    (0, square, (3,)),
    (1, square, (4,)),
    (0, max, ([2, 5],)),
    (1, divmod, (7, 2)),
    (1, divmod, (1, 0)),
)


def _request(rank, n, case):
    """The rank that is called, and what rank 0 has for it."""
    last, function, args = case
    to = n - 1 if last else 1
    if rank == 0:
        return to, function, args
    return to, None, None


def _try_call(fn, *given):
    """What a call gives, in words: a value or an exception."""
    try:
        got = fn(*given)
    except ZeroDivisionError:
        return f"rank {dist.get_rank()} raises ZeroDivisionError"
    why = ""
    if isinstance(got, Exception):
        why = "An exception is a value only on its way: raise it on rank 0."
    return Seen(f"{got!r} is returned", why)


@exercise("40", worlds=(2, 3, 4), forbids=COLLECTIVES, cases=CALLS, given=_request, trial=_try_call)
def call_on(to, function, args):
    """Run `function(*args)` on rank `to`, and return on rank 0 what it returns; the other ranks
    return None.

    Every rank calls it with the same `to`, but only rank 0 has `function` and `args`. If the
    function raises an exception, rank 0 raises it, and rank `to` does not.

    Title: 2.1 A call by hand
    Hint: `dist.send_object_list([function, args], dst=to)` is the request; `dist.recv_object_list`
    fills a list.
    Hint: The callee wraps the call in `try`, and sends either `[value, None]` or `[None, error]`.

    Stuck: Which ranks take part in a call? Does the callee also send an answer if the function
    raises?
    """
    function, args = gathered((function, args))[0]
    try:
        result = function(*args)
    except ZeroDivisionError as error:
        result = error
    result_of_callee = on_rank(0, gathered(result)[to])
    if isinstance(result_of_callee, Exception):
        raise result_of_callee
    return result_of_callee


def factorial(number):
    """The factorial of a number, and a note that this rank has computed it."""
    DONE_HERE.append(f"serves factorial({number})")
    return math.factorial(number)


def _function_and_numbers(rank, n, numbers):
    """A function, and at most a number for each worker but rank 0's."""
    return factorial, numbers


def _try_spreading(fn, *given):
    """On rank 0 the results, and which workers are called before the first wait.

    The others say what they have served.
    """
    calls = Calls()
    results = None
    with agents():
        if dist.get_rank() == 0:
            results = calls.try_out(fn, *given)
    if dist.get_rank() == 0:
        return results, calls.order()
    return done_here()


@exercise(
    "40",
    worlds=(4,),
    cases=([3], [3, 4, 6], [4, 1, 5], [2, -1, 3], [-2, 0]),
    given=_function_and_numbers,
    trial=_try_spreading,
)
def spread_calls(function, numbers):
    """Call `function(number)` for each number, the first one on "worker1", the second on "worker2"
    and so on.

    Rank 0 alone calls this, and the other ranks serve. Return the list of the results in the order
    of the numbers, with None where the function raised. All calls must be under way before the
    first wait for a result.

    Title: 3.1 Spread the calls
    Hint: `rpc.rpc_async(f"worker{i}", function, args=(number,))` returns a future at once: collect
    them in a list.
    Hint: A future's `wait()` raises if the function raised: wait for each one in a `try`, `except
    Exception`.
    """
    futures = []
    for i, number in enumerate(numbers, start=1):
        futures.append(rpc.rpc_async(f"worker{i}", function, args=(number,)))
    results = []
    for future in futures:
        try:
            results.append(future.wait())
        except Exception:
            results.append(None)
    return results


@question("40", 106)
def copy_or_original(answer):
    """Rank 0 makes `box = rpc.remote("worker1", Box, args=(5,))`, whose method `add` adds to its
    number and returns it. It calls `box.rpc_sync().add(1)`, `box.to_here().add(10)`, and
    `box.rpc_sync().add(100)`. What does the last return?

    Title: 4.1 Copy or original
    Hint: Two of the three calls run on rank 1. Which object does the other one change?

    Not 116: The 10 went to a copy: on which rank is the object that `to_here()` returns?
    Not 105: And the 1?
    Otherwise: What does each of the three calls change?

    Why: 5 + 1 + 100: `to_here()` brought a copy to rank 0, and only that copy got the 10.
    """


class Adder:
    """A number that can be added to, with notes of where that is done."""

    def __init__(self, start):
        self.value = start
        DONE_HERE.append("makes the object")

    def add(self, number):
        """Add to the number; the sum."""
        self.value += number
        DONE_HERE.append(f"adds {number}")
        return self.value


def make_adder(start):
    """An Adder, on the rank that runs this."""
    return Adder(start)


def _worker_and_numbers(rank, n, case):
    """A worker, what makes the object, and numbers."""
    to, numbers = case
    return to, make_adder, numbers


def _try_adding(fn, *given):
    """The last sum on rank 0, and on each rank whether it makes the object, and what it adds."""
    total = None
    with agents():
        if dist.get_rank() == 0:
            total = fn(*given)
    why = (
        "`rpc.remote` makes the object on another worker, and `reference.rpc_sync().add(number)` "
        "adds to it there."
    )
    return {"done": done_here(why), "sum": total}


@exercise(
    "40",
    worlds=(4,),
    cases=(("worker1", [5]), ("worker2", [1, 2, 3]), ("worker3", [10, -4, 7, 1])),
    given=_worker_and_numbers,
    trial=_try_adding,
)
def add_up_on(to, make, numbers):
    """Make one object with `make(0)` on worker `to`, add each of the numbers to it there, and
    return the last sum.

    Rank 0 alone calls this. The object has a number, and a method `add(number)`, which adds to it
    and returns the sum.

    Title: 4.2 Add where the object is
    Hint: `rpc.remote(to, make, args=(0,))` makes the object there, and returns a reference to it.
    Hint: A proxy calls a method where the object is: `reference.rpc_sync().add(number)`.
    """
    reference = rpc.remote(to, make, args=(0,))
    for number in numbers:
        total = reference.rpc_sync().add(number)
    return total


@question("40", 6)
def threads_of_ping(answer):
    """Rank 0 calls `ping(9)` on rank 1, which calls `ping(8)` on rank 0, and so on until `ping(0)`
    returns. Each call waits for the next. What is the smallest `num_worker_threads` with which it
    ends?

    Title: 5.1 Threads of ping
    Hint: Rank 0's first call is made by its cell, and not by a thread that serves.
    Hint: How many of the ten calls does each rank serve at the same time, and which thread takes in
    an answer?

    Not 5: Five calls wait on rank 1 when ping(0) returns. Which thread of rank 1 takes in its
    answer?
    Not 10: Those are all the calls. Which rank serves which?
    Not 9: The calls take turns between two ranks.
    Otherwise: At ping(0), how many calls has rank 1 begun and not ended?

    Why: Rank 1 serves ping(9), ping(7), ... ping(1), five calls that all wait, and a sixth thread
    takes in the answer.
    """
