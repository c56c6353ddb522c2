"""Which kernels torch.compile makes, and what they read and write: by hand, on small modules."""

import functools

import torch
import torch.nn.functional as F
from torch import nn

from distlab_course.llama import Block, Size
from distlab_predict.nodes import BY_HAND, BYTES
from tests.unit.predict.noted import compiled, step

TOKENS = 512
WIDTH = 256
TENSOR = TOKENS * WIDTH * 2  # bytes of a tensor of bfloat16
WEIGHT = WIDTH * 2
ROWS = TOKENS * 4  # bytes of a float32 for each token


def given(*shape):
    return torch.empty(shape or (TOKENS, WIDTH), dtype=torch.bfloat16, requires_grad=True)


def fused(*make):
    """The bytes of each fused kernel of a model."""
    model, *inputs = make
    found = compiled(lambda: (model(), *(one() for one in inputs)))
    return [kernel.num_bytes for kernel in step(found) if kernel.kind == BYTES]


def test_a_norm_is_one_kernel_forward_and_two_backward():
    """In float32 inside. What is kept is its input, as it is given, and a number for each row.

    The sum over rows, for the weight, reads all of it again; then that is bfloat16 again.
    """
    assert fused(lambda: nn.RMSNorm(WIDTH).bfloat16(), given) == [
        2 * TENSOR + WEIGHT + ROWS,
        3 * TENSOR + WEIGHT + ROWS,
        2 * TENSOR + ROWS + 2 * WEIGHT,
        3 * WEIGHT,
    ]


def test_an_activation_and_a_product_of_numbers_are_one_kernel_in_each_pass():
    """The activation is not kept, but computed again."""
    kernels = fused(lambda: lambda one, other: F.silu(one) * other, given, given)
    assert kernels == [3 * TENSOR, 5 * TENSOR]


def test_a_loss_writes_no_scores_in_float32():
    """Forward the scores are read, and an exponent's sum is kept for each row; one is picked."""

    def loss(scores, targets):
        return F.cross_entropy(scores.float(), targets)

    targets = functools.partial(torch.empty, TOKENS, dtype=torch.int64)
    first, picked, last = fused(lambda: loss, given, targets)
    assert first == TENSOR + ROWS
    assert picked < 5 * ROWS
    assert (
        last == 2 * TENSOR + ROWS + 2 * ROWS + 4 + 4
    )  # targets, their number, the loss's gradient


class Residual(nn.Module):
    """A norm and a layer, added to what is given, twice."""

    def __init__(self):
        super().__init__()
        self.norms = nn.ModuleList(nn.RMSNorm(WIDTH) for _ in range(2))
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(2))

    def forward(self, values):
        for norm, layer in zip(self.norms, self.layers, strict=True):
            values = values + layer(norm(values))
        return values


def test_a_sum_that_others_need_is_computed_again_from_what_was_added():
    """The first sum is never written: the second norm and the last sum both compute it."""
    found = compiled(lambda: (Residual().bfloat16(), given()))
    forward = [kernel.num_bytes for kernel in step(found) if kernel.kind == BYTES][:3]
    assert forward == [
        2 * TENSOR + WEIGHT + ROWS,
        3 * TENSOR + WEIGHT + ROWS,  # what is given and what the first layer has made; the norm
        4 * TENSOR,
    ]


def test_the_peak_has_no_tensor_that_lives_inside_of_a_kernel():
    """Eager, an activation's result and its derivative are there too."""

    def peak(is_compiled):
        def forget(recorder):
            if not is_compiled:
                recorder._compiled = None

        model = compiled(lambda: (lambda one, other: F.silu(one) * other, given(), given()), forget)
        return model.peak["activations"]

    assert peak(True) == 5 * TENSOR  # two given, the gradient of the result, and two gradients
    assert peak(False) > peak(True)


def test_a_block_of_a_llama_has_so_many_kernels():
    """Rotations are complex numbers, which inductor leaves to torch."""
    size = Size(256, 2, 4, 512, kv_heads=2, vocabulary=1024)
    found = step(compiled(lambda: (Block(size).bfloat16(), given(4, 128, 256))))
    names = [kernel.name for kernel in found]
    assert names.count("mm") == 7 * 3
    kernels = [kernel for kernel in found if kernel.kind == BYTES]
    whole = [kernel for kernel in kernels if kernel.num_bytes > TENSOR]
    forward = ["norm", "q", "k", "v", "rotate", "rotate", "q", "k", "norm", "swiglu", "add"]
    backward = ["swiglu", *["norm", "weight"] * 2, *"qkv", "rotate", "rotate", *"qk"]
    assert len(whole) == len(forward) + len(backward)


def test_a_person_fuses_rotations_too():
    """Each of those above is a kernel forward and one backward, instead of three."""
    size = Size(256, 2, 4, 512, kv_heads=2, vocabulary=1024)
    numbers = []
    for how in (True, BY_HAND):
        found = step(compiled(lambda: (Block(size).bfloat16(), given(4, 128, 256)), how=how))
        kernels = [node.num_bytes for node in found if node.kind == BYTES]
        numbers.append(sum(num_bytes > TENSOR for num_bytes in kernels))
    rotations = 2 * 2
    assert numbers[0] - numbers[1] == rotations * (3 - 1)


# --- what is compiled ---


class Mixed(nn.Module):
    """An activation of two operators, which the program compiles or not."""

    def __init__(self, compile):
        super().__init__()
        self.own = compile(lambda values: values.sin().cos())

    def forward(self, values):
        return self.own(values).exp() + values


def names_of(make):
    """Names of the kernels of a program that is made with torch.compile."""
    found = {}

    def keep(recorder):
        found["compile"] = recorder._compiled.compile

    recording = compiled(lambda: make(found["compile"]), keep)
    return [kernel.name for kernel in step(recording)]


def test_only_what_a_program_compiles_is_fused_if_it_compiles_anything():
    part = names_of(lambda compile: (Mixed(compile), given()))
    assert part[:3] == ["fused_sin_cos", "exp", "add"]
    whole = names_of(lambda _: (Mixed(lambda function: function), given()))
    assert whole[0] == "fused_sin_cos_exp_add"
    assert len(whole) == 2


def test_a_module_that_is_compiled_is_fused(monkeypatch):
    def make(compile):
        monkeypatch.setattr(torch, "compile", compile)  # nn.Module.compile looks there
        return compile(fullgraph=True)(nn.Sequential(nn.SiLU(), nn.Sigmoid())), given()

    assert names_of(make) == ["fused_silu_sigmoid", "fused_sigmoid_backward_silu_backward"]


def test_what_follows_the_backward_pass_is_not_compiled():
    """As the norm of all gradients, and the optimizer."""
    after = step(compiled(lambda: (torch.sin, given()), after=lambda: given().exp().exp()))
    assert [kernel.name for kernel in after] == ["fused_sin", "fused_cos_mul", "exp", "exp"]


def test_what_is_computed_twice_is_computed_once():
    """Two layers take the sine of the same values, and another number format of it."""

    def program(values):
        weight = given(WIDTH, WIDTH).detach()
        once = values.detach().sin().to(torch.float16) @ weight.to(torch.float16)
        again = values.detach().sin().to(torch.bfloat16) @ weight
        third = values.detach().sin().to(torch.float16) @ weight.to(torch.float16)
        return (once + third + again).sum() * values.sum()

    kernels = step(compiled(lambda: (program, given())))
    (only,) = [kernel for kernel in kernels if "sin" in kernel.name]
    assert only.num_bytes == 3 * TENSOR  # read once, and written in two formats
