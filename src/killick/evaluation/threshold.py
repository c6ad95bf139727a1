"""The energy threshold of in-distribution images, fitted and stored with the model."""

import torch
from torch import Tensor, nn

from killick import metrics
from killick.core.image_model import Threshold
from killick.core.inference import predict
from killick.core.standard import model_in


def fit_threshold(
    model: nn.Module,
    images: Tensor,
    acceptance: float = 0.95,
    *,
    k: int = 1,
    batch: int = 500,
    fitted_on: str = "given images",
) -> Threshold:
    """Fit the energy threshold that accepts this share of `images`, and store it in `model`.

    From then on `killick.predict(model, x).in_distribution` says which images are at most there, and
    `killick.save` keeps it. Fit it on validation images: on those of training, energies are lower.

    Args:
        model: Anchored or standard, in eval mode.
        images: In-distribution ones, as the model takes them.
        acceptance: Share of them that is to be accepted.
        k: For predictions from so many references.
        batch: Images of a forward pass.
        fitted_on: What the images are, for the record.

    Example:
        >>> import killick
        >>> model = killick.anchor(nn.Linear(4, 3)).set_references(torch.randn(1, 4)).eval()
        >>> threshold = fit_threshold(model, torch.randn(100, 4), acceptance=0.9)
        >>> threshold.fitted_on, threshold.acceptance
        ('given images (100)', 0.9)
    """
    inner = model_in(model)
    protocol = "single" if k == 1 else "marginal"
    energies = [
        predict(model, part, protocol, None if k == 1 else k).energy for part in images.split(batch)
    ]
    found = metrics.threshold(torch.cat(energies), acceptance)  # type: ignore[arg-type]
    where = f"{fitted_on} ({len(images)})"
    inner.threshold = Threshold(float(found), float(acceptance), k, where)
    return inner.threshold
