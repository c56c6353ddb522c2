"""The exercises of lab 51: DTensors and their collectives, tensor parallelism, plans and meshes."""

import torch
import torch.distributed as dist
from torch import nn

from distlab.checking import Limits, Seen, exercise, formula, gathered, nothing, question

PART = 3  # of the vocabulary, on each rank, in `sharded_loss`


def _small_numbers(*sizes):
    """Tensors of small whole numbers, the same wherever they are made."""
    generator = torch.Generator().manual_seed(8)  # a seed whose first numbers are easy to read
    tensors = []
    for size in sizes:
        numbers = torch.randint(-3, 4, size, generator=generator)
        tensors.append(numbers.float())
    return tensors


def _part_of_logits(rank, n, case):
    """This rank's part of the logits of some positions, shifted by a number; and the labels."""
    positions, shift = case
    vocabulary = PART * n
    (logits,) = _small_numbers((positions, vocabulary))
    part = logits.chunk(n, dim=1)[rank] + shift
    labels = torch.arange(positions) * 2 % vocabulary
    return part, labels


def _rows(rank, n, case):
    """A rank's rows of a matrix."""
    rows, columns = case
    matrix = torch.arange(rows * columns * n).reshape(rows, columns * n)
    return (matrix + 100.0 * rank,)


def _parts_of_two_layers(rank, n, case):
    """An input, and a rank's parts of two layers."""
    tokens, part = case
    width = part * n  # of the hidden layer
    x, first, bias, second, last = _small_numbers(
        (tokens, 2), (2, width), (width,), (width, 2), (2,)
    )
    columns = first.chunk(n, dim=1)[rank]
    bias_of_columns = bias.chunk(n)[rank]
    rows = second.chunk(n)[rank]
    return x, columns, bias_of_columns, rows, last


def _one_all_reduce(n, length, item):
    """The limits of one all-reduce by a tree."""
    steps = (n - 1).bit_length()
    return Limits(steps * length * item, calls=1)


def _all_but_own_columns(n, length, item):
    """The bytes of what other ranks need of a rank's rows."""
    return Limits(length * item * (n - 1) // n)


def _try_loss(fn, *arguments):
    """What a function returns, as a tensor if it is a number."""
    value = fn(*arguments)
    if isinstance(value, float):
        return torch.tensor(value)
    return value


@exercise("51", limits=_all_but_own_columns, cases=((1, 1), (2, 3)), given=_rows)
def rows_to_columns(rows):
    """Return this rank's columns of a matrix, given this rank's rows.

    Every rank has the same number of rows, and the number of columns is a multiple of the number of
    ranks. No rank may send more than (n - 1) / n of its own part.

    Title: 1.1 Rows to columns
    Hint: `rows.chunk(world_size, dim=1)` cuts blocks. Which rank needs which of them?
    Hint: `dist.all_to_all(arriving, sending)` takes two lists of tensors; call `contiguous()` on
    those that it sends.
    Hint: The blocks that arrive are of the same columns, one from each rank: `torch.cat` stacks
    them.

    Limit: Which of its numbers does each other rank need?
    """
    matrix = torch.cat(gathered(rows))
    columns = matrix.chunk(dist.get_world_size(), dim=1)
    return columns[dist.get_rank()]


@exercise("51", cases=((1, 1), (4, 5)), given=_parts_of_two_layers, limits=_one_all_reduce)
def two_layers(x, columns, bias, rows, last):
    """Return, on every rank, relu(x @ first + bias) @ second + last.

    This rank has its columns of `first` and their part of the bias, its rows of `second`, and all
    of `last`. Make one collective call, with no more bytes than the result has.

    Title: 3.1 Two layers with biases
    Hint: Nothing has to be sent before the second product: each rank has all that it needs for its
    hidden numbers.
    Hint: How many times is `last` added if each rank adds it before the all-reduce?

    Limit: Where is the one place in which numbers must be added?
    """
    hidden = torch.relu(x @ columns + bias)
    return sum(gathered(hidden @ rows)) + last


class _GatedBlock(nn.Module):
    """A block like Llama's, without norms: attention with four layers, and an MLP with three."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(6)
        self.query = nn.Linear(8, 8, bias=False)
        self.key = nn.Linear(8, 8, bias=False)
        self.value = nn.Linear(8, 8, bias=False)
        self.out = nn.Linear(8, 8, bias=False)
        self.gate = nn.Linear(8, 16)
        self.up = nn.Linear(8, 16)
        self.down = nn.Linear(16, 8)

    def forward(self, x):
        query = _by_head(self.query(x))
        key = _by_head(self.key(x))
        value = _by_head(self.value(x))
        seen = nn.functional.scaled_dot_product_attention(query, key, value)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        hidden = nn.functional.silu(self.gate(x)) * self.up(x)
        return x + self.down(hidden)


def _by_head(x):
    """(batch, word, number) as (batch, head, word, number), with 2 numbers in a head."""
    return x.unflatten(-1, (-1, 2)).transpose(1, 2)


def _try_plan(fn):
    """The output of a block that is cut as a plan says, and what it communicates and divides."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.debug import CommDebugMode
    from torch.distributed.tensor.parallel import parallelize_module

    # with a name of its own: of equal meshes, DTensor caches the groups of the first, which may be
    # gone
    name = dist.group.WORLD.group_name
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=(name,))
    block = parallelize_module(_GatedBlock(), mesh, fn())
    with CommDebugMode() as comm:
        y = block(torch.arange(48.0).reshape(2, 3, 8) / 48)
    weights = [layer.weight for layer in block.children()]
    divided = [weight for weight in weights if hasattr(weight, "to_local")]
    return y, Seen(
        f"collectives in forward: {comm.get_total_counts()}; "
        f"weights divided: {len(divided)} of {len(weights)}"
    )


