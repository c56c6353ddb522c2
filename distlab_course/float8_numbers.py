"""Numbers in float8, and the scales that tensors are multiplied with before.

Called by float8.py, float8_gathered.py and float8_weights.py, on the ranks or in predict's process.
The formats are those of "FP8 Formats for Deep Learning" (arXiv 2209.05433): E4M3 for inputs and
weights, and E5M2, whose range is wider, for gradients.
"""

import torch
from torch import Tensor

E4M3 = torch.float8_e4m3fn
E5M2 = torch.float8_e5m2
SMALLEST = 1e-12  # largest number of a tensor that is scaled, so that zeros are not divided by


def scale_of(largest: Tensor, dtype: torch.dtype) -> Tensor:
    """What to multiply a tensor with, so that its largest number is the format's largest.

    Runs on: anywhere.

    Args:
        largest: the absolute value of the tensor's largest number, shape ().
        dtype: E4M3 or E5M2.

    Returns:
        float32, shape ().
    """
    return torch.finfo(dtype).max / largest.float().clamp(min=SMALLEST)


def cast(values: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """A tensor times its scale, in float8; what is too large becomes the largest number.

    Runs on: anywhere.
    """
    most = torch.finfo(dtype).max
    return (values.float() * scale).clamp(-most, most).to(dtype)


def scaled(values: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """A tensor in float8, and the scale that it was multiplied with.

    Runs on: anywhere.
    """
    scale = scale_of(values.abs().max(), dtype)
    return cast(values, scale, dtype), scale
