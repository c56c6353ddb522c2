"""The exercises of lab 09: calls of several ranks that do not belong together, and groups."""

from itertools import zip_longest

import torch
import torch.distributed as dist
from torch import nn

from distlab.checking import exercise, gathered, nothing, question

# of each program in section 1, what to say of those who get it wrong
HANGS = {
    "A": "In A, ranks 1 to 3 are in an all-reduce. Does rank 0 ever call one?",
    "C": "In C, count the all-reduces of each rank. Are there as many on all of them?",
}
ENDS = {
    "B": "In B, every rank makes two all-reduces of one integer each. For which of them would a "
    "rank have to wait forever?",
    "D": "In D, every rank makes one all-reduce of one integer. Does gloo compare the operations?",
    "E": "In E, every rank makes one all-reduce of eight numbers. How many bytes does each dtype "
    "take?",
}


def _letters(answer):
    """The letters of a text, or of a list of them, as capitals."""
    return {letter for letter in "".join(answer).upper() if letter.isalpha()}


@question("09")
def programs_that_end(answer):
    """Which of the programs A to E end without an error? Give their letters as a string, such
    as "AC".

    Title: 1.1 Hang or end?
    Hint: Count for each rank how many collectives it calls, and of which kind.
    Hint: gloo compares neither operations nor dtypes, so these alone make nobody wait.

    Why: In B, D and E every rank makes as many calls as the others, of the same kind, and with as
    many bytes. So nobody waits, and nobody notices.
    """
    letters = _letters(answer)
    for letter, words in HANGS.items():
        if letter in letters:
            return words
    for letter, words in ENDS.items():
        if letter not in letters:
            return words
    return letters == {"B", "D", "E"} or "Give letters from A to E."


def _batches(rank, n, more):
    """Batches 1.0, 2.0 and so on, one more on each rank than on the rank before."""
    return ([step + 1.0 for step in range(rank + more)],)


@exercise("09", cases=(1, 2, 0), given=_batches)
def uneven_sums(batches):
    """Return, for each step, the sum of the batches of all ranks that still have one: a list, the
    same on all ranks.

    `batches` is a list of floats, and its length differs from rank to rank. Make one all-reduce for
    each step.

    Title: 2.1 Batches that do not divide
    Hint: A collective needs every rank, so a rank without a batch takes part with a zero.
    Hint: First let all ranks agree on the number of steps, with `op=dist.ReduceOp.MAX`.
    """
    steps = zip_longest(*gathered(batches), fillvalue=0.0)
    return [float(sum(batches_of_step)) for batches_of_step in steps]


@question("09", right=[[901, 109], [109, 901]])
def mixed_sums(answer):
    """In program B, what do x and y hold at the end? Give two pairs (x, y), that of rank 0 first
    and that of the other ranks second.

    Title: 3.1 The sums of program B
    Hint: Which tensor does rank 0 pass to its first all-reduce, and which do the others?
    Hint: The first all-reduce adds rank 0's x, which is 1, to the y of the others.

    Not [[10, 1000], [10, 1000]]: These are the right sums, but do the calls that meet pass the same
    tensor?
    Not [[109, 901], [901, 109]]: The two sums are right. Into which tensor does each rank put the
    first of them?
    Not [[901, 109], [901, 109]]: Rank 0 has these. The other ranks put the first sum into y.
    Otherwise: Add what the four ranks pass to their first all-reduce, and then to their second.
    Why: The first sum is 1 + 200 + 300 + 400 = 901, and the second is 100 + 2 + 3 + 4 = 109.
    """


def _rotated(rank, n, count):
    """Tensors by name, of which each rank has another one first."""
    tensors = {}
    for k in range(count):
        place = (rank + k) % count
        tensors["abcd"[place]] = torch.tensor([10.0**place])
    return (tensors,)


@exercise("09", cases=(2, 4, 1), given=_rotated)
def in_same_order(tensors):
    """Replace each tensor of a dict by its sum over all ranks.

    The dicts of all ranks have the same names, but not in the same order.

    Title: 3.2 In one order
    Hint: What do all ranks know that could give them the same order?
    Hint: `sorted(tensors)` is the list of the names in alphabetical order.
    """
    for name in sorted(tensors):
        dist.all_reduce(tensors[name])


