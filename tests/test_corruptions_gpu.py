"""Corruptions on a GPU: the same operations, another stream of random numbers."""

import pytest
import torch
from test_corrupt import EVERY, FIXED, photographs
from torch import Tensor

import killick

pytestmark = pytest.mark.gpu


def corrupt(images, name, severity, table, device):
    generator = torch.Generator(device).manual_seed(0)
    return killick.corrupt(
        images.to(device), name, severity, table=table, generator=generator
    ).cpu()


def features(made: Tensor, images: Tensor) -> Tensor:
    """`(n, 11)`: mean change, moments of each channel, and power in four bands, of each image."""
    made, images = made.double(), images.double()
    power = torch.fft.fft2(made).abs().square().mean(1)
    along = torch.fft.fftfreq(made.shape[-1])
    radius = (along[:, None].square() + along.square()).sqrt()
    bands = [(0.01, 0.1), (0.1, 0.2), (0.2, 0.35), (0.35, 0.8)]
    powers = [power[:, (radius >= low) & (radius < high)].mean(1) for low, high in bands]
    change = (made - images).abs().mean((1, 2, 3))
    moments = [*made.mean((2, 3)).T, *made.std((2, 3)).T]
    return torch.stack([change, *moments, *(1 + value.log1p() for value in powers)], 1)


@pytest.mark.parametrize(("name", "table"), EVERY)
def test_cpu_and_gpu_agree_in_distribution(name, table):
    """Each feature of the images, by a test of two samples of 1,000."""
    images = photographs(1000)
    for severity in (1, 3, 5):
        ours, theirs = (
            corrupt(images, name, severity, table, device) for device in ("cpu", "cuda")
        )
        if name in FIXED:
            assert float((ours.float() - theirs.float()).abs().max()) <= 1  # before truncation
            continue
        a, b = features(ours, images), features(theirs, images)
        spread = ((a.var(0) + b.var(0)) / 1000).sqrt().clamp_min(1e-6)
        assert float(((a.mean(0) - b.mean(0)) / spread).abs().max()) < 5
        assert torch.allclose(a.std(0), b.std(0), rtol=0.25, atol=0.02)


@pytest.mark.parametrize(("name", "table"), EVERY)
def test_the_same_generator_gives_the_same_pixels_and_stays_on_the_device(name, table):
    images = photographs(20).cuda()
    made = [
        killick.corrupt(
            images, name, 3, table=table, generator=torch.Generator("cuda").manual_seed(1)
        )
        for _ in range(2)
    ]
    assert made[0].is_cuda
    assert torch.equal(*made)


def test_a_generator_of_another_device_is_refused():
    with pytest.raises(RuntimeError, match="'cuda' device type for generator but found 'cpu'"):
        killick.corrupt(photographs(1).cuda(), "fog", 1, generator=torch.Generator())
