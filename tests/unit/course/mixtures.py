"""A mixture of experts with numbers, for tests of its products."""

import torch

from distlab_course.experts import Mixture
from distlab_course.sizes import Experts, Size


def filled_mixture():
    """Four experts and a shared one, in bfloat16; the same numbers each time."""
    torch.manual_seed(0)
    made = Mixture(Size(64, 1, 2, 32), Experts(4, 2, 48, shared=32)).bfloat16()
    made.router.begin()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.normal_(std=0.1)
    return made
