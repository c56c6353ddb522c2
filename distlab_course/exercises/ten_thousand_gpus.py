"""The exercises of lab 63: the cost of a step on thousands of devices, and a plan for 70B."""

from distlab.checking import formula, question
from distlab.errors import DistlabError

BLOCK_SHAPES = ((4096, 32, 8, 14336), (8192, 64, 8, 28672), (16384, 128, 8, 53248), (64, 4, 2, 128))
BLOCK = 218_112_000
ETHERNET = (5e-6, 50e9)
NVLINK = (1e-6, 450e9)


@formula("63", *BLOCK_SHAPES)
def block_parameters(width, heads, kv_heads, hidden):
    """Return how many parameters a block of Llama has.

    `wq` and `wo` are matrices of width x width numbers. The `heads` queries have width / heads
    numbers each, and so do the `kv_heads` keys and values, which `wk` and `wv` make from a word.
    `w1`, `w2` and `w3` lead from the width to `hidden` numbers, or back. Each of the two norms has
    `width` numbers. A block of 8B has 218,112,000.

    Title: 2.1 A block
    Hint: `wk` is a matrix of width x (kv_heads * width / heads) numbers, and so is `wv`.
    Hint: There are two matrices of attention with width x width numbers, and three of width x
    hidden numbers.
    """
    kv_width = kv_heads * width // heads
    attention = 2 * width * width + 2 * width * kv_width
    feed_forward = 3 * width * hidden
    norms = 2 * width
    return attention + feed_forward + norms


@formula(
    "63", (BLOCK, 64, *ETHERNET), (BLOCK, 8, *NVLINK), (1000, 2, 1.0, 500.0), (1000, 1, 1.0, 500.0)
)
def gather_seconds(parameters, ranks, latency, bandwidth):
    """Return the seconds in which a ring gathers the 16-bit parameters of a block.

    Each rank has its share of them, and each of the ring's steps passes a share on: it takes the
    latency, and the bytes of the share over the bandwidth.

    Title: 2.2 One all-gather
    Hint: A parameter has two bytes, and a share is 2 * parameters / ranks bytes.
    Hint: A share has to visit all other ranks: that takes `ranks - 1` steps.
    """
    share = 2 * parameters / ranks  # bytes
    return (ranks - 1) * (latency + share / bandwidth)


@question("63", 82)
def devices_for_405b(answer):
    """Llama 405B has 405.9 billion parameters. For each of them, FSDP keeps on some rank the
    parameter, its gradient, and the two averages of Adam, all in 32 bits. At least how many devices
    of 80 GB hold that, if nothing else were needed? 1 GB is 1e9 bytes.

    Title: 2.3 405 billion
    Hint: That is four numbers of four bytes for each parameter.

    Not 81: 81 devices have 6,480 GB.
    Not 21: That is only the parameters: what else is kept for each of them?
    Not 41: Adam keeps two averages for each parameter.
    Not 61: Adam keeps two averages for each parameter, and there is also a gradient.
    Not 11: Parameters are gathered in 16 bits, but each rank keeps its share in 32.
    Otherwise: Count the bytes for each parameter.

    Why: 16 bytes x 405.9 billion are 6,494 GB, and 6,494 / 80 is 81.2.
    """


@formula("63", (0.25, 0.375, 32), (3.0, 4.0, 80), (34e9, 37e9, 126), (5.0, 7.0, 4))
def whole(two, four, layers):
    """Return the need of a model of `layers` blocks, if it needs `two` with two blocks and `four`
    with four.

    Each block adds the same, and the rest, such as the embedding, does not depend on the number of
    blocks.

    Title: 2.4 The whole model
    Hint: How much does one block add?
    """
    block = (four - two) / 2
    return two + (layers - 2) * block


LARGE = (855_654_400, 1024, 5e-6, 400e9, 500e12)


