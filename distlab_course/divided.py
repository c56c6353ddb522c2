"""Five ways to divide a model over ranks, as programs that are as small as possible.

Lab 53 runs them on ranks, and compares the bytes that they keep and the time that they take with
its formulas. They do not use autograd, so that nothing is hidden and what is kept can be counted.
The model is a chain of matrices with a ReLU after each, and the loss is half the sum of the squares
of the output, so the gradient of the output is the output itself.
"""

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor

from distlab.measure import measure

Both = tuple[list[Tensor], list[Tensor]]  # gradients of a rank's weights, activations that it kept


def try_program(
    how: str, blocks: int, width: int, rows: int, microbatches: int = 8
) -> tuple[int, float, bool]:
    """Run one way to divide the model.

    Runs on: every rank of the group (a rank that skips it hangs the rest).

    Args:
        how: a name of `PROGRAMS`.
        blocks: each of two matrices, `width` x 4 `width` and back.
        width: of the input and of the output.
        rows: of the batch.
        microbatches: of the pipeline.

    Returns:
        the bytes that this rank keeps, the seconds of a step, and whether its gradients are those
        of one process.
    """
    whole = make_weights(blocks, width)
    x = torch.randn(rows, width, generator=torch.Generator().manual_seed(3))
    weights = cut(how, whole)
    program = PROGRAMS[how]
    seconds = measure(lambda: program(weights, x, microbatches)).seconds
    gradients, kept = program(weights, x, microbatches)
    xs = through(x, whole)
    alone, _ = back(xs, whole, xs[-1])
    right = True
    for gradient, expected in zip(gradients, cut(how, alone), strict=True):
        right = right and torch.allclose(gradient, expected, rtol=1e-4, atol=1e-4)
    adam = 2 * weights  # as many bytes as Adam's two averages
    held = sum(part.nbytes for part in (*weights, *adam, *gradients, *kept))
    return held, seconds, right


def make_weights(blocks: int, width: int) -> list[Tensor]:
    """The matrices of the model, the same on every rank."""
    generator = torch.Generator().manual_seed(11)
    shapes = [(width, 4 * width), (4 * width, width)] * blocks
    return [torch.randn(shape, generator=generator) * (2 / shape[0]) ** 0.5 for shape in shapes]


def cut(how: str, whole: list[Tensor]) -> list[Tensor]:
    """This rank's part of all matrices, or of their gradients.

    With ZeRO these are rows of each matrix, with tensor parallelism columns and rows in turn, in a
    pipeline the matrices of a stage, and with DDP all of them.
    """
    rank = dist.get_rank()
    world_size = dist.get_world_size()
    if how in ("ZeRO-2", "ZeRO-3"):
        return [matrix.chunk(world_size)[rank] for matrix in whole]
    if how == "tensor parallel":
        parts = []
        for number, matrix in enumerate(whole):
            part = matrix.chunk(world_size, dim=1 - number % 2)[rank]
            parts.append(part.contiguous())
        return parts
    if how == "pipeline":
        here = len(whole) // world_size
        return whole[rank * here : (rank + 1) * here]
    return whole


def same(number: int, tensor: Tensor) -> Tensor:
    """What a rank does with a tensor of matrix `number` that no other rank needs: nothing."""
    return tensor


def as_it_is(matrix: Tensor) -> Tensor:
    """A matrix that the rank has as a whole."""
    return matrix


def through(
    x: Tensor,
    weights: list[Tensor],
    shared: Callable[[int, Tensor], Tensor] = same,
    whole: Callable[[Tensor], Tensor] = as_it_is,
) -> list[Tensor]:
    """The activations from the input to the output.

    Args:
        x: the input.
        weights: this rank's parts of the matrices.
        shared: called with the number of a matrix and the product, which it may sum over the ranks.
        whole: makes the whole matrix from this rank's part.
    """
    xs = [x]
    for number, matrix in enumerate(weights):
        product = shared(number, xs[-1] @ whole(matrix))
        xs.append(product.relu())
    return xs


def back(
    xs: list[Tensor],
    weights: list[Tensor],
    gradient: Tensor,
    shared: Callable[[int, Tensor], Tensor] = same,
    whole: Callable[[Tensor], Tensor] = as_it_is,
    reduced: Callable[[Tensor], Tensor] = as_it_is,
) -> tuple[list[Tensor], Tensor]:
    """The gradients of the weights, and the gradient of the input.

    Args:
        xs: the activations.
        weights: this rank's parts of the matrices.
        gradient: of the output.
        shared: called with the number of a matrix and the gradient of its input.
        whole: makes the whole matrix from this rank's part.
        reduced: makes what this rank keeps of the gradient of a matrix.
    """
    gradients: list[Tensor] = []
    for number in reversed(range(len(weights))):
        gradient = gradient * (xs[number + 1] > 0)
        gradients.insert(0, reduced(xs[number].T @ gradient))
        gradient = shared(number, gradient @ whole(weights[number]).T)
    return gradients, gradient