@question("09", right=(2, 14))
def rank_at_fault(answer):
    """Four ranks of a job have written errors under TORCH_DISTRIBUTED_DEBUG=DETAIL. Which rank is
    at fault, and which line has it left out? Give both as a pair, such as (3, 20).

    Title: 4.1 The rank at fault
    Hint: On which line is each rank? Are they in the same call?
    Hint: Three ranks are on one line, and one rank is on a later line, in the call with the same
    number. What has it not done?

    Not (2, 15): This is the rank. It raises on line 15, but that call is right. Which call have the
    other ranks reached, and rank 2 has passed?
    Not (0, 14): Rank 0 is where two others are as well. Which rank is alone?
    Not (1, 14): Rank 1 is where two others are as well. Which rank is alone?
    Not (3, 14): Rank 3 is where two others are as well. Which rank is alone?
    Not 2: This is the rank. Give the line as well, as a pair.
    Otherwise: Compare the lines of the four ranks. One rank is alone, and it has passed a line.
    Why: With the same sequence number rank 2 is on line 15 and the others are on line 14, so rank 2
    has left out the call of line 14. No shape is wrong.
    """


@question("09")
def stopped_in_time(answer):
    """Which of the programs A to E does `--check` stop before any data move, and which of them does
    DETAIL stop? Give two strings of letters, such as ("AB", "A").

    Title: 4.2 Stopped in time
    Hint: Go through the programs. Is there a call on another rank to compare with, and in what do
    the two differ?
    Hint: `--check` compares one thing that DETAIL does not.

    Why: A differs in the kind, E in the dtype, and D in the operation, which only `--check`
    compares. In B the calls have the same form. In C the fourth call has no partner at all: DETAIL
    runs a barrier before each collective, and names the missing ranks when it times out, but by
    then the data of three calls have moved.
    """
    if isinstance(answer, str) or len(answer) != 2:
        return "Give two strings, that of `--check` first."
    by_check, by_detail = map(_letters, answer)
    either = by_check | by_detail
    if "B" in either:
        return "In B the calls that meet are both sums of one integer. In what could they differ?"
    if "C" in either:
        return (
            "In C only rank 0 makes a fourth call, so there is no call to compare it with. DETAIL "
            "notices too late: three sums are made, and then it waits until its barrier times out."
        )
    if "D" in by_detail:
        return "D differs in the operation. Does DETAIL compare it?"
    if "D" not in by_check:
        return "D differs in the operation, and `--check` compares it."
    missing = {"A", "E"} - (by_check & by_detail)
    if missing:
        return f"Both compare the kind and the dtype. What about {min(missing)}?"
    return True


@exercise("09", worlds=(4,), cases=(None,), given=nothing)
def grid_sums():
    """Put 4 ranks on a 2 x 2 grid, rank 2 * row + column; each returns (sum of the ranks in its
    row, in its column).

    Title: 5.1 A grid of ranks
    Hint: `dist.new_group` is called by every rank, for every group, in the same order.
    Hint: Four groups: rows [0, 1] and [2, 3], columns [0, 2] and [1, 3]. Each rank is in two of
    them.

    Stuck: Does every rank call `dist.new_group` for all four groups, and in the same order?
    """
    row, column = divmod(dist.get_rank(), 2)
    sum_of_row = 2 * row + (2 * row + 1)
    sum_of_column = column + (column + 2)
    return sum_of_row, sum_of_column


def _ones(rank, n, more):
    """Ones, one more on each rank than on the rank before."""
    return (torch.ones(rank + more),)


@exercise("09", cases=(1, 3, 0), given=_ones)
def padded_all_reduce(tensor):
    """Return the sum of all ranks' one-dimensional tensors, as long as the longest. `tensor` must
    not change.

    A shorter tensor counts as if zeros followed it.

    Title: 7.1 Add up tensors of different lengths
    Hint: How long is the longest? One all-reduce of one number tells every rank.
    Hint: Put the tensor at the beginning of a tensor of zeros of that length, and add those up.
    """
    padded = nn.utils.rnn.pad_sequence(gathered(tensor))
    return padded.sum(dim=1)
