"""Corruptions on a GPU: the same operations, another stream of random numbers."""

import pytest
import torch
from test_corrupt import EVERY, FIXED, photographs

import kedge

pytestmark = pytest.mark.gpu


def corrupt(images, name, severity, table, device):
    generator = torch.Generator(device).manual_seed(0)
    return kedge.corrupt(images.to(device), name, severity, table=table, generator=generator).cpu()


@pytest.mark.parametrize(("name", "table"), EVERY)
def test_cpu_and_gpu_agree_in_distribution(name, table):
    images = photographs(500)
    for severity in (1, 3, 5):
        ours, theirs = (
            corrupt(images, name, severity, table, device).float() for device in ("cpu", "cuda")
        )
        if name in FIXED:
            assert float((ours - theirs).abs().max()) <= 1  # rounding before truncation
            continue
        changes = [(made - images.float()).abs().mean() for made in (ours, theirs)]
        assert float(changes[1]) == pytest.approx(float(changes[0]), rel=0.06, abs=0.15)
        for compute in (lambda x: x.mean((0, 2, 3)), lambda x: x.std((0, 2, 3))):
            assert torch.allclose(compute(ours), compute(theirs), rtol=0.03, atol=0.8)
        spectra = [torch.fft.rfft2(made).abs().mean((0, 1)) for made in (ours, theirs)]
        assert float((spectra[0] / spectra[1]).log().abs().mean()) < 0.06


@pytest.mark.parametrize(("name", "table"), EVERY)
def test_the_same_generator_gives_the_same_pixels_and_stays_on_the_device(name, table):
    images = photographs(20).cuda()
    made = [
        kedge.corrupt(
            images, name, 3, table=table, generator=torch.Generator("cuda").manual_seed(1)
        )
        for _ in range(2)
    ]
    assert made[0].is_cuda
    assert torch.equal(*made)


def test_a_generator_of_another_device_is_refused():
    with pytest.raises(kedge.errors.OptionError, match="on the images' device, cuda, found .* cpu"):
        kedge.corrupt(photographs(1).cuda(), "fog", 1, generator=torch.Generator())