@exercise("51", worlds=(2, 4), cases=(0,), given=nothing, trial=_try_plan)
def plan_of_a_block():
    """Return the plan with which `parallelize_module` divides all seven weights of a transformer
    block.

    Its layers are `query`, `key`, `value` and `out` of the attention, and `gate`, `up` and `down`
    of the MLP, which computes `down(silu(gate(x)) * up(x))`. A forward pass makes two collective
    calls.

    Title: 4.1 A plan
    Hint: The plan is a dict: the name of each layer, and `ColwiseParallel()` or
    `RowwiseParallel()`.
    Hint: Layers that make heads or hidden numbers are cut by columns, so that each rank has its
    own.
    Hint: `out` and `down` get inputs of which each rank has a part, so they are cut by rows.
    """
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

    columns = dict.fromkeys(("query", "key", "value", "gate", "up"), ColwiseParallel())
    return columns | {"out": RowwiseParallel(), "down": RowwiseParallel()}


@question("51", 6144)
def block_traffic(answer):
    """A model of 24 blocks is trained with tensor parallelism. A step has 8192 tokens of 4096
    numbers, 2 bytes each. How many MiB do all the all-reduces of a step carry, forward and
    backward, counting each reduced tensor once?

    Title: 4.2 The traffic of a step
    Hint: How many all-reduces does a block make, in both directions together? How large is the
    tensor of each?
    Hint: 8192 x 4096 x 2 bytes is 64 MiB.

    Not 3072: That is one direction.
    Not 1536: That is one all-reduce a block.
    Not 256: That is one block.
    Not 12288: Each tensor is to be counted once.
    Otherwise: Count the all-reduces of a block, and multiply.

    Why: Four all-reduces a block, of 64 MiB each: 24 x 4 x 64 MiB, 6 GiB in every step.
    """


@formula("51", (2, (2, 2)), (0, (2, 2)), (5, (2, 4)), (4, (3, 2)), (6, (2, 2, 3)))
def groups_of(rank, shape):
    """Return, for each dimension of a mesh, the ranks of the group of `rank` along it.

    The ranks are numbered along the last dimension first. In a mesh of shape (2, 2), rank 2 gets
    [[0, 2], [2, 3]].

    Title: 5.1 The ranks of a row
    Hint: `ranks = torch.arange(math.prod(shape)).reshape(shape)` is the mesh. Where in it is
    `rank`?
    Hint: In two dimensions, the group along dimension 0 is `ranks[:, column]`, and along dimension
    1 `ranks[row]`.
    Hint: `(ranks == rank).nonzero()[0].tolist()` is the place; put `slice(None)` in one coordinate
    of it at a time.
    """
    ranks = torch.arange(torch.Size(shape).numel()).reshape(shape)
    place = (ranks == rank).nonzero()[0].tolist()
    groups = []
    for dim in range(len(shape)):
        along = list(place)
        along[dim] = slice(None)
        groups.append(ranks[tuple(along)].tolist())
    return groups


def _a_number_each(n, length, item):
    """At most one number for each position."""
    positions = length // PART
    return Limits(largest=positions * item)


@exercise(
    "51",
    cases=((2, 0), (7, 0), (5, 1000)),
    given=_part_of_logits,
    trial=_try_loss,
    limits=_a_number_each,
)
def sharded_loss(logits, labels):
    """Return the mean cross-entropy, on every rank, of positions whose logits are divided by
    vocabulary.

    `logits[i]` are for this rank's part of the vocabulary; `labels[i]` is a number in the whole
    vocabulary. A logit may be 1000. No all-reduce may carry more than one number for each position.

    Title: 8.1 Cross-entropy without all logits
    Hint: Three all-reduces: the largest logit (`op=dist.ReduceOp.MAX`), the sum of `exp`, the logit
    of the label.
    Hint: This rank's part begins at `rank * logits.shape[1]`. Which labels are in it?
    Hint: Where the label is in another rank's part, this rank adds 0.

    Limit: Which three numbers of a position does its loss need from all ranks?
    """
    all_logits = torch.cat(gathered(logits), dim=1)
    return nn.functional.cross_entropy(all_logits, labels)
