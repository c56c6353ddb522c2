"""Of what training programs call, no operator is without a cost but those that are named here."""

import functools

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import swa_utils

from tests.unit.predict.noted import kernels


def some(*shape):
    return torch.empty(shape, requires_grad=True)


def whole(*shape):
    return torch.zeros(shape, dtype=torch.int64)


def qkv(*shape):
    return [some(*shape) for _ in "qkv"]


IMAGES = (2, 4, 8, 8)

NORMS_AND_LOSSES = [
    lambda: nn.BatchNorm2d(4)(some(*IMAGES)),
    lambda: nn.GroupNorm(2, 4)(some(*IMAGES)),
    lambda: nn.InstanceNorm2d(4, affine=True)(some(*IMAGES)),
    lambda: nn.LayerNorm(8)(some(2, 8)),
    lambda: nn.LocalResponseNorm(2)(some(*IMAGES)),
    lambda: nn.RMSNorm(8)(some(2, 8)),
    lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(8, 8))(some(2, 8)),
    lambda: nn.utils.parametrizations.weight_norm(nn.Linear(8, 8))(some(2, 8)),
    lambda: F.normalize(some(4, 4)),
    lambda: torch.linalg.norm(some(4, 4)),
    lambda: some(4, 4).renorm(2, 0, 1.0),
    lambda: F.cosine_similarity(some(4, 8), some(4, 8)),
    lambda: F.pairwise_distance(some(4, 8), some(4, 8)),
    lambda: torch.cdist(some(4, 8), some(5, 8)),
    lambda: F.cross_entropy(some(4, 8), whole(4), label_smoothing=0.1),
    lambda: F.binary_cross_entropy_with_logits(some(4), torch.ones(4)),
    lambda: F.smooth_l1_loss(some(4), torch.ones(4)),
    lambda: F.kl_div(some(4).log_softmax(0), torch.ones(4), reduction="sum"),
    lambda: F.triplet_margin_loss(some(4, 8), some(4, 8), some(4, 8)),
]

IMAGES_AND_SIGNALS = [
    lambda: F.max_pool2d(some(*IMAGES), 2),
    lambda: F.avg_pool2d(some(*IMAGES), 2),
    lambda: F.adaptive_avg_pool2d(some(*IMAGES), 2),
    lambda: F.adaptive_max_pool2d(some(*IMAGES), 2),
    lambda: F.max_unpool2d(*F.max_pool2d(some(*IMAGES), 2, return_indices=True), 2),
    lambda: F.interpolate(some(*IMAGES), scale_factor=2, mode="nearest"),
    lambda: F.interpolate(some(*IMAGES), scale_factor=2, mode="bilinear", antialias=True),
    lambda: F.interpolate(some(*IMAGES), scale_factor=2, mode="bicubic"),
    lambda: F.pixel_shuffle(some(*IMAGES), 2),
    lambda: F.grid_sample(some(*IMAGES), some(2, 8, 8, 2), align_corners=True),
    lambda: F.pad(some(*IMAGES), (1, 1, 1, 1), mode="reflect"),
    lambda: F.fold(F.unfold(some(*IMAGES), 3), (8, 8), 3),
    lambda: nn.Conv1d(4, 4, 3)(some(2, 4, 8)),
    lambda: nn.Conv2d(4, 4, 3, groups=4)(some(*IMAGES)),
    lambda: nn.Conv3d(4, 4, 3)(some(2, 4, 8, 8, 8)),
    lambda: nn.ConvTranspose2d(4, 4, 3)(some(*IMAGES)),
    lambda: torch.fft.irfft(torch.fft.rfft(some(4, 8))),
    lambda: torch.fft.ifft2(torch.fft.fft2(some(4, 8))).real,
    lambda: torch.stft(some(64), 16, window=torch.ones(16), return_complex=True).abs(),
]

PLACES = [
    lambda: nn.Embedding(10, 4)(whole(3)),
    lambda: nn.EmbeddingBag(10, 4)(whole(3, 2)),
    lambda: some(4, 8).cumsum(1),
    lambda: some(4, 8).cumprod(1),
    lambda: some(4, 8).logcumsumexp(1),
    lambda: some(4, 8).sort()[0],
    lambda: some(4, 8).topk(2)[0],
    lambda: some(4, 8).median(1)[0],
    lambda: some(8).quantile(0.5),
    lambda: some(4, 8).gather(1, whole(4, 2)),
    lambda: torch.zeros(4, 8).scatter(1, whole(4, 2), some(4, 2)),
    lambda: torch.zeros(4, 8).scatter_add(1, whole(4, 2), some(4, 2)),
    lambda: torch.zeros(4, 8).scatter_reduce(1, whole(4, 2), some(4, 2), "amax"),
    lambda: torch.zeros(4, 8).index_add(0, whole(2), some(2, 8)),
    lambda: torch.zeros(4, 8).index_put((whole(2),), some(2, 8), accumulate=True),
    lambda: some(4, 8).index_select(0, whole(2)),
    lambda: some(4, 4).tril().roll(1).flip(0).repeat_interleave(2, 0),
    lambda: torch.where(torch.empty(4) > 0, some(4), some(4)),
]

