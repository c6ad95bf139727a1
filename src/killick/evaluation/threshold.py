"""The energy threshold of in-distribution images, fitted and stored with the model."""

import os
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from killick import metrics
from killick.core.image_model import Threshold
from killick.core.inference import predict
from killick.core.standard import model_in
from killick.report.conditions import OOD, suite_of
from killick.results.rows import Row
from killick.storage.loading import load, locate_model
from killick.storage.saving import save


def fit_threshold(
    model: nn.Module,
    images: Tensor,
    acceptance: float = 0.95,
    *,
    k: int = 1,
    batch: int = 500,
    fitted_on: str = "given images",
    ood: Mapping[str, Tensor] | None = None,
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
        ood: OOD sets by name; the share of each that is refused is stored with the threshold.

    Example:
        >>> import killick
        >>> model = killick.anchor(nn.Linear(4, 3)).set_references(torch.randn(1, 4)).eval()
        >>> ood = {"far": 1e4 * torch.ones(9, 4)}
        >>> threshold = fit_threshold(model, torch.randn(100, 4), acceptance=0.9, ood=ood)
        >>> threshold.fitted_on, threshold.acceptance, list(threshold.refused)
        ('given images (100)', 0.9, ['far'])
    """
    inner = model_in(model)
    protocol = "single" if k == 1 else "marginal"

    def energies(images: Tensor) -> Tensor:
        parts = images.split(batch)
        found = [predict(model, part, protocol, None if k == 1 else k).energy for part in parts]
        return torch.cat(found)  # type: ignore[arg-type]

    limit = float(metrics.threshold(energies(images), acceptance))
    refused = {
        name: (energies(others) > limit).double().mean().item()
        for name, others in (ood or {}).items()
    }
    where = f"{fitted_on} ({len(images)})"
    inner.threshold = Threshold(limit, float(acceptance), k, where, refused)
    return inner.threshold


def store_threshold(
    model: str | os.PathLike[str], rows: Iterable[Row], acceptance: float
) -> Threshold:
    """Store the threshold in the rows of an evaluation with the model in a folder, or of a run."""
    rows = list(rows)
    row = next(row for row in rows if row["metric"] == "threshold")
    refused = {
        str(each["set"]): 1 - float(each["value"])
        for each in rows
        if each["metric"] == "accepted" and suite_of(each) == OOD
    }
    folder = locate_model(model)
    loaded = load(folder)
    loaded.threshold = Threshold(float(row["value"]), acceptance, 1, str(row["fitted_on"]), refused)
    save(loaded, folder)
    return loaded.threshold
