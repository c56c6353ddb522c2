"""The exercises of notebook 08: calls, references, threads, backward; a parameter server, requests in batches, agents.

Remote calls do not run in the small worlds of a check: what they are made of is written by hand there.
"""

from functools import partial

import torch
import torch.distributed as dist

from distlab.checking import COLLECTIVES, Exercise, Limits, Question, Seen, formula, gathered, on_rank, returned

exercise, question = partial(Exercise, "08"), partial(Question, "08")
messages = partial(exercise, worlds=(2, 3, 4), forbids=COLLECTIVES)


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


@messages(
    cases=(4, 1, 1000),
    given=lambda rank, n, length: (torch.zeros(length) if rank else torch.arange(1.0, length + 1),),
    trial=returned,
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
    Otherwise: What does each of the three calls change?

    Why: 5 + 1 + 100: `to_here()` brought a copy to rank 0, and only that copy got the 10.
    """


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


@question(4)
def mean_staleness(answer):
    """Five trainers take 200 steps each, and each fetches the parameters as soon as its push is done. The staleness of
    a push is the number of other trainers' updates since its fetch. What is the most that its mean over all 1000
    pushes can be?

    Hint: Between its fetches and its pushes a trainer misses every update of the others once, and none twice.
    Hint: The others make 800 updates. How many pushes of its own does a trainer share them out to?

    Not 5: Its own updates do not count.
    Not 800: That is the sum over a trainer's pushes.
    Not 0: Nobody waits.
    Otherwise: How many updates do the others make while one trainer makes one?

    Why: A trainer's 200 pushes share at most the 800 updates of the others, each of which counts once: 4 on average.
    """


@formula("08", (1.0, 0.5, 0, 4), (1.0, 0.5, 2, 8), (-3.0, 0.1, 5, 12))
def delayed_descent(w, lr, delay, steps):
    """Return the list of `w` after each of the steps of gradient descent on w² / 2, whose gradient at w is w itself.

    Each step uses the gradient of `delay` steps ago; the first steps use that of the first `w`.

    Hint: Keep all values of w in a list. At which place is the one of `delay` steps ago?
    Hint: `max(0, step - delay)` is a place in it, also in the first steps.
    """
    path = [w]
    for step in range(steps):
        path.append(path[-1] - lr * path[max(0, step - delay)])
    return path[1:]


def _in_this_order(fn, parameter, lr, order):
    """The server on rank 0, and trainers that push in this order, whatever it does; what each of them got back."""
    dist.barrier()  # none may run ahead into the next call
    rank, replies = dist.get_rank(), []
    if rank == 0:
        return fn(parameter, lr, len(order)), parameter
    for turn, trainer in enumerate(order):
        if trainer == rank:
            if turn and order[turn - 1] != rank:
                dist.recv(torch.zeros(1), src=order[turn - 1])
            dist.send(torch.full_like(parameter, 2.0**turn), dst=0)
            dist.recv(reply := torch.empty_like(parameter), src=0)
            replies.append(reply.tolist())
            if order[turn + 1 : turn + 2] not in ([], [rank]):
                dist.send(torch.zeros(1), dst=order[turn + 1])
    return Seen(f"gets {replies}", "A trainer gets the parameters with all updates so far, its own included.")


@exercise(
    worlds=(2, 3, 4),
    cases=([1, 1], [1, 2, 3, 1, 2, 3], [1, 1, 2, 1, 3, 3, 1, 2], [3, 1, 2, 1, 1, 1, 3]),
    given=lambda rank, n, order: (torch.zeros(1), 0.5, [1 + (trainer - 1) % (n - 1) for trainer in order]),
    trial=_in_this_order,
)
def serve_trainers(parameter, lr, pushes):
    """Rank 0 is the parameter server, and it alone calls this; the other ranks are trainers that we have written.

    A trainer sends a gradient, like `parameter`, and then receives the parameters after its own update. All trainers
    begin with `parameter` as it is given. `pushes` gradients come in all, from any trainer at any time.
    Subtract `lr` times each gradient from `parameter`, in place, and return the list of the pushes' staleness: how many
    updates there were since that trainer got its parameters.

    Hint: `dist.recv(gradient)` without `src` takes a message from any rank, and returns that rank.
    Hint: Keep for each trainer the number of updates that were in the parameters it got: a dict, 0 to begin with.

    Stuck: The trainers push in whatever order they are ready: from whom does the server receive?
    """
    seen, staleness = {}, []
    for version in range(pushes):
        gradient = torch.empty_like(parameter)
        trainer = dist.recv(gradient)
        staleness.append(version - seen.get(trainer, 0))
        parameter -= lr * gradient
        dist.send(parameter, dst=trainer)
        seen[trainer] = version + 1
    return staleness


@question((100.0, 8000 / 17))
def requests_a_second(answer):
    """A forward takes 9 ms, and 1 ms more for each request in it. Eight clients have each one request under way, and
    send the next when the answer is there. How many requests a second are answered one by one, and how many in batches
    of 8? Give a pair of numbers, within 1 %.

    Hint: One by one a forward takes 9 + 1 ms; for 8 requests 9 + 8 ms.

    Not (100.0, 800.0): Eight requests in a batch take 17 ms.
    Not (100.0, 59.0): Those are batches, of 8 requests each.
    Otherwise: 1 request in 9 + 1 ms, 8 requests in 9 + 8 ms: how many in a second?

    Why: 1 / 10 ms is 100 a second, and 8 / 17 ms is 470: the 9 ms are paid once for 8 requests.
    """


def _clients(fn, row):
    """Rank 0 serves; the clients' requests come from the last rank first. How the model was called, and the answers."""
    dist.barrier()  # none may run ahead into the next call
    rank, last, calls = dist.get_rank(), dist.get_world_size() - 1, []

    def model(batch):
        calls.append(len(batch))
        return batch * 10 + batch.sum(dim=-1, keepdim=True)

    if rank == 0:
        fn(model, len(row))
        rows = " and ".join(map(str, calls))
        return Seen(f"forward of {rows} rows" if calls else "no forward", "Stack the rows, and call `model` once.")
    if rank < last:
        dist.recv(torch.zeros(1), src=rank + 1)
    dist.send(row, dst=0)
    if rank > 1:
        dist.send(torch.zeros(1), dst=rank - 1)
    answer = torch.empty_like(row)
    dist.recv(answer, src=0)
    return answer


@exercise(
    worlds=(2, 3, 4),
    cases=(1, 2, 5),
    given=lambda rank, n, length: (torch.arange(length) + 1.0 + 3 * rank,),
    trial=_clients,
)
def answer_in_one(model, length):
    """Rank 0 is the server, and it alone calls this; every other rank is a client that we have written.

    Each client sends one row of `length` numbers, whenever it is ready, and then receives its answer, a row as long.
    `model` takes a batch of rows, [clients, length], and returns as many: call it once.

    Hint: Collect rows as they come, each in a tensor of its own, and remember from whom: `dist.recv(row)` returns that.
    Hint: `torch.stack(rows)` makes the batch; its answers are in the order of the rows.

    Stuck: No client may be first in line: does the server wait for one that comes later?
    """
    clients = range(dist.get_world_size() - 1, 0, -1)  # as they come here; an answer cannot know
    rows = [torch.empty(length) for _ in clients]
    for client, row in zip(clients, rows, strict=True):
        dist.recv(row, src=client)
    for client, answer in zip(clients, model(torch.stack(rows)), strict=True):
        dist.send(answer, dst=client)


@question((720_896, 360_448))
def bytes_of_hidden(answer):
    """The hidden values of a step are 8 x 44 x 64 numbers of float64. They go from rank 1 to rank 2, and their gradient
    comes back from there. How many bytes travel in a step if rank 0 passes on both of them, and how many if rank 2
    fetches them from rank 1 itself? Give a pair of numbers.

    Hint: A float64 has 8 bytes. How many messages of that size are on each of the two ways?

    Not (360448, 180224): The gradient of the hidden values is as large as they are.
    Not (180224, 0): The hidden values have to come to rank 2 on either way.
    Not (360448, 0): The hidden values have to come to rank 2 on either way.
    Not (90112, 45056): Those are numbers: how many bytes does one have?
    Otherwise: Count the messages, forward and backward.

    Why: Through rank 0 there are four messages of 180,224 bytes, 1-0-2 forward and 2-0-1 backward; without it, two.
    """


@exercise(
    cases=((1.0, 3), (0.5, 2), (0.9, 0)),
    given=lambda rank, n, case: ([float((3 * step + rank) % 4) for step in range(case[1] + 2 * rank)], case[0]),
    trial=returned,
)
def advantages(rewards, gamma):
    """Return a tensor with the advantage of each step of this rank's game: its return minus the mean return.

    `rewards` is the list of the rewards of the game's steps, of another length on each rank. The return of a step is
    its reward + `gamma` times the return of the next step. The mean is that over all steps of all ranks.

    Hint: Go through the rewards from the last to the first, and carry the return along.
    Hint: An all-reduce of two numbers, the sum of the returns and how many they are, gives every rank the mean.
    """
    found = [sum(gamma**later * reward for later, reward in enumerate(rewards[step:])) for step in range(len(rewards))]
    everyone = [one for part in gathered(found) for one in part]
    return torch.tensor(found) - (sum(everyone) / len(everyone) if everyone else 0.0)
