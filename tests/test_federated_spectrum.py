"""Spectra of weights: against sums written out, and what the penalty must and must not see."""

from fractions import Fraction

import pytest
import torch
from oracles import spectra
from torch import nn

from killick.errors import OptionError
from killick.federated import spectral_kl, spectrum

KEEPS = [Fraction(1, 10), Fraction(2, 5), Fraction(1)]


def make_net(seed: int) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        net = nn.Sequential(
            nn.Conv2d(2, 5, 3), nn.BatchNorm2d(5), nn.Flatten(), nn.Linear(6, 4), nn.Linear(7, 1)
        )
        nn.init.normal_(net[1].weight)
    return net.double()


def matrices(net: nn.Module) -> list[list[list[float]]]:
    named = {name: value for name, value in net.state_dict().items() if name.endswith("weight")}
    return [(w[None] if w.ndim == 1 else w.flatten(1)).tolist() for w in named.values()]


@pytest.mark.parametrize("keep", KEEPS)
def test_spectrum_and_divergence_are_those_of_the_formulas(keep):
    student, teacher = make_net(0), make_net(1)
    found = spectrum(student, float(keep))
    assert list(found) == ["0.weight", "1.weight", "3.weight", "4.weight"]
    for mine, matrix in zip(found.values(), matrices(student), strict=True):
        assert mine.tolist() == pytest.approx(spectra.probabilities(matrix, keep), rel=1e-9)
    wanted = spectra.spectral_kl(matrices(student), matrices(teacher), keep)
    assert spectral_kl(student, teacher, float(keep)).item() == pytest.approx(wanted, rel=1e-9)
    by_name = spectral_kl(dict(student.named_parameters()), teacher.state_dict(), float(keep))
    assert by_name.item() == pytest.approx(wanted, rel=1e-9)


@pytest.mark.parametrize("shape", [(1, 7), (4, 6), (5, 9), (8, 8), (6, 27)])
@pytest.mark.parametrize("keep", [Fraction(1, 10), Fraction(1, 3), Fraction(2, 5), Fraction(9, 10)])
def test_kept_bins_are_symmetric_and_as_many_as_asked(shape, keep):
    from killick.federated.weight_spectrum import _low_bins

    kept = _low_bins(*shape, float(keep))
    assert [tuple(each) for each in kept.nonzero().tolist()] == spectra.kept_bins(shape, keep)
    mirrored = kept.roll((-1, -1), (0, 1)).flip(0, 1)  # bin k beside bin -k
    assert torch.equal(kept, mirrored)
    assert kept.sum().item() >= keep * kept.numel()
    assert kept[0, 0]


def test_keep_of_one_is_the_full_spectrum():
    net = make_net(0)
    for name, mine in spectrum(net, 1.0).items():
        weight = net.state_dict()[name]
        whole = torch.fft.fft2(weight.reshape(len(weight) if weight.ndim > 1 else 1, -1)).abs()
        assert torch.allclose(mine, whole.flatten() / whole.sum())


def test_equal_weights_have_no_gradient_and_different_ones_have_one():
    student, teacher = make_net(0), make_net(1)
    for other, expected in ((make_net(0), False), (teacher, True)):
        student.zero_grad()
        spectral_kl(student, other, 0.4).backward()
        for name in ("0.weight", "1.weight", "3.weight"):
            gradient = student.get_parameter(name).grad
            assert bool(gradient.abs().max() > 1e-6) is expected
        assert student.get_parameter("0.bias").grad is None
    assert all(weight.grad is None for weight in teacher.parameters())


@pytest.mark.parametrize("keep", [0.4, 1.0])
def test_gradient_is_that_of_finite_differences(keep):
    teacher = {"weight": torch.randn(3, 5, generator=torch.Generator().manual_seed(1)).double()}
    weight = torch.randn(3, 5, generator=torch.Generator().manual_seed(0)).double()
    weight.requires_grad_()
    assert torch.autograd.gradcheck(lambda w: spectral_kl({"weight": w}, teacher, keep), (weight,))


def test_a_common_scale_and_a_circular_shift_change_nothing():
    net, teacher = make_net(0), make_net(1)
    base = spectral_kl(net, teacher, 0.4)
    scaled = {name: 7.5 * value for name, value in net.state_dict().items()}
    assert torch.allclose(spectral_kl(scaled, teacher, 0.4), base)
    shifted = {
        name: value.flatten(1).roll((1, 2), (0, 1)) if value.ndim > 1 else value
        for name, value in net.state_dict().items()
    }
    assert torch.allclose(spectral_kl(shifted, teacher, 0.4), base)


def test_weights_of_zero_give_finite_values():
    weight = torch.zeros(4, 4, requires_grad=True)
    loss = spectral_kl({"weight": weight}, {"weight": torch.randn(4, 4)})
    loss.backward()
    assert loss.isfinite()
    assert weight.grad.isfinite().all()


def test_attention_weights_are_part_of_the_spectrum():
    attention = nn.MultiheadAttention(8, 2)
    assert list(spectrum(attention)) == ["in_proj_weight", "out_proj.weight"]


def test_spectra_that_cannot_be_compared_are_refused():
    net = make_net(0)
    for other in (nn.Linear(6, 4), {**net.state_dict(), "3.weight": torch.zeros(4, 7)}):
        with pytest.raises(OptionError, match="unequal networks"):
            spectral_kl(net, other)
    for keep in (0.0, 1.5):
        with pytest.raises(OptionError, match="keep must be"):
            spectral_kl(net, net, keep)
