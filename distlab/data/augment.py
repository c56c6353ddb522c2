"""Images that look a little different in every epoch, so that a network learns what is in them.

Called by the notebooks on the ranks; needs torch alone.
"""

from __future__ import annotations

import torch


def augment(images: torch.Tensor, padding: int = 4) -> torch.Tensor:
    """Cut each image out of a wider border of zeros at a random place, and mirror half of them.

    The random numbers are torch's: ranks that were given the same seed cut alike.

    Runs on: anywhere; no rank waits for another.

    Args:
        images: of [samples, channels, height, width]; they are not changed.
        padding: width of the border, in pixels.

    Returns:
        as many images of the same shape.

    Source: K. He et al., Deep Residual Learning for Image Recognition (2015), section 4.2.
    """
    samples, _, height, width = images.shape
    wide = torch.nn.functional.pad(images, [padding] * 4)
    corners = torch.randint(2 * padding + 1, (samples, 2)).tolist()
    cut = torch.stack([image[:, y : y + height, x : x + width] for image, (y, x) in zip(wide, corners, strict=True)])
    mirrored = torch.rand(samples, 1, 1, 1) < 0.5
    return torch.where(mirrored, cut.flip(3), cut)
