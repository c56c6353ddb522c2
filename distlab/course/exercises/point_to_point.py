"""The exercises of notebook 01: messages from one rank to another."""

import torch
import torch.distributed as dist

from distlab.course.exercises import COLLECTIVES, exercise, question


def _gathered(tensor):
    """The tensors of all ranks, in the order of the ranks."""
    everyone = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, tensor)
    return everyone


@exercise("01", forbids=COLLECTIVES)
def chain(tensor):
    """Add up along the chain 0, 1, 2 and so on: each rank adds its own tensor to what comes, and passes the sum on.

    The last rank returns the sum of all; the others return nothing.

    Hint: Rank 0 receives nothing, and the last rank sends nothing: there is no rank before, and none after.
    Hint: `if rank > 0:` receive and add; `if rank < world_size - 1:` send; otherwise return.
    """
    everyone = _gathered(tensor)
    return sum(everyone) if dist.get_rank() == len(everyone) - 1 else None


@exercise("01", worlds=(2, 4), forbids=COLLECTIVES)
def swap(tensor):
    """Exchange tensors with a partner, 0 with 1 and 2 with 3, and return the partner's. `tensor` must not change.

    Hint: The partner of rank 2 is 3, and that of rank 3 is 2: `partner = rank ^ 1`.
    Hint: If both send first, both wait for ever. Let one of the two receive first, or use `isend`.
    """
    return _gathered(tensor)[dist.get_rank() ^ 1]


@exercise("01", worlds=(2, 3, 4), forbids=COLLECTIVES)
def from_the_left(mine):
    """Send `mine` to the right with a blocking send; return the tensor that came from the left.

    The ranks stand in a ring: to the right of the last rank is rank 0.

    Hint: A receive may start before the send without waiting: `work = dist.irecv(theirs, src=left)`.
    Hint: What `irecv` fills may be read after `work.wait()` only.
    """
    return _gathered(mine)[dist.get_rank() - 1]


@exercise(
    "01",
    worlds=(2,),
    cases=(1, 2, 5),
    given=lambda rank, n, rounds: (torch.tensor([10.0]), rounds),
    forbids=COLLECTIVES,
)
def ping_pong(tensor, rounds):
    """Send the tensor from rank 0 to rank 1, which adds 1 to it and sends it back, `rounds` times. Rank 0 returns it.

    Hint: Both ranks run the same loop; in it, rank 0 sends and then receives, and rank 1 receives and then sends.
    Hint: Both may receive into `tensor` itself.
    """
    tensor += rounds
    return tensor if dist.get_rank() == 0 else None


@exercise(
    "01",
    worlds=(2,),
    cases=([1.0, 2.0, 3.0], [], [7.0], [0.5] * 20),
    given=lambda rank, n, values: (values if rank == 0 else None,),
    forbids=COLLECTIVES,
)
def deliver(numbers):
    """Send a list of numbers, which rank 0 alone is given, to rank 1, which returns their sum as a float.

    On rank 1 `numbers` is None, so rank 1 does not know how many will come.

    Hint: The sender can say how many come, or that one is the last.
    Hint: A message of its own with the length goes first; then both know how many follow.
    Hint: An empty list is a list, too: its sum is 0.0.
    """
    total = torch.tensor(sum(numbers or []))
    dist.broadcast(total, src=0)
    return total.item() if dist.get_rank() == 1 else None


@exercise(
    "01",
    worlds=(2,),
    cases=((2, 3), (4,), (1, 2, 3), ()),
    given=lambda rank, n, shape: (
        torch.arange(12.0)[: torch.Size(shape).numel()].reshape(shape) if rank == 0 else None,
    ),
    forbids=COLLECTIVES,
)
def any_shape(tensor):
    """Send a float32 tensor of any shape from rank 0 to rank 1, which returns it; on rank 1 `tensor` is None.

    Hint: The shape has to be known before the receiver can allocate. `dist.send_object_list` sends any Python object.
    Hint: `dist.send_object_list([tensor.shape], dst=1)`, and on rank 1 a list of one None to receive into.
    """
    box = [tensor]
    dist.broadcast_object_list(box, src=0)
    return box[0] if dist.get_rank() == 1 else None


@exercise("01", worlds=(2, 3, 4), forbids=COLLECTIVES)
def collect(tensor):
    """Send every other rank's tensor to rank 0, which returns the sum of all, its own included.

    Rank 0 takes the messages in whatever order they come. `tensor` must not change.

    Hint: `dist.recv(t)` without `src` takes a message from any rank.
    Hint: `world_size - 1` messages come.
    """
    everyone = _gathered(tensor)
    return sum(everyone) if dist.get_rank() == 0 else None


@question("01")
def overwritten(answer):
    """Rank 0 sets `t` to 1.0, calls `work = dist.isend(t, dst=1)`, then `t.fill_(99)`, and rank 1 receives only after
    that. Which number does rank 1 receive?

    Hint: `isend` makes no copy. When are the bytes read?

    Why: Until `wait()` the tensor belongs to the send. The bytes are read when the receiver comes: then it is 99.
    """
    return float(answer) == 99.0


@question("01")
def half_of_the_bandwidth(answer):
    """A message of m bytes takes 20 µs + m * 0.5 ns. At which size in bytes is half of the full bandwidth reached?

    Hint: At that size both terms are equal.

    Why: At alpha / beta bytes both terms are equal, so the message takes twice the time of its bytes alone.
    """
    return abs(float(answer) - 40_000) < 400 or f"20 µs + {answer} * 0.5 ns is not twice {answer} * 0.5 ns."
