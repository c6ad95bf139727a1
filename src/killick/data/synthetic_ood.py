"""Synthetic OOD images: noise, blobs, and real images with scrambled phases.

Each function takes a batch of images, for their number, size and device, and a generator.
"""

import torch
from torch import Tensor


def make_noise(images: Tensor, generator: torch.Generator) -> Tensor:
    """Every value of every pixel drawn evenly from 0 to 255."""
    return torch.randint(
        256, images.shape, dtype=torch.uint8, device=images.device, generator=generator
    )


def make_blobs(images: Tensor, generator: torch.Generator) -> Tensor:
    """Sharp-edged blobs of full color channels: smoothed noise, cut at its middle.

    In each channel the pixels above the middle of a Gaussian field are 255, the others 0. The field
    is noise smoothed with a standard deviation of a sixteenth of the side.
    """
    n, channels, height, width = images.shape
    noise = torch.randn(images.shape, device=images.device, generator=generator)
    rows = _gaussian(height, height / 16, images.device)
    columns = _gaussian(width, width / 16, images.device)
    field = rows @ noise @ columns.T
    middle = field.flatten(2).mean(-1)[..., None, None]
    return (field > middle).to(torch.uint8) * 255


def scramble_phase(images: Tensor, generator: torch.Generator) -> Tensor:
    """The images with their spectrum and random phases: right frequencies, no objects.

    One phase for each frequency is added to all channels, so that colors stay related.
    """
    height, width = images.shape[-2:]
    noise = torch.randn(len(images), 1, height, width, device=images.device, generator=generator)
    # The phases of real noise have the symmetry that keeps the result real.
    spectrum = torch.fft.rfft2(noise)
    turn = spectrum / spectrum.abs().clamp_min(1e-12)
    turn[..., 0, 0] = 1  # the mean stays
    values: Tensor = torch.fft.irfft2(torch.fft.rfft2(images.float()) * turn, s=(height, width))
    return values.round().clamp(0, 255).to(torch.uint8)


def _gaussian(side: int, sigma: float, device: torch.device) -> Tensor:
    """The matrix that smooths a row; what lies beyond the edge is left out."""
    place = torch.arange(side, device=device)
    weights = torch.exp(-0.5 * ((place[:, None] - place) / sigma) ** 2)
    return weights / weights.sum(1, keepdim=True)


SYNTHETIC = {"noise": make_noise, "blobs": make_blobs, "scrambled": scramble_phase}
