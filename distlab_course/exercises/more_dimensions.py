"""The exercises of lab 53: long sequences, experts, and which way to divide a model."""

import torch
import torch.distributed as dist
from torch import nn

from distlab.checking import Limits, all_but, exercise, formula, gathered, question, returned


def attend(query, key, value):
    """What each query sees of some keys and values, not yet divided by its total.

    Args:
        query: (rows, width).
        key, value: (keys, width).

    Returns:
        for each query its largest score, the sum of exp(score - largest), and the sum of these
        times the values: (rows, 1), (rows, 1), (rows, width).
    """
    scores = query @ key.T / query.shape[1] ** 0.5
    largest = scores.amax(1, keepdim=True)
    weights = (scores - largest).exp()
    return largest, weights.sum(1, keepdim=True), weights @ value


def _seen_part(first, keys, scale=1.0):
    """What 2 queries have seen of some keys and their values."""
    query = scale * torch.tensor([[1.0, 2.0, 3.0], [3.0, -2.0, 1.0]])
    numbers = torch.arange(first, first + 3.0 * keys)
    key = numbers.reshape(keys, 3).sin()
    return attend(query, key, 10 * key.cos())


PARTS = (
    (_seen_part(0, 4), _seen_part(12, 4)),
    (_seen_part(0, 1), _seen_part(3, 6)),
    (_seen_part(0, 3, 1e3), _seen_part(9, 3, 1e3)),
)


@formula("53", *PARTS, trial=returned)
def merge_parts(one, other):
    """Return the part that the same queries would have for all keys together.

    Each part is a tuple `(largest, total, result)` with a row for each query: its largest score in
    this part, the sum of `exp(score - largest)`, and the sum of the values, each times its
    `exp(score - largest)`, not yet divided by `total`. Return such a tuple. Scores may be 1000.

    Title: 1.1 Merge two parts
    Hint: The largest score of both parts is `torch.maximum(one[0], other[0])`.
    Hint: Multiply the `total` and the `result` that were made with `largest` by `exp(largest -
    new_largest)`.
    Hint: Do not divide: that is done only once, after all keys have been seen.
    """
    # source: M. Milakov and N. Gimelshein, Online normalizer calculation for softmax, 2018,
    # algorithm 3
    largest_of_one, total_of_one, result_of_one = one
    largest_of_other, total_of_other, result_of_other = other
    largest = torch.maximum(largest_of_one, largest_of_other)
    share_of_one = (largest_of_one - largest).exp()
    share_of_other = (largest_of_other - largest).exp()
    total = share_of_one * total_of_one + share_of_other * total_of_other
    result = share_of_one * result_of_one + share_of_other * result_of_other
    return largest, total, result


def _gradients_of_what_arrived(rank, n, case):
    """A gradient of a row for each row that arrived, and how many rows came and went.

    Rank s sends (s + 2 r) % 3 rows to rank r.
    """
    width, whole = case
    went = [(rank + 2 * other) % 3 for other in range(n)]
    came = [(other + 2 * rank) % 3 for other in range(n)]
    rows = torch.arange(float(sum(came) * width)).reshape(sum(came), width)
    gradient = rows + 100 * rank
    if not whole:  # as the backward pass of a product may leave it
        gradient = gradient.T.contiguous().T
    return gradient, came, went


def _try_exchange_backward(fn, gradient, came, went):
    """What a function returns for the group of all ranks."""
    return fn(gradient, came, went, dist.group.WORLD)


@exercise(
    "53",
    cases=((1, True), (2, True), (2, False)),
    given=_gradients_of_what_arrived,
    trial=_try_exchange_backward,
    forbids=all_but("all_to_all"),
    limits=Limits(calls=1),
)
def exchange_backward(gradient, came, went, group):
    """Return the gradient of the rows that this rank sent, in the order in which it sent them.

    The forward pass sent `went[r]` rows to rank r of the group, and `came[r]` rows arrived from it.
    `gradient` has a row for each row that arrived. Make one all-to-all call, and no other. The
    gradient need not be contiguous.

    Title: 2.1 The way back
    Hint: The gradient of a row is on the rank to which the row went. How many rows come back from
    there?
    Hint: `dist.all_to_all_single(output, input, output_splits, input_splits, group=group)` needs an
    output of `sum(went)` rows, which `gradient.new_empty(sum(went), *gradient.shape[1:])` makes.
    Hint: The messages of a process group are contiguous: send `gradient.contiguous()`.

    Limit: Does each rank not already know how many rows come back?
    """
    back = gradient.new_empty(sum(went), *gradient.shape[1:])
    dist.all_to_all_single(back, gradient.contiguous(), went, came, group=group)
    return back


