"""What kind of work operators are, and of which shape, in programs without data."""

import pytest
import torch
from torch import nn

from distlab_course import added_products, experts_apart  # noqa: F401 - they give torch operators
from distlab_predict.operators import flops_of_shape
from tests.unit.predict.noted import kernels

MATRIX = torch.ops.aten
OWN = torch.ops.distlab  # of added_products


def last(program):
    return kernels(program)[-1]


def bfloat16(*shape):
    return torch.empty(shape, dtype=torch.bfloat16)


def float8(*shape):
    return torch.empty(shape, dtype=torch.float8_e4m3fn)


def scaled(**options):
    """Two matrices of 8-bit numbers; the second lies column by column, as the kernel wants it."""
    scales = torch.empty(()), torch.empty(())
    matrices = float8(32, 64), float8(48, 64).t()
    return torch._scaled_mm(*matrices, *scales, out_dtype=torch.bfloat16, **options)


PRODUCTS = {
    "mm": (lambda: bfloat16(3, 5) @ bfloat16(5, 7), (1, 3, 7, 5), "bfloat16"),
    "addmm": (lambda: nn.Linear(5, 7)(torch.empty(3, 5)), (1, 3, 7, 5), "float32"),
    "bmm": (lambda: bfloat16(2, 3, 5) @ bfloat16(2, 5, 7), (2, 3, 7, 5), "bfloat16"),
    "baddbmm": (
        lambda: torch.baddbmm(torch.empty(7), torch.empty(2, 3, 5), torch.empty(2, 5, 7)),
        (2, 3, 7, 5),
        "float32",
    ),
    "_scaled_mm": (scaled, (1, 32, 48, 64), "float8_e4m3fn"),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_a_product_of_matrices_has_a_shape(name):
    """Rows, columns, and how many products each number of the result adds up."""
    program, shape, dtype = PRODUCTS[name]
    kernel = last(program)
    batch, m, n, k = shape
    assert (kernel.name, kernel.kind, kernel.shape) == (name, "product", shape)
    assert (kernel.dtype, kernel.flops) == (dtype, 2 * batch * m * n * k)


def written_to(make):
    """A product that is written to where it belongs, and one that makes a tensor."""
    return last(lambda: make(out=bfloat16(4, 32, 48)[2])), last(make)


def plain(**options):
    return torch.mm(bfloat16(32, 64), bfloat16(64, 48), **options)


@pytest.mark.parametrize("make", [plain, scaled])
def test_a_product_that_is_written_to_its_place_reads_nothing_there(make):
    there, made = written_to(make)
    assert (there.shape, there.num_bytes, there.flops) == (made.shape, made.num_bytes, made.flops)


GROUPED = {
    "rows of a group lie together": ((24, 16), (3, 16, 8), (3, 24, 8, 16)),
    "all groups have as many rows": ((3, 24, 16), (3, 16, 8), (3, 72, 8, 16)),
    "columns of a group lie together": ((3, 24, 16), (16, 8), (3, 8, 24, 16)),
    "what a group adds up lies together": ((24, 48), (48, 8), (3, 72, 8, 16)),
}


@pytest.mark.parametrize("case", GROUPED)
def test_products_of_groups_have_the_shape_of_all_of_them(case):
    first, second, shape = GROUPED[case]
    ends = torch.empty(3, dtype=torch.int32)
    if len(first) == len(second) == 3:
        ends = None
    # its rows, and its columns, are as far from each other as the kernel wants it
    kernel = last(lambda: torch._grouped_mm(bfloat16(*first), bfloat16(*second), offs=ends))
    assert (kernel.kind, kernel.shape) == ("grouped", shape)
    _, m, n, k = shape
    assert kernel.flops == 2 * m * n * k


def plain_and_added():
    return bfloat16(3, 7).addmm_(bfloat16(3, 5), bfloat16(5, 7))


def scaled_and_added():
    scale = torch.empty(())
    left, right = float8(32, 64), float8(48, 64).t()
    return OWN.scaled_mm_add_(bfloat16(32, 48), left, right, scale, scale)


def grouped_and_added():
    ends = torch.empty(3, dtype=torch.int32)
    return OWN.grouped_mm_add_(bfloat16(3, 24, 8), bfloat16(24, 48), bfloat16(48, 8), ends)


def scaled_groups_and_added():
    ends = torch.empty(3, dtype=torch.int32)
    matrices = float8(32, 48), float8(16, 48).t()
    scales = torch.empty(3 * 32), torch.empty(3 * 16)
    return OWN.scaled_grouped_mm_add_(bfloat16(3, 32, 16), *matrices, *scales, ends)


# with the bytes of sums and matrices, and those of scales and ends
ADDED = {
    plain_and_added: ((1, 3, 7, 5), "bfloat16", (2 * 2 * 21, 2 * 15, 2 * 35)),
    scaled_and_added: ((1, 32, 48, 64), "float8_e4m3fn", (4 * 32 * 48, 32 * 64, 48 * 64, 8)),
    grouped_and_added: (
        (3, 72, 8, 16),
        "bfloat16",
        (4 * 3 * 24 * 8, 2 * 24 * 48, 2 * 48 * 8, 12),
    ),
    scaled_groups_and_added: (
        (3, 96, 16, 16),
        "float8_e4m3fn",
        (4 * 3 * 32 * 16, 32 * 48, 16 * 48, 4 * 3 * 48, 12),
    ),
}


@pytest.mark.parametrize("program", ADDED)
def test_a_product_that_is_added_is_one_kernel_that_reads_and_writes_the_sums(program):
    shape, dtype, num_bytes = ADDED[program]
    (kernel,) = [kernel for kernel in kernels(program) if kernel.kind != "bytes"]
    _, m, n, k = shape
    assert (kernel.shape, kernel.dtype, kernel.flops) == (shape, dtype, 2 * m * n * k)
    assert kernel.num_bytes == sum(num_bytes)


def attention(name, *options, keys=40):
    query = torch.empty(2, 8, 64, 16, requires_grad=True)
    others = torch.empty(2, 4, keys, 16, requires_grad=True)
    return getattr(MATRIX, name)(query, others, others, *options)[0]


@pytest.mark.parametrize("causal", [False, True])
def test_attention_has_a_shape_in_both_passes(causal):
    """The FLOPs are those of whole matrices of scores: two products forward, five backward."""

    def program():
        attention("_scaled_dot_product_flash_attention", 0.0, causal).sum().backward()

    found = [kernel for kernel in kernels(program) if kernel.kind == "attention"]
    shape = (2, 8, 4, 64, 40, 16, int(causal))
    products = 2 * 2 * 8 * 64 * 40 * 16
    assert [(kernel.shape, kernel.flops) for kernel in found] == [
        (shape, 2 * products),
        (shape, 5 * products),
    ]
    assert [flops_of_shape("attention", shape, backward) for backward in (False, True)] == [
        2 * products,
        5 * products,
    ]


def test_attention_with_a_mask_has_its_own_kernel():
    mask = torch.empty(2, 8, 64, 64)
    kernel = last(lambda: attention("_scaled_dot_product_efficient_attention", mask, True, keys=64))
    assert (kernel.kind, kernel.shape) == ("attention", (2, 8, 4, 64, 64, 16, 0))


def test_a_convolution_has_flops_and_no_shape():
    kernel = last(lambda: nn.Conv2d(3, 8, 3)(torch.empty(4, 3, 16, 16)))
    assert (kernel.kind, kernel.shape, kernel.dtype) == ("convolution", (), "float32")
    assert kernel.flops == 2 * 4 * 14 * 14 * 8 * 3 * 9


def test_what_only_moves_bytes_has_the_format_that_it_reads_most():
    scale = torch.empty((), dtype=torch.float64)
    kernel = last(lambda: bfloat16(8, 8) * scale)
    assert (kernel.kind, kernel.dtype, kernel.flops) == ("bytes", "bfloat16", 0)


@torch.library.custom_op("distlab_tests::doubled", mutates_args=())
def doubled(values: torch.Tensor) -> torch.Tensor:
    return values * 2


@doubled.register_fake
def _(values: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(values)


def test_an_operator_that_nobody_knows_is_marked():
    kernel = last(lambda: doubled(torch.empty(10)))
    assert (kernel.name, kernel.kind, kernel.num_bytes) == ("doubled", "unknown", 80)


def test_what_torch_does_not_count_is_marked():
    assert last(lambda: torch.linalg.eigh(torch.empty(4, 4))).kind == "unknown"


# --- lines ---


def line_of(text):
    """The place in this file of the one line that ends with this comment."""
    with open(__file__) as source:
        (number,) = [at for at, line in enumerate(source, 1) if line.endswith(f"# {text}\n")]
    return f"test_operators.py:{number}"


def test_a_kernel_has_the_line_that_calls_it_also_backward():
    def program():
        values = torch.empty(3, requires_grad=True)
        values = values.exp()  # first
        values = values.sin()  # second
        values.sum().backward()  # third

    found = [(kernel.name, kernel.line) for kernel in kernels(program)]
    assert found == [
        ("exp", line_of("first")),
        ("sin", line_of("second")),
        ("sum", line_of("third")),
        ("ones_like", line_of("third")),
        ("cos", line_of("second")),
        ("mul", line_of("second")),
        ("mul", line_of("first")),
    ]


def test_what_is_computed_again_has_the_line_of_the_forward_pass():
    def inside(values):
        return values.exp().sin()  # inside

    def program():
        values = torch.empty(3, requires_grad=True)
        kept = torch.utils.checkpoint.checkpoint(inside, values, use_reentrant=False)
        kept.sum().backward()

    again = [kernel for kernel in kernels(program) if kernel.again]
    assert [(kernel.name, kernel.line) for kernel in again] == [("exp", line_of("inside"))]
