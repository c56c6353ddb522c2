"""The exercises of notebook 09 on what is divided: states, gradients, parameters; tensors, meshes, experts."""

import math
from functools import partial

import torch
import torch.distributed as dist
from torch import nn

from distlab.checking import Exercise, Limits, Question, all_but, formula, numbers

exercise, question, formula = partial(Exercise, "09"), partial(Question, "09"), partial(formula, "09")


def _state(rank, world_size, shard):
    """Weights that are the same on every rank, a gradient of this rank, and its shard of the momentum."""
    weights = torch.arange(float(world_size * shard))
    return weights, numbers(rank, world_size, len(weights))[0], weights.chunk(world_size)[rank] / 10


def _stepped(fn, weights, gradient, momentum):
    """The weights and the momentum after a step, which may change the gradient."""
    fn(weights, gradient, momentum)
    return weights, momentum


def _shards(rank, world_size, case):
    """A list of shards, none on rank 2, and the largest norm."""
    lengths, max_norm = case
    return [numbers(rank + i, world_size, length)[0] for i, length in enumerate(lengths) if rank != 2], max_norm


def _first(total, parts, part):
    """Where a part begins, if the first parts are one number longer than the others."""
    return part * (total // parts) + min(part, total % parts)


@formula((1000, 4, 0), (1000, 4, 1), (1000, 4, 2), (1000, 4, 3), (2097152, 4, 3), (64, 1, 3))
def bytes_of_a_rank(parameters, ranks, stage):
    """Return the bytes of parameters, gradients and optimizer states on a rank, with float32 and Adam.

    `stage` is 0 for data parallelism and 1 to 3 for ZeRO, and everything divides evenly.

    Hint: Without ZeRO a parameter takes 4 bytes, its gradient 4, and Adam's two means 8.
    Hint: Divide the 8 by the ranks from stage 1 on, the gradient's 4 from stage 2 on, and the parameter's 4 at stage 3.
    """
    divided = (0, 8, 12, 16)[stage]
    return parameters * (16 - divided) + parameters * divided // ranks


@exercise(
    cases=(2, 3, 20),
    given=_state,
    trial=_stepped,
    limits=lambda n, length, item: Limits(2 * (n - 1) * length // n * item),
)
def zero_2_step(weights, gradient, momentum):
    """Make one step of SGD with momentum on `weights`, which are the same on all ranks.

    `momentum` is this rank's shard: it becomes 0.9 times itself plus the average gradient of shard `rank`, and that
    shard of the weights loses 0.1 times it. All ranks end with all new weights; `gradient` may be changed.

    Hint: `mine = torch.empty_like(momentum)`, and `dist.reduce_scatter(mine, list(gradient.chunk(world_size)))` leaves
    the sum of shard `rank` there.
    Hint: `momentum.mul_(0.9).add_(...)` changes the tensor that was given; `momentum = ...` makes another one.
    Hint: The shards are `weights.chunk(world_size)`, views of `weights`: `dist.all_gather` can write into them.

    Limit: Which part of the average does a rank need, and which of the weights?
    """
    rank, world_size = dist.get_rank(), dist.get_world_size()
    dist.all_reduce(gradient)
    momentum.mul_(0.9).add_(gradient.chunk(world_size)[rank] / world_size)
    shards = list(weights.chunk(world_size))
    dist.all_gather(shards, shards[rank] - 0.1 * momentum)


@exercise(cases=(((3, 2), 1.0), ((4,), 1e3), ((1, 5), 12.0)), given=_shards, limits=Limits(calls=1, largest=8))
def clip_shards(shards, max_norm):
    """Scale the shards of all ranks in place, so that the norm of the whole gradient is at most `max_norm`.

    If the norm is not larger, nothing changes. Return the norm before the scaling, as a number. A rank may have no
    shard. One collective call of one number has to do.

    Hint: The norm is the root of the sum of all squares, and sums may be added over ranks.
    Hint: Scale by `max_norm / norm` only where that is below 1.

    Limit: Which single number do the others need from a rank?
    """
    squares = torch.tensor(float(sum(shard.square().sum() for shard in shards)))
    dist.all_reduce(squares)
    norm = squares.sqrt().item()
    for shard in shards:
        shard *= min(1.0, max_norm / norm)
    return norm


@question(3.5)
def whole_after_forward(answer):
    """A model has 10 blocks with 1 GB of parameters each, and 2 GB in its embeddings and output layer. On 8 ranks
    `fully_shard` is called for each block, and then for the model. How many GB of parameters lie on a rank between
    forward and backward?

    Hint: Each rank keeps its shards of everything, all the time.
    Hint: What is whole beside them when the last block has been dropped?

    Not 1.5: Those are the shards. Is nothing whole after forward?
    Not 2.0: Those are the root's own. Where are the shards of the blocks?
    Not 3.25: The root's shard stays where it is while the root is whole.
    Not 4.5: The last block has been dropped when its forward ended.
    Not 12.0: That would be one group for the whole model.

    Why: The shards are 12 / 8 = 1.5 GB, and beside them the root's 2 GB are whole until backward.
    """


@formula((8, 4, 2, 1), (8, 2, 4, 1), (10, 4, 3, 1), (10, 4, 3, 2), (3, 4, 2, 1), (1000, 7, 5, 3))
def read_plan(total, files, ranks, rank):
    """Return a list of what a rank reads of a checkpoint: (file, start, stop) for numbers start to stop of a file.

    The tensor of `total` numbers was saved in so many files, and is now needed by so many ranks. Both are cut as
    `tensor_split` does: the first parts are one longer where it does not divide. In order, and nothing empty.

    Hint: Where in the whole tensor do a file and the rank's own shard begin and end?
    Hint: What both have begins at the larger of the two beginnings; subtract where the file begins.
    """
    begin, end = _first(total, ranks, rank), _first(total, ranks, rank + 1)
    plan = []
    for file in range(files):
        first, last = _first(total, files, file), _first(total, files, file + 1)
        if max(first, begin) < min(last, end):
            plan.append((file, max(first, begin) - first, min(last, end) - first))
    return plan


WORDS = 3  # of a rank, in `sharded_loss`


def _small(*sizes):
    """Tensors of small whole numbers, the same wherever they are made."""
    generator = torch.Generator().manual_seed(8)  # of which the first numbers are easily read
    return [torch.randint(-3, 4, size, generator=generator).float() for size in sizes]


def _all_words(rank, n, case):
    """The logits of this rank's words, for some tokens, shifted by a number; and the labels."""
    tokens, shift = case
    (logits,) = _small((tokens, WORDS * n))
    return logits.chunk(n, 1)[rank] + shift, torch.arange(tokens) * 2 % (WORDS * n)


def _of_two_layers(rank, n, case):
    """An input, and a rank's parts of two layers."""
    tokens, width = case
    x, first, bias, second, last = _small((tokens, 2), (2, width * n), (width * n,), (width * n, 2), (2,))
    return x, first.chunk(n, 1)[rank], bias.chunk(n)[rank], second.chunk(n)[rank], last


def _loss(fn, *arguments):
    """What a function returns, as a tensor if it is a number."""
    value = fn(*arguments)
    return torch.tensor(value) if isinstance(value, float) else value


def _to_two_experts(rank, n, tokens):
    """Tokens, the two experts of each and their shares, and the factor of this rank's expert."""
    place = torch.arange(tokens + rank)
    choice = torch.stack([(place // 2 + rank) % n, (2 * place + rank + 1) % n], 1)
    return torch.stack([place, 10 * place + rank], 1).float(), choice, torch.tensor([0.75, 0.25]), rank + 1.0


@exercise(
    cases=((1, 1), (2, 3)),
    given=lambda rank, n, case: (torch.arange(case[0] * case[1] * n).reshape(case[0], -1) + 100.0 * rank,),
    limits=lambda n, length, item: Limits(length * item * (n - 1) // n),
)
def rows_to_columns(rows):
    """Return this rank's columns of a matrix, of which it is given its rows.

    Every rank has the same number of rows, and the columns divide by the number of ranks. No rank may send more than
    (n - 1) / n of its own part.

    Hint: `rows.chunk(world_size, dim=1)` are blocks: which rank needs which of them?
    Hint: `dist.all_to_all(arriving, sending)` takes two lists of tensors; those it sends must be `contiguous()`.
    Hint: What has arrived are blocks of the same columns, from all ranks: `torch.cat` lays them below each other.

    Limit: Which of its numbers does each other rank need?
    """
    parts = [torch.empty_like(rows) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, rows)
    return torch.cat(parts).chunk(dist.get_world_size(), 1)[dist.get_rank()]


@exercise(
    cases=((1, 1), (4, 5)),
    given=_of_two_layers,
    limits=lambda n, length, item: Limits((n - 1).bit_length() * length * item, calls=1),
)
def two_layers(x, columns, bias, rows, last):
    """Return, on every rank, relu(x @ first + bias) @ second + last.

    This rank has its columns of `first` and their part of the bias, its rows of `second`, and all of `last`. One
    collective call is enough, with no more bytes than the result has.

    Hint: Until the second product nothing has to be sent: each rank has all that its hidden numbers need.
    Hint: How often is `last` added, if each rank adds it before the all-reduce?

    Limit: Where is the one place in which numbers must be added?
    """
    y = torch.relu(x @ columns + bias) @ rows
    dist.all_reduce(y)
    return y + last


@exercise(
    cases=((2, 0), (7, 0), (5, 1000)),
    given=_all_words,
    trial=_loss,
    limits=lambda n, length, item: Limits(largest=length // WORDS * item),
)
def sharded_loss(logits, labels):
    """Return the mean cross-entropy, on every rank, of tokens whose logits are shared out by words.

    `logits[i]` are those of this rank's words; `labels[i]` is a number among the words of all ranks. A logit may be
    1000. No all-reduce may carry more than one number for each token.

    Hint: Three all-reduces: the largest logit (`op=dist.ReduceOp.MAX`), the sum of `exp`, the logit of the label.
    Hint: This rank's words begin at `rank * logits.shape[1]`. Which labels are among them?
    Hint: Where the label is another rank's word, this rank adds 0.

    Limit: Which three numbers of a token does its loss need from all ranks?
    """
    parts = [torch.empty_like(logits) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, logits.contiguous())
    return nn.functional.cross_entropy(torch.cat(parts, 1), labels)


@question(6144)
def block_traffic(answer):
    """A model of 24 blocks is trained with tensor parallelism. A step has 8192 tokens of 4096 numbers, 2 bytes each.
    How many MiB do all the all-reduces of a step carry, forward and backward, counting each tensor once?

    Hint: How many all-reduces has a block, in both directions together? And how large is the tensor of each?
    Hint: 8192 x 4096 x 2 bytes are 64 MiB.

    Not 3072: That is one direction.
    Not 1536: That is one all-reduce a block.
    Not 256: That is one block.
    Not 12288: Each tensor is to be counted once.
    Otherwise: Count the all-reduces of a block, and multiply.

    Why: Four all-reduces a block, of 64 MiB each: 24 x 4 x 64 MiB, 6 GiB in every step.
    """


@formula((2, (2, 2)), (0, (2, 2)), (5, (2, 4)), (4, (3, 2)), (6, (2, 2, 3)))
def groups_of(rank, shape):
    """Return, for each dimension of a mesh, the ranks of the group of `rank` along it.

    The ranks are numbered along the last dimension. In a mesh of shape (2, 2), rank 2 gets [[0, 2], [2, 3]].

    Hint: `ranks = torch.arange(math.prod(shape)).reshape(shape)` is the mesh. Where in it is `rank`?
    Hint: In two dimensions, the group along dimension 0 is `ranks[:, column]`, and along dimension 1 `ranks[row]`.
    Hint: `(ranks == rank).nonzero()[0].tolist()` is the place; put `slice(None)` in one coordinate of it at a time.
    """
    ranks = torch.arange(math.prod(shape)).reshape(shape)
    place = (ranks == rank).nonzero()[0].tolist()
    return [ranks[(*place[:dim], slice(None), *place[dim + 1 :])].tolist() for dim in range(len(shape))]


@exercise(cases=(1, 2, 5), given=_to_two_experts, forbids=all_but("all_to_all"), limits=Limits(calls=3))
def two_experts(tokens, choice, shares, factor):
    """Return, for each token, the sum of the results of its two experts, each times its share.

    Token i goes to the ranks `choice[i, 0]` and `choice[i, 1]`, and `shares[0]` and `shares[1]` are the shares of their
    results. The expert of this rank multiplies what it gets by `factor`. Three calls of an all-to-all are enough.

    Hint: Two experts are two tokens: `tokens.repeat_interleave(2, 0)` and `choice.flatten()` belong to each other.
    Hint: `order = choice.flatten().argsort(stable=True)` is the order in which they go, and in which they come back.
    Hint: `results[order] = back` restores the order; then `results.view(len(tokens), 2, -1)` has both of a token.

    Limit: Can the tokens for both experts travel together?
    """
    factors = [torch.tensor(0.0) for _ in range(dist.get_world_size())]
    dist.all_gather(factors, torch.tensor(factor))
    return tokens * (torch.stack(factors)[choice] * shares).sum(1, keepdim=True)
