"""The exercises of lab 41: a parameter server, requests in batches, gradients that are late.

One server is written with messages, and one with the futures that `async_execution` lets a call
return. Gradients are late because several calls are under way at a time.
"""

import threading
from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch.distributed import rpc
from torch.distributed.rpc.functions import async_execution

from distlab.checking import Seen, exercise, on_rank, question
from distlab_course.exercises.workers import DONE_HERE, Calls, agents


@question("41", 4)
def mean_staleness(answer):
    """Five trainers take 200 steps each, and each fetches the parameters as soon as its push is
    done. The staleness of a push is the number of other trainers' updates since its fetch. How
    large can its mean over all 1000 pushes be at most, rounded to a whole number?

    Title: 2.1 How stale on average?
    Hint: Between its fetches and its pushes a trainer misses each update of the others at most
    once.
    Hint: The others make 800 updates. Over how many of its pushes does a trainer spread them?

    Not 5: Its own updates do not count.
    Not 800: That is the sum over a trainer's pushes.
    Not 0: No trainer waits, so the others update while it computes.
    Otherwise: How many updates do the others make while one trainer makes one?

    Why: A trainer's 200 pushes share at most the 800 updates of the others, each of which counts
    once: 4 on average.
    """


# which trainer pushes, one after the other
ORDERS = ([1, 1], [1, 2, 3, 1, 2, 3], [1, 1, 2, 1, 3, 3, 1, 2], [3, 1, 2, 1, 1, 1, 3])


def _parameter_and_order(rank, n, order):
    """A parameter, the learning rate, and which trainers push one after the other."""
    trainers = [1 + (trainer - 1) % (n - 1) for trainer in order]  # there may be fewer
    return torch.zeros(1), 0.5, trainers


def _try_serving(fn, parameter, lr, order):
    """The server on rank 0, and trainers that push in this order, whatever it does.

    Returns what each of them got back.
    """
    dist.barrier()  # none may run ahead into the next call
    rank = dist.get_rank()
    if rank == 0:
        return fn(parameter, lr, len(order)), parameter
    replies = []
    befores = [None, *order[:-1]]
    afters = [*order[1:], None]
    turns = zip(order, befores, afters, strict=True)
    for turn, (trainer, before, after) in enumerate(turns):
        if trainer != rank:
            continue
        # each trainer waits for the one before it, and lets the one after it go on
        if before not in (None, rank):
            dist.recv(torch.zeros(1), src=before)
        replies.append(_reply_to_push(torch.full_like(parameter, 2.0**turn)))
        if after not in (None, rank):
            dist.send(torch.zeros(1), dst=after)
    why = "A trainer gets the parameters with all updates so far, its own included."
    return Seen(f"gets {replies}", why)


def _reply_to_push(gradient):
    """Push a gradient to the server on rank 0; the parameters that come back."""
    dist.send(gradient, dst=0)
    parameter = torch.empty_like(gradient)
    dist.recv(parameter, src=0)
    return parameter.tolist()


@exercise("41", worlds=(2, 3, 4), cases=ORDERS, given=_parameter_and_order, trial=_try_serving)
def serve_trainers(parameter, lr, pushes):
    """Apply the gradients of all trainers as they arrive, and return a list with the staleness of
    each.

    Rank 0 is the parameter server, and it alone calls this; the other ranks are trainers that we
    have written. A trainer sends a gradient, of the shape of `parameter`, and then receives the
    parameters after its own update. All begin with `parameter` as it is given. `pushes` gradients
    arrive in all, from any trainer at any time. Subtract `lr` times each gradient from `parameter`,
    in place. The staleness of a push is how many updates there were since that trainer got its
    parameters.

    Title: 2.2 A server without RPC
    Hint: `dist.recv(gradient)` without `src` takes a message from any rank, and returns that rank.
    Hint: Keep, for each trainer, the number of updates in the parameters that it got last: a dict,
    0 to begin with.

    Stuck: The trainers push in whatever order they are ready: from whom does the server receive?
    """
    seen = {}
    staleness = []
    for version in range(pushes):
        gradient = torch.empty_like(parameter)
        trainer = dist.recv(gradient)
        staleness.append(version - seen.get(trainer, 0))
        parameter -= lr * gradient
        dist.send(parameter, dst=trainer)
        seen[trainer] = version + 1
    return staleness