@formula(
    "63",
    (BLOCK, 64, *ETHERNET, 400e12),
    (BLOCK, 8, *NVLINK, 400e12),
    LARGE,
    (10**6, 4, 0.0, 1e9, 1e12),
)
def tokens_to_hide(parameters, ranks, latency, bandwidth, flops):
    """Return how many tokens each device must have, so that the backward pass of a block hides
    FSDP's messages.

    Meanwhile a ring gathers the parameters of the next block in 16 bits, and then another one
    reduces and scatters the gradients of the block before in 32 bits. The backward pass needs 4
    FLOPs for each parameter and token, and the device does `flops` a second. For a block of 8B on
    64 ranks, 5 us, 50 GB/s and 400 TFLOP/s it takes 12,101 tokens.

    Title: 3.1 Tokens to hide the messages
    Hint: Each of the two rings has `ranks - 1` steps, and pays for the latency in each.
    Hint: Together they send `2 + 4` bytes of each parameter.
    Hint: Set their seconds equal to 4 * parameters * tokens / flops, and solve for the tokens.
    """
    share = 6 * parameters / ranks  # bytes, of both rings
    seconds = (ranks - 1) * (2 * latency + share / bandwidth)
    return seconds * flops / (4 * parameters)


@formula(
    "63",
    (8192, 8192, 2, *NVLINK),
    (32768, 8192, 8, *NVLINK),
    (65536, 8192, 16, *ETHERNET),
    (64, 8, 1, 1.0, 1.0),
)
def tensor_seconds(tokens, width, ranks, latency, bandwidth):
    """Return the seconds that a block of tensor parallelism spends in messages, forward and
    backward.

    Before attention, and before the feed-forward part, a ring gathers the `tokens` of the group,
    each a vector of `width` 16-bit numbers, of which every rank has a share. After each of these
    parts, a ring reduces and scatters as many numbers. The backward pass does all of that once
    more, the other way round.

    Title: 4.1 Messages of tensor parallelism
    Hint: That is four collectives in the forward pass, and four in the backward pass.
    Hint: Each has `ranks - 1` steps with a share of 2 * tokens * width / ranks bytes.
    """
    share = 2 * tokens * width / ranks  # bytes
    ring = (ranks - 1) * (latency + share / bandwidth)
    return 8 * ring


@formula("63", (4, 4, 1), (4, 8, 1), (4, 8, 2), (8, 64, 4), (1, 8, 1))
def waiting_share(ranks, microbatches, stages):
    """Return which share of a step a rank of a pipeline waits.

    A pipeline of p ranks with m micro-batches takes as long as m + p - 1 micro-batches on one rank,
    and each rank works on m of them. With v interleaved stages on each rank, the rank waits for a
    v-th of that time. With 4 ranks, 8 micro-batches and 2 stages the share is 3/19.

    Title: 5.1 The bubble
    Hint: With one stage the share is (p - 1) / (m + p - 1).
    Hint: With v stages, count in units of a micro-batch on one stage: a rank works for v m of them.
    """
    waiting = ranks - 1
    working = stages * microbatches
    return waiting / (working + waiting)


DAYS = 50


@question("63")
def plan_for_70b(answer):
    """Train Llama 70B with 1.4 trillion tokens on 512 devices of 80 GB, in at most 50 days. A step
    has 256 sequences of 8,192 tokens. Answer with the arguments of `planning.plan`, such as
    {"tensor": 8, "recompute": "full"}.

    Title: 7.1 Your plan
    Hint: Which `tensor` is the smallest that 256 sequences allow, if each rank of FSDP has at least
    one?
    Hint: A pipeline waits, and so few micro-batches cannot fill it. What does recomputing save, and
    what does it cost?
    Hint: Try all three ways of recomputing with that `tensor` and no pipeline.

    Why: The smallest group of tensor parallelism sends the least, and recomputing all blocks makes
    room for the rest.
    """
    from distlab_course.planning import plan

    if not isinstance(answer, dict):
        return (
            "Give the arguments of `planning.plan` as a dict, "
            'such as {"tensor": 8, "recompute": "full"}.'
        )
    try:
        found = plan(**answer)
    except (DistlabError, TypeError) as error:
        return f"There is no such plan. {error}"
    if not found.fits:
        return f"It does not fit: a device would need {found.num_bytes / 1e9:.0f} GB."
    if found.days > DAYS:
        return f"It fits, but takes {found.days:.1f} days."
    return True