def _tokens_for_two_experts(rank, n, tokens):
    """Tokens, the two experts of each and their shares, and the factor of this rank's expert."""
    place = torch.arange(tokens + rank)
    first = (place // 2 + rank) % n
    second = (2 * place + rank + 1) % n
    choice = torch.stack([first, second], dim=1)
    vectors = torch.stack([place, 10 * place + rank], dim=1).float()
    shares = torch.tensor([0.75, 0.25])
    factor = rank + 1.0
    return vectors, choice, shares, factor


@exercise(
    "53",
    cases=(1, 2, 5),
    given=_tokens_for_two_experts,
    forbids=all_but("all_to_all"),
    limits=Limits(calls=3),
)
def two_experts(tokens, choice, shares, factor):
    """Return, for each token, the sum of the results of its two experts, each times its share.

    Token i goes to the ranks `choice[i, 0]` and `choice[i, 1]`, and `shares[0]` and `shares[1]` are
    the shares of their results. The expert of this rank multiplies what it gets by `factor`. Make
    three all-to-all calls, and call no other collective.

    Title: 2.2 Two experts
    Hint: Two experts are like two tokens: `tokens.repeat_interleave(2, 0)` is in the order of
    `choice.flatten()`.
    Hint: `order = choice.flatten().argsort(stable=True)` is the order in which they go, and come
    back.
    Hint: `results[order] = back` restores the order; then `results.view(len(tokens), 2, -1)` has
    both of each token.

    Limit: Can the tokens for both experts travel together?
    """
    factors = torch.tensor(gathered(factor))[choice]
    weights = (factors * shares).sum(1, keepdim=True)
    return tokens * weights


def _gradients_of_experts(rank, n, copies):
    """Gradients of the gate and of this rank's expert, after a backward pass of its own loss."""
    gate = (torch.arange(2.0) + 1) * (rank + 1)
    expert = (torch.arange(3.0) + 1) * 10 ** (rank % (n // copies))
    return gate, expert * (rank + 1), copies


def _try_average(fn, gate, expert, copies):
    """The gradients of two modules after a function has averaged them."""
    world_size = dist.get_world_size()
    experts = world_size // copies
    for first in range(experts):
        members = range(first, world_size, experts)
        group = dist.new_group(members)
        if dist.get_rank() in members:
            own_copies = group
    modules = []
    for gradient in (gate, expert):
        module = nn.Linear(len(gradient), 1, bias=False)
        module.weight.grad = gradient[None].clone()
        modules.append(module)
    fn(*modules, own_copies)
    return [module.weight.grad for module in modules]


@exercise("53", worlds=(2, 4), cases=(2, 1), given=_gradients_of_experts, trial=_try_average)
def expert_gradients(gate, expert, copies):
    """Make the gradients of this rank's two modules those of one process, whose loss is the mean
    over the tokens of all ranks.

    Each rank has called `backward()` with the mean over its own tokens, of which all ranks have
    equally many. All ranks have the same gate. `copies` is the group of the ranks that have a copy
    of this rank's expert. Change each `.grad` in place.

    Title: 3.1 The gradients of gate and experts
    Hint: The gate is a replica: what does DDP do with its gradient?
    Hint: The backward pass of the all-to-all has already brought an expert the gradients of tokens
    of other ranks. Those of the tokens that a copy got are still missing: sum over `copies`.
    Hint: Over how many ranks' losses is the mean taken, whatever expert a token went to?
    """
    for parameter in gate.parameters():
        parameter.grad = sum(gathered(parameter.grad)) / dist.get_world_size()
    members = dist.get_process_group_ranks(copies)
    for parameter in expert.parameters():
        everyone = gathered(parameter.grad)
        parameter.grad = sum(everyone[rank] for rank in members) / dist.get_world_size()


def _part_of_heads(rank, n, case):
    """All positions of this rank's heads, numbered by position, head and place."""
    positions, heads, size = case
    whole = torch.arange(float(positions * n * heads * n * size))
    whole = whole.reshape(positions * n, heads * n, size)
    return (whole.chunk(n, dim=1)[rank].contiguous(),)


@exercise(
    "53",
    cases=((1, 1, 1), (2, 1, 2), (2, 3, 2)),
    given=_part_of_heads,
    trial=returned,
    forbids=all_but("all_to_all"),
    limits=Limits(calls=1),
)
def to_positions(part):
    """Return this rank's positions of all heads, given all positions of this rank's heads.

    The shape of `part` is (positions, heads of a rank, size), and that of the result is (positions
    of a rank, heads, size). Rank r has the r-th part of the heads, and of the positions. Both
    numbers can be divided by the number of ranks. Make one all-to-all call, and no other.

    Title: 4.1 From heads back to positions
    Hint: With `world_size = dist.get_world_size()`, `part.unflatten(0, (world_size, -1))` has a
    block of positions for each rank.
    Hint: An all-to-all of equal blocks needs no splits: `dist.all_to_all_single(arrived, blocks)`,
    where `arrived = torch.empty_like(blocks)`.
    Hint: The block that arrives from rank s has the heads of rank s. `movedim(0, 1)` puts the ranks
    beside their heads, and `flatten(1, 2)` makes one dimension of both.

    Limit: One call sends all blocks.
    """
    whole = torch.cat(gathered(part), dim=1)
    return whole.chunk(dist.get_world_size())[dist.get_rank()]


@question("53", 224)
def tensor_against_pipeline(answer):
    """A transformer has 64 layers, and there are 8 ranks. How many times as many bytes does a rank
    send for one micro-batch with tensor parallelism as an inner rank of a pipeline does? With
    tensor parallelism, each layer makes 2 ring all-reduces of the activation in the forward pass,
    and 2 of its gradient in the backward pass.

    Title: 5.1 Tensor parallel or pipeline
    Hint: In a ring all-reduce of n ranks, a rank sends 2 (n - 1) / n times the tensor.
    Hint: An inner rank of a pipeline sends one activation to the next rank, and one gradient to the
    one before.

    Not 448: So many activations are sent by tensor parallelism. How many by the pipeline?
    Not 112: That is with 2 all-reduces in each layer: does the backward pass not make 2 more?
    Not 128: How much of the tensor does a rank send in a ring all-reduce?
    Not 28: With tensor parallelism each rank works on all 64 layers.
    Otherwise: Count the activations that a rank sends in each.

    Why: 64 layers x 4 all-reduces x 1.75 are 448 activations, and the pipeline sends 2, whatever
    its stages contain.
    """
