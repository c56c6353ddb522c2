"""The exercises of lab 06: parts of a data set, and averaged gradients."""

import torch
import torch.distributed as dist
from torch import nn

from distlab.checking import Limits, exercise, formula, gathered, numbers, question
from distlab_course import data_parallel

# of the gradients of three models
ONE_VECTOR = ((4,),)
MATRIX_AND_BIAS = ((2, 3), (3,))
WITH_A_SCALAR = ((3,), (1, 2), ())
WRONG_BY_ITS_LOSS = "B"  # the letter of the run whose gradients are not divided


def _gradients(rank, n, shapes):
    """A tensor of each shape, with other numbers on each rank."""
    gradients = []
    for place, shape in enumerate(shapes):
        (flat,) = numbers(rank + place, n, torch.Size(shape).numel())
        gradients.append(flat.reshape(shape))
    return tuple(gradients)


def _samples_and_gradients(rank, n, case):
    """How many samples a rank has, more on later ranks or 5 on each, and its gradients."""
    rises, shapes = case
    samples = 10 * (rank + 1) if rises else 5
    return samples, *_gradients(rank, n, shapes)


def try_averaging(fn, *gradients):
    """The gradients of a model, whose parameters are zero, after `fn(model)`."""
    model = nn.ParameterList(torch.zeros_like(gradient) for gradient in gradients)
    for parameter, gradient in zip(model, gradients, strict=True):
        parameter.grad = gradient.clone()
    fn(model)
    return [parameter.grad for parameter in model]


def _try_weighted(fn, samples, *gradients):
    """The gradients of a model after `fn(model, samples)`."""
    return try_averaging(lambda model: fn(model, samples), *gradients)


def _try_two_buckets(fn, *gradients):
    """The gradients after `fn(buckets)`: the last one, then the others in reverse."""

    def in_two_buckets(model):
        *others, last = model
        fn([[last], others[::-1]])

    return try_averaging(in_two_buckets, *gradients)


def _try_spread(fn, *weights):
    """What `fn` finds, and the weights, which it must not change."""
    model = nn.ParameterList(weight.clone() for weight in weights)
    found = fn(model)
    if isinstance(found, torch.Tensor):
        found = found.item()
    return found, [weight.detach() for weight in model]


def _weights_apart(rank, n, case):
    """The weights of a rank: equal ones, or with differences of some kind."""
    first = torch.tensor([1.0, -2.0, 3.0])
    second = torch.tensor([[5.0]])
    if case == "rising":
        second += rank
    elif case == "both ways":
        moves = (0.0, 0.5, -0.5, 0.0)  # of each rank
        first[1] += moves[rank]
        first[2] -= moves[rank]
    return first, second


def _labels_and_predictions(rank, n, more):
    """Labels and predictions of other numbers of images on each rank, and the number of classes."""
    classes = 3
    images = torch.arange(2 * rank + more)
    labels = images % classes
    confused = images % 4 == rank
    predicted = torch.where(confused, (labels + 1) % classes, labels)
    return labels, predicted, classes


@formula("06", (12, 0, 3), (7, 0, 3), (7, 2, 3), (7, 0, 1), (2, 3, 4), (1437, 3, 4))
def deal(total, rank, world_size):
    """Return a list of the indices of a rank's samples, dealt like cards: rank, rank + world_size,
    and so on.

    Each of the samples 0 to total - 1 belongs to one rank. Of 1437 samples, 4 ranks get 360, 359,
    359 and 359.

    Title: 1.1 Deal like cards
    Hint: `range(start, stop, step)` counts in steps.
    Hint: Where does each rank begin, and how far apart are its samples?
    """
    return list(range(rank, total, world_size))


@exercise(
    "06",
    cases=(ONE_VECTOR, MATRIX_AND_BIAS, WITH_A_SCALAR),
    given=_gradients,
    trial=try_averaging,
)
def average_gradients(model):
    """Replace the gradient of every parameter of `model` by its mean over all ranks.

    Title: 2.1 Average gradients
    Hint: Loop with `for parameter in model.parameters():`; each `parameter.grad` is a tensor.
    Hint: `dist.all_reduce(parameter.grad)` leaves the sum there, and a mean is a sum divided by a
    number.
    """
    data_parallel.average_gradients(model)


