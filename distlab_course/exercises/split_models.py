"""The exercises of lab 42: backward through a message, bytes of a step, micro-batches."""

import torch
import torch.distributed as dist

from distlab.checking import COLLECTIVES, Seen, exercise, formula, gathered, question, returned
from distlab_course.exercises.workers import DRIVER, Reference, Workers


def _batch_and_weights(rank, n, case):
    """The batch on rank 0, and this rank's weights."""
    if rank == 0:
        batch = torch.tensor([[1.0, 2.0], [3.0, 1.0]])
        weights = torch.tensor([[1.0, -1.0, 2.0], [2.0, 1.0, case]])
    else:
        batch = None
        weights = torch.tensor([[1.0], [2.0], [-1.0]])
    return batch, weights.requires_grad_()


@exercise(
    "42", worlds=(2,), cases=(0, -3), given=_batch_and_weights, trial=returned, forbids=COLLECTIVES
)
def split_gradient(x, weights):
    """Return the gradient of this rank's weights, of a model that is split over two ranks.

    Rank 0 has a batch `x` of 2 rows and `weights` of 2 x 3, rank 1 has `weights` of 3 x 1. Rank 0
    computes `hidden = (x @ weights).relu()`, and rank 1 the loss, `(hidden @
    weights).square().sum()`.

    Title: 2.1 Backward through a message
    Hint: A message carries numbers and no graph: rank 1 receives into `hidden = torch.zeros(2, 3)`,
    and then calls `hidden.requires_grad_()`, so that backward stops there and leaves `hidden.grad`.
    Hint: Rank 1 sends `hidden.grad`; rank 0 continues with `hidden.backward(gradient)`.
    """
    (x, first), (_, second) = gathered((x, weights.detach()))
    first.requires_grad_()
    second.requires_grad_()
    hidden = (x @ first).relu()
    loss = (hidden @ second).square().sum()
    loss.backward()
    mine = first if dist.get_rank() == 0 else second
    return mine.grad


@question("42", (720_896, 360_448))
def bytes_of_hidden(answer):
    """The hidden values of a step are 8 x 44 x 64 numbers of float64. They go from rank 1 to rank
    2, and their gradient comes back from there. How many bytes of the two travel in a step if rank
    0 relays both, and how many if rank 2 fetches the hidden values from rank 1 itself? Give a pair
    of numbers.

    Title: 3.1 Bytes of a step
    Hint: A float64 has 8 bytes. How many messages of that size are on each of the two routes?

    Not (360448, 180224): The gradient of the hidden values is as large as they are.
    Not (180224, 0): The hidden values have to reach rank 2 in either case.
    Not (360448, 0): The hidden values have to reach rank 2 in either case.
    Not (90112, 45056): You have counted numbers: how many bytes does each have?
    Otherwise: Count the messages, forward and backward.

    Why: Through rank 0 there are four messages of 180,224 bytes, 1-0-2 forward and 2-0-1 backward;
    without it, two.
    """


class _Stage:
    """Adds its number to what it is given, itself or by a reference, and notes its source."""

    def __init__(self, number):
        self.number = number
        self.sources = set()

    def forward(self, batch):
        if isinstance(batch, Reference):
            self.sources.add(batch.home)
            batch = batch.to_here()
        else:
            self.sources.add(DRIVER)
        return 10 * batch + self.number


def _try_pipeline(fn, count, batches):
    """The outputs of as many stages, their order, and where each stage's input came from."""
    workers = Workers()
    stages = [_Stage(number) for number in range(1, count + 1)]
    references = [Reference(workers, f"worker{stage.number}", stage) for stage in stages]
    tensors = [torch.tensor([batch]) for batch in batches]
    outputs = workers.try_out(fn, references, tensors)
    why = (
        "`stage.remote().forward(batch)` leaves the hidden values on the stage's rank: "
        "pass on the reference."
    )
    sources = {}
    for stage in stages:
        places = ", ".join(sorted(stage.sources))
        sources[stage.number] = Seen(f"input from {places}", why)
    return outputs, workers.order(), sources


@formula("42", (2, [1, 2]), (3, [3, 1, 2]), (1, [4, 5]), (2, [1, 2, 3, 4, 5]), trial=_try_pipeline)
def pipeline(stages, batches):
    """Pass each micro-batch through all stages in turn, and return the list of the outputs in their
    order.

    `stages` are RRefs to objects on other ranks, whose `forward` takes a tensor or an RRef to one.
    Start everything before you wait for anything, and let no hidden values reach the rank that
    calls this.

    Title: 4.1 A pipeline
    Hint: `hidden = stage.remote().forward(batch)` returns a reference at once, which the next
    stage's `forward` takes.
    Hint: From the last stage you want the values: `stages[-1].rpc_async().forward(hidden)` gives a
    future.
    """
    outputs = []
    *others, last = stages
    for batch in batches:
        hidden = batch
        for stage in others:
            hidden = stage.remote().forward(hidden)
        outputs.append(last.rpc_async().forward(hidden))
    return torch.futures.wait_all(outputs)