def own_rows(x: Tensor) -> Tensor:
    """This rank's part of the batch."""
    return x.chunk(dist.get_world_size())[dist.get_rank()]


def ddp(weights: list[Tensor], x: Tensor, microbatches: int) -> Both:
    """A part of the batch on each rank, and one all-reduce of all gradients."""
    xs = through(own_rows(x), weights)
    gradients, _ = back(xs, weights, xs[-1])
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    dist.all_reduce(flat)
    parts = flat.split([matrix.numel() for matrix in weights])
    return [part.view_as(matrix) for part, matrix in zip(parts, weights, strict=True)], xs


def tensor_parallel(weights: list[Tensor], x: Tensor, microbatches: int) -> Both:
    """Columns of the first matrix of a block, and rows of the second, on each rank."""

    def forward(number: int, product: Tensor) -> Tensor:
        if number % 2 == 1:
            dist.all_reduce(product)
        return product

    def backward(number: int, gradient: Tensor) -> Tensor:
        if number % 2 == 0:
            dist.all_reduce(gradient)
        return gradient

    xs = through(x, weights, shared=forward)
    gradients, _ = back(xs, weights, xs[-1], shared=backward)
    return gradients, xs


def gathered(part: Tensor) -> Tensor:
    """A whole matrix, of which each rank has some rows."""
    whole = torch.empty(len(part) * dist.get_world_size(), part.shape[1])
    dist.all_gather(list(whole.chunk(dist.get_world_size())), part)
    return whole


def scattered(gradient: Tensor) -> Tensor:
    """This rank's rows of the sum of the gradients of all ranks."""
    part = torch.empty(len(gradient) // dist.get_world_size(), gradient.shape[1])
    dist.reduce_scatter(part, list(gradient.chunk(dist.get_world_size())))
    return part


def zero2(weights: list[Tensor], x: Tensor, microbatches: int) -> Both:
    """Each matrix is gathered once, and kept until the end of the backward pass."""
    moment: dict[str, Tensor] = {}  # what is whole for a moment only

    def reduced(gradient: Tensor) -> Tensor:
        moment["gradient"] = gradient
        return scattered(gradient)

    wholes = [gathered(part) for part in weights]
    xs = through(own_rows(x), wholes)
    gradients, _ = back(xs, wholes, xs[-1], reduced=reduced)
    return gradients, [*xs, *wholes, *moment.values()]


def zero3(weights: list[Tensor], x: Tensor, microbatches: int) -> Both:
    """Each matrix is gathered for the forward pass, and again for the backward pass."""
    moment: dict[str, Tensor] = {}  # what is whole for a moment only

    def whole(part: Tensor) -> Tensor:
        moment["weights"] = gathered(part)
        return moment["weights"]

    def reduced(gradient: Tensor) -> Tensor:
        moment["gradient"] = gradient
        return scattered(gradient)

    xs = through(own_rows(x), weights, whole=whole)
    gradients, _ = back(xs, weights, xs[-1], whole=whole, reduced=reduced)
    return gradients, [*xs, *moment.values()]


def pipeline(weights: list[Tensor], x: Tensor, microbatches: int) -> Both:
    """GPipe, as in lab 52: all micro-batches forward, and then all backward."""
    before = dist.get_rank() - 1
    after = dist.get_rank() + 1
    is_first = before < 0
    is_last = after == dist.get_world_size()
    kept = []
    sends = []
    gradients = [torch.zeros_like(matrix) for matrix in weights]
    for part in x.chunk(microbatches):
        given = part
        if not is_first:
            given = torch.empty_like(part)
            dist.recv(given, src=before)
        kept.append(through(given, weights))
        if not is_last:
            sends.append(dist.isend(kept[-1][-1], dst=after))
    for xs in kept:
        gradient = xs[-1]
        if not is_last:
            gradient = torch.empty_like(gradient)
            dist.recv(gradient, src=after)
        terms, gradient = back(xs, weights, gradient)
        for whole, term in zip(gradients, terms, strict=True):
            whole += term
        if not is_first:
            sends.append(dist.isend(gradient, dst=before))
    for send in sends:
        if send is not None:  # torch has it for ranks outside of a group
            send.wait()
    return gradients, [activation for xs in kept for activation in xs]


PROGRAMS: dict[str, Callable[[list[Tensor], Tensor, int], Both]] = {
    "DDP": ddp,
    "ZeRO-2": zero2,
    "ZeRO-3": zero3,
    "tensor parallel": tensor_parallel,
    "pipeline": pipeline,
}
