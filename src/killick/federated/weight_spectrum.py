"""Spectra of weights, as probabilities over low frequencies, and their divergence.

Networks fit low frequencies first, so models that learn related tasks should agree on the low part
of the spectra of their weights. Magnitudes ignore phase: a circularly shifted weight matrix has the
same spectrum.
"""

import math
from collections.abc import Mapping
from functools import lru_cache

import torch
from torch import Tensor, nn

from killick.errors import OptionError

SMALLEST = 1e-12  # probability of a bin, before its logarithm is taken
Weights = nn.Module | Mapping[str, Tensor]


def spectrum(model: Weights, keep: float = 1.0) -> dict[str, Tensor]:
    """The spectrum of each weight tensor of a model, as probabilities over the kept bins.

    A tensor is flattened to `[out, rest]` (a vector stays one); magnitudes of its 2-D discrete
    Fourier transform are normalized over the bins that are kept. Biases are left out. Gradients flow
    to the weights.

    Args:
        model: A network, or its weights by name.
        keep: Share of the bins of each tensor, those with the lowest frequencies. Bins of equal
            frequency are kept together, so a few more may stay.

    Example:
        >>> found = spectrum(nn.Linear(4, 3), keep=0.5)
        >>> found["weight"].shape, round(found["weight"].sum().item(), 4)
        (torch.Size([9]), 1.0)
    """
    named = model.named_parameters() if isinstance(model, nn.Module) else model.items()
    if not 0 < keep <= 1:
        raise OptionError(f"keep must be above 0 and at most 1, found {keep:g}.")
    weights = {name: each for name, each in named if name.endswith("weight")}
    return {name: _probabilities(each, keep) for name, each in weights.items()}


def spectral_kl(student: Weights, teacher: Weights, keep: float = 1.0) -> Tensor:
    """How far the spectra of a student's weights are from those of a fixed teacher.

    The sum over tensors of KL(teacher || student), weighted by their shares of the kept bins.
    Multiplying a whole tensor by a number changes nothing.

    Example:
        >>> net = nn.Linear(4, 3)
        >>> spectral_kl(net, net).abs().item() < 1e-6
        True
    """
    with torch.no_grad():
        fixed = spectrum(teacher, keep)
    return divergence(spectrum(student, keep), fixed)


def divergence(student: Mapping[str, Tensor], teacher: Mapping[str, Tensor]) -> Tensor:
    """`spectral_kl` of two spectra; a teacher's can be computed once for many steps."""
    for name in sorted(student.keys() | teacher.keys()):
        sizes = [each[name].numel() if name in each else 0 for each in (student, teacher)]
        if sizes[0] != sizes[1]:
            raise OptionError(
                f"spectra of unequal networks: {name} has {sizes[0]} bins in the student, {sizes[1]}"
                " in the teacher. Use the same architecture for both."
            )
    bins = sum(each.numel() for each in teacher.values())
    parts = [
        fixed.numel() / bins * (fixed * (fixed.log() - student[name].log())).sum()
        for name, fixed in teacher.items()
    ]
    return torch.stack(parts).sum()


def _probabilities(weight: Tensor, keep: float) -> Tensor:
    weight = weight.to(torch.promote_types(weight.dtype, torch.float32))
    matrix = weight.reshape(1, -1) if weight.ndim < 2 else weight.flatten(1)
    magnitudes: Tensor = torch.fft.fft2(matrix).abs()
    kept = magnitudes[_low_bins(*matrix.shape, keep).to(weight.device)]
    return (kept / kept.sum().clamp_min(SMALLEST)).clamp_min(SMALLEST)


@lru_cache(maxsize=512)
def _low_bins(rows: int, columns: int, keep: float) -> Tensor:
    """Which bins are kept: all up to the radius of the `ceil(keep * n)`-th."""
    down, across = (torch.fft.fftfreq(n, dtype=torch.float64).square() for n in (rows, columns))
    radii: Tensor = down[:, None] + across
    last = math.ceil(keep * radii.numel() * (1 - 1e-12))
    return radii <= radii.flatten().kthvalue(last).values * (1 + 1e-9)
