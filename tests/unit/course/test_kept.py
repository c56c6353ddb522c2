"""`Kept` counts what a forward pass leaves in memory."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from distlab_course.kept import Kept


def test_what_autograd_keeps_counts_and_what_is_freed_does_not():
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    x = torch.ones(3, 4)
    with Kept(model) as kept:
        y = model(x)
    hidden = 3 * 8 * 4  # what ReLU gives, in bytes; it keeps its output and frees its input
    assert kept.num_bytes == hidden + y.nbytes


def test_with_recomputation_only_the_output_is_left():
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    x = torch.ones(3, 4, requires_grad=True)
    with Kept(model) as kept:
        y = checkpoint(model, x, use_reentrant=False, preserve_rng_state=False)
    assert kept.num_bytes == y.nbytes


def test_a_tensor_that_is_gone_no_longer_counts():
    with Kept(nn.Identity()) as kept:
        y = torch.ones(3) + 1
    assert kept.num_bytes == y.nbytes
    del y
    assert kept.num_bytes == 0