PRODUCTS_AND_ACTIVATIONS = [
    lambda: torch.einsum("bij,bjk->bik", some(2, 3, 4), some(2, 4, 5)),
    lambda: torch.einsum("i,j->ij", some(3), some(4)),
    lambda: torch.outer(some(3), some(4)) @ some(4),
    lambda: torch.addmv(some(3), some(3, 3), some(3)).dot(some(3)),
    lambda: nn.Bilinear(4, 4, 4)(some(2, 4), some(2, 4)),
    lambda: F.scaled_dot_product_attention(*qkv(2, 2, 4, 8), is_causal=True),
    lambda: F.scaled_dot_product_attention(*qkv(2, 2, 4, 8), attn_mask=torch.ones(4, 4) > 0),
    lambda: F.scaled_dot_product_attention(*qkv(2, 4, 8), dropout_p=0.1),
    lambda: nn.MultiheadAttention(8, 2)(*qkv(3, 2, 8))[0],
    lambda: nn.TransformerEncoderLayer(8, 2, 16)(some(3, 2, 8)),
    lambda: nn.GRU(4, 4)(some(3, 2, 4))[0],
    lambda: nn.LSTMCell(4, 4)(some(2, 4))[0],
    lambda: F.dropout(F.gelu(some(4, 8))),
    lambda: F.dropout2d(F.silu(some(*IMAGES))),
    lambda: F.glu(F.mish(F.hardswish(F.elu(some(4, 8))))),
    lambda: F.gumbel_softmax(some(4, 8)).logsumexp(1),
    lambda: nn.PReLU()(F.softplus(some(4))),
    lambda: torch.view_as_real(torch.polar(some(4), some(4)) * torch.view_as_complex(some(4, 2))),
]


def model_with_gradients():
    model = nn.Linear(8, 8)
    model(torch.empty(4, 8)).sum().backward()
    return model


def clip(model, norm, foreach):
    nn.utils.clip_grad_norm_(model.parameters(), 1.0, norm_type=norm, foreach=foreach)


def average(model):
    averaged = swa_utils.AveragedModel(model, multi_avg_fn=swa_utils.get_ema_multi_avg_fn(0.9))
    for _ in range(2):
        averaged.update_parameters(model)


def step(model, optimizer, **options):
    made = optimizer(model.parameters(), lr=0.1, **options)
    for _ in range(2):
        made.step()


OPTIMIZERS = [
    functools.partial(clip, norm=2, foreach=True),
    functools.partial(clip, norm=2, foreach=False),
    functools.partial(clip, norm=float("inf"), foreach=True),
    lambda model: nn.utils.clip_grad_value_(model.parameters(), 1.0),
    average,
    functools.partial(step, optimizer=torch.optim.Adagrad, foreach=True),
    functools.partial(step, optimizer=torch.optim.AdamW, amsgrad=True, foreach=True),
    functools.partial(step, optimizer=torch.optim.AdamW, foreach=False),
    functools.partial(step, optimizer=torch.optim.AdamW, fused=True),
    functools.partial(step, optimizer=torch.optim.NAdam, foreach=True),
    functools.partial(step, optimizer=torch.optim.RMSprop, foreach=True),
    functools.partial(step, optimizer=torch.optim.SGD, momentum=0.9, nesterov=True),
    functools.partial(step, optimizer=torch.optim.SGD, fused=True),
]

# what nobody knows, and why: it has many small steps, and how long these take depends on each other
UNKNOWN = {
    "mkldnn_rnn_layer": lambda: nn.LSTM(4, 4)(some(3, 2, 4))[0],
    "linalg_cholesky_ex": lambda: torch.linalg.cholesky(some(3, 3)),
    "_linalg_eigh": lambda: torch.linalg.eigvalsh(some(3, 3)),
    "_linalg_svd": lambda: torch.linalg.svdvals(some(3, 3)),
    "_linalg_solve_ex": lambda: torch.linalg.solve(some(3, 3), some(3, 3)),
    "linalg_inv_ex": lambda: torch.linalg.inv(some(3, 3)),
    "linalg_qr": lambda: torch.linalg.qr(some(3, 3))[0],
}


def unknown_in(program):
    return {kernel.name for kernel in kernels(program) if kernel.kind == "unknown"}


def trained(program):
    """A program with its backward pass."""
    program().sum().backward()


@pytest.mark.parametrize(
    "programs", [NORMS_AND_LOSSES, IMAGES_AND_SIGNALS, PLACES, PRODUCTS_AND_ACTIVATIONS]
)
def test_layers_and_losses_have_costs_in_both_passes(programs):
    for number, program in enumerate(programs):
        assert (number, unknown_in(functools.partial(trained, program))) == (number, set())


@pytest.mark.filterwarnings("ignore:Accessing the data pointer")  # as a copy of a model does
@pytest.mark.parametrize("after_backward", OPTIMIZERS)
def test_optimizers_and_what_looks_at_gradients_have_costs(after_backward):
    assert unknown_in(lambda: after_backward(model_with_gradients())) == set()


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_takes_many_small_steps_is_marked(name):
    assert name in unknown_in(UNKNOWN[name])


def test_a_norm_takes_as_long_as_its_bytes():
    program = functools.partial(torch.linalg.vector_norm, torch.empty(1000))
    kernel = kernels(program)[-1]
    assert (kernel.name, kernel.kind) == ("linalg_vector_norm", "bytes")
    assert kernel.num_bytes == 4 * 1001