@question("41", (100.0, 8000 / 17))
def requests_a_second(answer):
    """A forward takes 9 ms, and 1 ms more for each request in it. Eight clients each have one
    request under way, and send the next when the answer is there. How many requests a second are
    answered one by one, and how many in batches of 8? Give a pair of numbers, within 1 %.

    Title: 4.1 Requests a second
    Hint: One by one a forward takes 9 + 1 ms; for 8 requests 9 + 8 ms.

    Not (100.0, 800.0): Eight requests in a batch take 17 ms.
    Not (100.0, 59.0): 59 batches a second, but each answers 8 requests.
    Otherwise: 1 request in 9 + 1 ms, 8 requests in 9 + 8 ms: how many in a second?

    Why: 1 / 10 ms is 100 a second, and 8 / 17 ms is 470: the 9 ms are paid once for 8 requests.
    """


class NotedLock:
    """A lock that counts how often it is taken."""

    def __init__(self):
        self.lock = threading.Lock()
        self.taken = 0

    def acquire(self, *how):
        """Take the lock."""
        has_it = self.lock.acquire(*how)
        self.taken += 1
        return has_it

    def release(self):
        """Give the lock back."""
        self.lock.release()

    def __enter__(self):
        return self.acquire()

    def __exit__(self, *error):
        self.release()


class Tried:
    """On rank 0 a function that is tried, its server, and what it has returned.

    The pushes come one after the other, so that a wrong function fails in the same way every time.
    """

    def __init__(self, function, server):
        self.function = function
        self.server = server
        self.answers = []
        self.turns = threading.Condition()
        self.turn = 0

    def push(self, turn, gradient):
        """The function's answer to a push, when those before it have been made."""
        with self.turns:
            self.turns.wait_for(lambda: self.turn == turn)
            try:
                answer = self.function(self.server, gradient)
                self.answers.append(answer)
            finally:
                self.turn += 1
                self.turns.notify_all()
        return answer


_tried: list[Tried] = []  # on rank 0, one


@async_execution
def push(turn, gradient):
    """A trainer's push, which runs on rank 0."""
    (tried,) = _tried
    return tried.push(turn, gradient)


def _own_gradients(rank, n, steps):
    """The gradients of this rank, one for each step; rank 0 has none."""
    if rank == 0:
        return (None,)
    return ([torch.tensor([gradients[rank - 1], 1.0]) for gradients in steps],)


def _try_pushes(fn, gradients):
    """Three trainers push their gradients to rank 0, each the next when it has its answer.

    On rank 0 the answers once all have ended, the parameter and the lock; elsewhere the answers as
    they arrived.
    """
    if dist.get_rank() == 0:
        server = SimpleNamespace(parameter=torch.zeros(2), lr=0.5, trainers=3, gradients=[])
        server.answer = torch.futures.Future()
        server.lock = NotedLock()
        _tried[:] = [Tried(fn, server)]
    replies = []
    with agents():
        turns = range(dist.get_rank() - 1, 100, 3)
        for turn, gradient in zip(turns, gradients or (), strict=False):
            reply = rpc.rpc_sync("worker0", push, args=(turn, gradient))
            replies.append(reply.tolist())
    if dist.get_rank() > 0:
        return Seen(f"is answered {replies}")
    values = [answer.value() for answer in _tried[0].answers]
    why = "Two threads may push at once: each takes `server.lock` for its push."
    lock = Seen(f"takes the lock {server.lock.taken} times", why)
    return {"lock": lock, "answers": values, "parameter": server.parameter}


