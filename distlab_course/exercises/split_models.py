"""The exercises of lab 42: backward through a message, bytes of a step, micro-batches."""

import torch
import torch.distributed as dist
from torch.distributed import rpc

from distlab.checking import COLLECTIVES, Seen, exercise, gathered, on_rank, question, returned
from distlab_course.exercises.workers import DONE_HERE, DRIVER, Calls, Reference, agents


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


class Stage:
    """Adds its number to what it is given, itself or by a reference, and notes its source."""

    def __init__(self, number):
        self.number = number

    def ready(self):
        """A first call, which makes the class of the stage known to the caller."""
        return True

    def forward(self, batch):
        """Ten times the input, and the number of the stage."""
        source = DRIVER
        if isinstance(batch, rpc.PyRRef):
            source = batch.owner_name()
            batch = batch.to_here()
        DONE_HERE.append(source)
        return 10 * batch + self.number


def _count_and_batches(rank, n, case):
    """The number of stages, and on rank 0 the micro-batches."""
    count, numbers = case
    return count, on_rank(0, [torch.tensor([number]) for number in numbers])


def _stages(calls, count):
    """References to stages on ranks 1, 2 and so on, which know the class of the stages."""
    stages = []
    for number in range(1, count + 1):
        stage = rpc.remote(f"worker{number}", Stage, args=(number,))
        stage.rpc_sync().ready()
        stages.append(Reference(calls, stage))
    return stages


def _try_pipeline(fn, count, batches):
    """On rank 0 the outputs and the order of the calls, on the others where inputs came from."""
    calls = Calls()
    outputs = None
    with agents():
        if dist.get_rank() == 0:
            outputs = calls.try_out(fn, _stages(calls, count), batches)
    if dist.get_rank() == 0:
        return outputs, calls.order()
    inputs = "no inputs"
    if DONE_HERE:
        inputs = f"{len(DONE_HERE)} inputs from " + ", ".join(sorted(set(DONE_HERE)))
    why = (
        "`stage.remote().forward(batch)` leaves the hidden values on the stage's rank: "
        "pass on the reference."
    )
    return Seen(inputs, why)


@exercise(
    "42",
    worlds=(4,),
    cases=((2, [1, 2]), (3, [3, 1, 2]), (1, [4, 5]), (2, [1, 2, 3, 4, 5])),
    given=_count_and_batches,
    trial=_try_pipeline,
)
def pipeline(stages, batches):
    """Pass each micro-batch through all stages in turn, and return the list of the outputs in their
    order.

    Rank 0 alone calls this. `stages` are RRefs to objects on other ranks, whose `forward` takes a
    tensor or an RRef to one. Start everything before you wait for anything, and let no hidden
    values reach rank 0.

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