@exercise(
    "06",
    cases=((True, ONE_VECTOR), (True, MATRIX_AND_BIAS), (False, WITH_A_SCALAR)),
    given=_samples_and_gradients,
    trial=_try_weighted,
)
def average_weighted(model, samples):
    """Replace every gradient by that of the mean loss over the samples of all ranks.

    The loss of this rank was a mean over its `samples` samples, a number that differs from rank to
    rank.

    Title: 2.2 Batches of different sizes
    Hint: The gradient of a mean over 10 samples, times 10, is the gradient of their sum; sums may
    be added.
    Hint: All ranks need the total number of samples: an all-reduce of one number.
    """
    total = sum(gathered(samples))
    for parameter in model.parameters():
        parameter.grad *= samples / total
        dist.all_reduce(parameter.grad)


@question("06", [12, 11, 11, 11])
def batches_by_rank(answer):
    """Four ranks have 353, 352, 352 and 352 images, in batches of 32, and the last batch may be
    smaller (`drop_last=False`). How many batches does each rank have? Give a list of four numbers.

    Title: 3.1 How many batches?
    Hint: 11 x 32 = 352.

    Not (11, 11, 11, 11): That is right with `drop_last=True`.
    Not (12, 12, 12, 12): 352 images are exactly 11 batches.

    Why: Rank 0 has a 12th batch of one image, and waits in its all-reduce for ranks that have left
    the loop.
    """


@question("06")
def wrong_by_loss(answer):
    """The lab shows the losses of four runs, A to D, without their names. Which of them would you
    call wrong from these curves alone? Give the letters of all of them as one text, such as "AB".

    Title: 4.1 Wrong by its loss
    Hint: A loss that falls may belong to a right run. Which of the curves does not simply fall?

    Why: Only run B leaves the picture. From a loss that falls, nobody can tell whether the run is
    right.
    """
    letters = set(str(answer).upper())
    if WRONG_BY_ITS_LOSS not in letters:
        return "One curve leaves the picture. Would a right run do that?"
    others = letters - {WRONG_BY_ITS_LOSS}
    if others:
        return (
            f"The loss of run {sorted(others)[0]} falls. From that alone, nobody can call it wrong."
        )
    return True


@exercise("06", cases=("equal", "rising", "both ways"), given=_weights_apart, trial=_try_spread)
def spread(model):
    """Return, on every rank, the largest difference between two ranks in any parameter of `model`.

    It is 0.0 if all models are equal, and 3.0 if one number is 0, 1, 2 and 3 on four ranks and all
    others are equal. The model must stay as it is.

    Title: 4.2 How far apart?
    Hint: For each number, find the largest and the smallest over the ranks: `op=dist.ReduceOp.MAX`
    and `MIN`.
    Hint: `dist.all_reduce` writes its result into the tensor, so give it copies:
    `parameter.detach().clone()`.
    """
    mine = nn.utils.parameters_to_vector(model.parameters()).detach()
    weights = torch.stack(gathered(mine))
    spreads = weights.amax(0) - weights.amin(0)
    return spreads.max().item()


@exercise(
    "06",
    worlds=(2, 3, 4),
    cases=(MATRIX_AND_BIAS, WITH_A_SCALAR),
    given=_gradients,
    trial=_try_two_buckets,
    limits=Limits(calls=2),
)
def average_buckets(buckets):
    """Replace every gradient by its mean over all ranks, with one all-reduce for each bucket.

    `buckets` is a list of lists of parameters.

    Title: 5.1 One all-reduce for each bucket
    Hint: `torch.cat` makes one flat tensor of the gradients of a bucket, each of them flattened.
    Hint: `flat.split(sizes)` cuts it again; `p.grad.copy_(piece.view_as(p))` puts a piece back in
    its shape.

    Limit: There are two buckets: does each travel as one tensor?
    """
    data_parallel.average_buckets(buckets)


@exercise("06", cases=(5, 1, 0), given=_labels_and_predictions)
def confusion(labels, predicted, classes):
    """Return, on every rank, the table of all ranks' images: how many with label i were taken for
    j, at [i, j].

    `labels` and `predicted` are this rank's own, as int64. The table is int64, `classes` x
    `classes`.

    Title: 6.1 Which digits are confused?
    Hint: Count your own images first, and then add up the tables of all ranks.
    Hint: `table[label, guess] += 1` in a loop is right, and so is `torch.bincount` of `classes *
    labels + predicted`.
    """
    counts = torch.bincount(classes * labels + predicted, minlength=classes**2)
    table = counts.reshape(classes, classes)
    return sum(gathered(table))
