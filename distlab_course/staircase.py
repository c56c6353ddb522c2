"""A pipeline by hand whose copies average their gradients, for lab 63: which call comes too early?

Plain PyTorch. Runs on every rank, or in predict's process. The mistake is one that
`distlab.predict` found in a public training framework; the code is the course's own.
"""

from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh

from distlab_course.llama import Llama, Size

LLAMA_7B = Size(width=4096, layers=32, heads=32, hidden=11008, kv_heads=32, vocabulary=32000)


class Stage:
    """A stage of a pipeline, on one of the ranks that have a copy of it.

    Runs on: every rank of the world, which is a grid: rank `stage * copies + copy`.

    Args:
        size: of the whole model.
        stages: how many the pipeline has; the other dimension of the grid is its copies.
        microbatches: of each copy in a step, one sequence each.
        length: tokens of a sequence.
        dtype: of parameters and messages; gradients are summed in float32.

    Attributes:
        model: this stage's part of the model.
    """

    def __init__(self, size: Size, stages: int, microbatches: int, length: int, dtype: torch.dtype):
        rank = dist.get_rank()
        copies = dist.get_world_size() // stages
        mesh = init_device_mesh("cpu", (stages, copies), mesh_dim_names=("pipeline", "copies"))
        self._copies = mesh.get_group("copies")
        stage = mesh.get_local_rank("pipeline")
        self._is_first = stage == 0
        self._is_last = stage == stages - 1
        self._before = rank - copies
        self._after = rank + copies
        torch.manual_seed(stage)  # copies begin alike
        self.model = Llama(size, stage, stages).to(dtype)
        self._optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        own = mesh.get_local_rank("copies")
        self._tokens = tokens_of(own, size, microbatches, length)
        self._hidden = torch.empty(1, length, size.width, dtype=dtype, device="meta")
        self._kept: dict[int, tuple[Tensor, Tensor]] = {}  # input and output, by micro-batch
        self._gradients: dict[int, Tensor] = {}  # of the input, by micro-batch
        self._sends: list[dist.Work | None] = []

    def forward(self, number: int) -> None:
        """Forward pass of a micro-batch, from the stage before to the one after."""
        tokens = self._tokens[number : number + 1]
        x = tokens[:, :-1]
        if not self._is_first:
            x = self._received(self._before).requires_grad_()
        y = self.model(x)
        if self._is_last:
            loss = F.cross_entropy(y.flatten(0, 1).float(), tokens[:, 1:].flatten())
            y = loss / len(self._tokens)
        else:
            self._sends.append(dist.isend(y.detach(), dst=self._after))
        self._kept[number] = (x, y)

    def backward(self, number: int) -> None:
        """Backward pass of a micro-batch, when its gradient has come from the stage after."""
        x, y = self._kept.pop(number)
        gradient = None
        if not self._is_last:
            gradient = self._received(self._after)
        y.backward(gradient)
        if x.grad is not None:
            self._gradients[number] = x.grad

    def send_gradient(self, number: int) -> None:
        """Send the gradient of a micro-batch to the stage before, which waits for it."""
        if not self._is_first:
            self._sends.append(dist.isend(self._gradients[number], dst=self._before))

    def average(self) -> None:
        """Average the gradients of all copies of this stage."""
        gradients = []
        for parameter in self.model.parameters():
            if parameter.grad is not None:
                gradients.append(parameter.grad)
        bucket = torch.cat([gradient.flatten() for gradient in gradients]).float()
        dist.all_reduce(bucket, group=self._copies)
        bucket /= dist.get_world_size(self._copies)
        parts = bucket.split([gradient.numel() for gradient in gradients])
        for gradient, part in zip(gradients, parts, strict=True):
            gradient.copy_(part.view_as(gradient))

    def update(self) -> None:
        """Take the optimizer's step."""
        for send in self._sends:
            if send is not None:
                send.wait()
        self._optimizer.step()

    def _received(self, source: int) -> Tensor:
        """What arrives from another stage: an activation, or a gradient."""
        x = torch.empty_like(self._hidden, device="cpu")
        dist.recv(x, src=source)
        return x


Step = Callable[[Stage, int], None]  # of a stage and a number of micro-batches


def tokens_of(copy: int, size: Size, microbatches: int, length: int) -> Tensor:
    """The sequences of a copy in a step, with one token more than the model reads."""
    generator = torch.Generator().manual_seed(copy)
    return torch.randint(size.vocabulary, (microbatches, length + 1), generator=generator)


def found(stage: Stage, microbatches: int) -> None:
    """A step, as it was found: right, and slow."""
    for number in range(microbatches):
        stage.forward(number)
    for number in range(microbatches):
        stage.backward(number)
        if number == microbatches - 1:
            stage.average()
        stage.send_gradient(number)
    stage.update()


def mended(stage: Stage, microbatches: int) -> None:
    """The same step, in which no stage waits for the all-reduces of the one after."""
    for number in range(microbatches):
        stage.forward(number)
    for number in range(microbatches):
        stage.backward(number)
        stage.send_gradient(number)
    stage.average()
    stage.update()


def train(
    rank: int,
    world_size: int,
    *,
    step: Step = found,
    size: Size = LLAMA_7B,
    stages: int = 8,
    microbatches: int = 8,
    length: int = 2048,
    dtype: torch.dtype = torch.bfloat16,
) -> Stage:
    """Take one step, and return the stage with its gradients.

    Args:
        step: the order of the calls.
        size, stages, microbatches, length, dtype: as for `Stage`.
    """
    stage = Stage(size, stages, microbatches, length, dtype)
    step(stage, microbatches)
    return stage