@exercise(
    "41",
    worlds=(4,),
    cases=(
        ([3.0, 6.0, 9.0],),
        ([3.0, 6.0, 9.0], [2.0, 2.0, 2.0]),
        ([3.0, 6.0, 9.0], [2.0, 2.0, 2.0], [8.0, 0.0, 1.0]),
    ),
    given=_own_gradients,
    trial=_try_pushes,
)
def push_together(server, gradient):
    """One trainer's push to a synchronous parameter server: every trainer is answered when all have
    pushed.

    Add `gradient` to the list `server.gradients`, and return the future `server.answer`. The push
    that makes the list as long as `server.trainers` also subtracts `server.lr` times the mean
    gradient from `server.parameter`, in place, empties the list, puts a new future into
    `server.answer` for the next step, and completes the old one with the parameter. `server.lock`
    lets one thread in at a time. Rank 0 is the server, where a thread calls this for each push of
    the trainers on ranks 1, 2 and 3.

    Title: 4.2 A server that answers all at once
    Hint: Take the future first: `answer = server.answer`, and return it in either case.
    Hint: `torch.stack(server.gradients).mean(0)` is the mean; `answer.set_result(...)` answers
    every trainer.

    Stuck: Which future does the push that completes a step return, and is the list empty for the
    next step?
    """
    with server.lock:
        answer = server.answer
        server.gradients.append(gradient)
        if len(server.gradients) == server.trainers:
            mean = torch.stack(server.gradients).mean(0)
            server.parameter -= server.lr * mean
            server.gradients = []
            server.answer = torch.futures.Future()
            answer.set_result(server.parameter.clone())
    return answer


def slope(w):
    """The gradient of w² / 2, and a note that this rank has computed it."""
    DONE_HERE.append(f"slope({w})")
    return w


def _slope_and_steps(rank, n, case):
    """The gradient's function, where descent begins, the learning rate, delay and steps."""
    return slope, *case


def _try_descending(fn, gradient, w, lr, delay, steps):
    """On rank 0 the path, and the calls before the first wait; on rank 1 whether it computes."""
    calls = Calls()
    path = None
    with agents():
        if dist.get_rank() == 0:
            path = calls.try_out(fn, gradient, w, lr, delay, steps)
    if dist.get_rank() == 1:
        computed = "all" if len(DONE_HERE) >= steps else len(DONE_HERE)
        return Seen(f"computes {computed} of {steps} gradients", "Rank 1 computes each gradient.")
    early = len(calls.before_first_wait())
    why = "A delay of d means that d + 1 calls are under way: start them before the first wait."
    return on_rank(0, (Seen(f"calls before the first wait: {early}", why), path))


@exercise(
    "41",
    worlds=(4,),
    cases=((1.0, 0.5, 0, 4), (1.0, 0.5, 2, 8), (-3.0, 0.1, 5, 12)),
    given=_slope_and_steps,
    trial=_try_descending,
)
def delayed_descent(gradient, w, lr, delay, steps):
    """Return the list of `w` after each of the steps of gradient descent, whose gradients are
    `delay` steps old.

    Rank 0 alone calls this, and "worker1" computes every gradient, by `gradient(w)`. Keep
    `delay + 1` calls under way: start that many with the first `w`. Each step takes `lr` times the
    result of the oldest call from `w`, and then starts a call with the new `w`.

    Title: 5.1 Descent with a delay
    Hint: Keep the futures of `rpc.rpc_async("worker1", gradient, args=(w,))` in a list: the oldest
    is `futures.pop(0)`.
    Hint: After the wait for the oldest future and the step, append a new future to the list.
    """
    futures = [rpc.rpc_async("worker1", gradient, args=(w,)) for _ in range(delay + 1)]
    path = []
    for _ in range(steps):
        w = w - lr * futures.pop(0).wait()
        path.append(w)
        futures.append(rpc.rpc_async("worker1", gradient, args=(w,)))
    return path
