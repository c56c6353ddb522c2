"""The exercises of lab 22: gradients that wait, ranks that run out of data, and checkpoints."""

import contextlib
import os

import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import Join
from torch.nn.functional import cross_entropy

from distlab.checking import Seen, as_they_are, exercise, formula, gathered
from distlab.errors import CheckpointError
from distlab_course import checkpoints
from distlab_course.exercises import ddp_trials

LONG = 200  # batches of a stream that is not read at once


def _more_on_later_ranks(rank, n, more):
    """A number of batches or images, one more on each rank than on the rank before."""
    return (rank + more,)


@exercise(
    "22",
    cases=((1,), (3,), (6,)),
    given=as_they_are,
    trial=ddp_trials.try_pieces,
    seconds=ddp_trials.SECONDS_WITH_DDP,
)
def accumulated_backward(ddp, pieces):
    """Leave in `ddp` the gradient of the mean loss over all pieces of all ranks; only one backward
    may send.

    `pieces` is a list of `(images, labels)`, all of the same size. The loss of a piece is the
    `cross_entropy` of `torch.nn.functional`, and `ddp` has no gradients yet.

    Title: 1.1 Any number of pieces
    Hint: A second backward adds to the gradients that are there: what is each piece's share of the
    mean?
    Hint: `with ddp.no_sync():` around a forward and its backward keeps the gradients on their rank.
    Hint: All pieces but the last belong inside `no_sync`.
    """

    def backward(images, labels):
        loss = cross_entropy(ddp(images), labels)
        (loss / len(pieces)).backward()

    *others, last = pieces
    with ddp.no_sync():
        for images, labels in others:
            backward(images, labels)
    backward(*last)


@exercise(
    "22",
    cases=(2, 1, 0),
    given=_more_on_later_ranks,
    trial=ddp_trials.try_all_batches,
    seconds=ddp_trials.SECONDS_WITH_DDP,
)
def all_batches(ddp, batches):
    """Train with all batches of all ranks, although the ranks have different numbers of them; no
    rank may hang.

    `batches` is a list of `(images, labels)`; make a step of `torch.optim.SGD` with learning rate
    0.1 for each of them. In the average, a rank that has none left counts as a gradient of zeros.

    Title: 2.1 To the last batch
    Hint: A rank that has run out of batches must keep joining the all-reduces of the others.
    Hint: Put the loop inside `with Join([ddp]):`; `from torch.distributed.algorithms.join import
    Join`.
    """
    optimizer = torch.optim.SGD(ddp.parameters(), lr=ddp_trials.RATE)
    with Join([ddp]):
        for images, labels in batches:
            optimizer.zero_grad()
            loss = cross_entropy(ddp(images), labels)
            loss.backward()
            optimizer.step()


@exercise(
    "22",
    cases=(3, 1, 0),
    given=_more_on_later_ranks,
    trial=ddp_trials.try_uneven_batch,
    seconds=ddp_trials.SECONDS_WITH_DDP,
)
def weighted_backward(ddp, images, labels):
    """Leave in `ddp` the gradient of the mean loss over all images of all ranks, which have
    different numbers of them.

    The loss is `cross_entropy`. A rank may have no image at all.

    Title: 3.1 A mean over images
    Hint: DDP adds up the gradients of the ranks and divides by the number of ranks. Which loss
    makes that right?
    Hint: An all-reduce of one number gives the number of images on all ranks.
    Hint: `reduction="sum"` adds up the losses of the images, and is 0 where there are none.
    """
    count = sum(gathered(len(images)))
    loss = cross_entropy(ddp(images), labels, reduction="sum")
    # DDP divides by the number of ranks
    (loss * dist.get_world_size() / count).backward()


@exercise(
    "22",
    worlds=(2, 3, 4),
    cases=((3,),),
    given=as_they_are,
    trial=ddp_trials.try_saving,
    seconds=ddp_trials.SECONDS_WITH_DDP,
)
def save_checkpoint(path, ddp, optimizer, epoch):
    """Save `{"model": ..., "optimizer": ..., "epoch": epoch}` with `torch.save`, once for all
    ranks.

    The model must load into a process without DDP. Whatever happens while the file is being
    written, the old one must stay intact. No rank may return before the new file is there.

    Title: 4.1 A checkpoint
    Hint: All ranks have the same weights: how many of them need to write?
    Hint: Write to `f"{path}.partial"`, and then `os.replace(partial, path)`, which happens
    completely or not at all.
    Hint: `ddp.module.state_dict()` has the names of the model inside, and `dist.barrier()` makes
    every rank wait.
    """
    if dist.get_rank() == 0:
        state = {
            "model": ddp.module.state_dict(),
            "optimizer": optimizer.state_dict(),
            "epoch": epoch,
        }
        partial = f"{path}.partial"
        torch.save(state, partial)
        os.replace(partial, path)
    dist.barrier()


# batches of a stream on each rank in turn
STREAMS = ((2, 4, 3, 5), (3, 3, 3, 3), (LONG, LONG, 4, LONG), (6, 0, 6, 6))


def _length_of_stream(rank, n, lengths):
    """How many batches this rank has."""
    return (lengths[rank],)


def _try_stream(fn, count):
    """The batches with which training made a step, and how far the stream was read ahead."""
    read = []
    trained = []
    ahead = 0

    def stream():
        for batch in range(count):
            read.append(batch)
            yield batch

    for batch in fn(stream()):
        ahead = max(ahead, len(read) - len(trained))
        dist.all_reduce(torch.ones(1))  # the step, in which all ranks meet
        trained.append(batch)
    words = "reads one batch at a time"
    if ahead > 2:
        words = f"reads {ahead} batches at once"
    return Seen(words), trained


@exercise("22", cases=STREAMS, given=_length_of_stream, trial=_try_stream)
def as_many_as_all(stream):
    """Yield the batches of `stream`, as many on every rank as the rank with the fewest has.

    `stream` is an iterable of batches without a length, and a rank may have none. Read at most one
    batch ahead of the training, which makes a step with all ranks for each batch.

    Title: 7.1 As many as all have
    Hint: `next(stream, None)` of an iterator is None when it has ended.
    Hint: All ranks have another batch if the least of their answers, 0 or 1, is 1.
    Hint: `dist.all_reduce(has_one, op=dist.ReduceOp.MIN)`, once for each batch and once more.
    Stuck: Does the rank that has no batch left still take part in the last question?
    """
    batches = iter(stream)
    while True:
        batch = next(batches, None)
        has_one = torch.tensor(int(batch is not None))
        dist.all_reduce(has_one, op=dist.ReduceOp.MIN)
        if not has_one:
            return
        yield batch


# the newest file first
FOLDERS = (("b.pt", "a.pt"), (), ("other.pt", "cut.pt", "good.pt", "old.pt"), ("cut.pt",))


@formula("22", *FOLDERS, trial=ddp_trials.try_folder)
def newest_whole(folder, model):
    """Return the path of the newest checkpoint in `folder` that is whole and fits the model; None
    without one.

    The newest is the one with the latest change. A file may be damaged, or belong to another model.

    Title: 8.1 The newest that is whole
    Hint: `path.stat().st_mtime` is the time of the last change.
    Hint: `checkpoints.load` raises `distlab.CheckpointError` before it changes anything, so you may
    simply try.
    """
    newest_first = sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime, reverse=True)
    for path in newest_first:
        with contextlib.suppress(CheckpointError):
            checkpoints.load(path, model)
            return path
    return None
