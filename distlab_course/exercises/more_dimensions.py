"""The exercises of lab 53: long sequences, experts, and which way to divide a model."""

import torch

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

    Title: 2.1 Two experts
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


@question("53", 224)
def tensor_against_pipeline(answer):
    """A transformer has 64 layers, and there are 8 ranks. How many times as many bytes does a rank
    send for one micro-batch with tensor parallelism as an inner rank of a pipeline does? With
    tensor parallelism, each layer makes 2 ring all-reduces of the activation in the forward pass,
    and 2 of its gradient in the backward pass.

    Title: 3.1 Tensor parallel or pipeline
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
