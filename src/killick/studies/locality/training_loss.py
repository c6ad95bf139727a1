"""The loss of a trained network on clean training images, which every training protocol shares."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import cross_entropy

from killick.core.inference import predict
from killick.data.splits import limit_images
from killick.results.measurements import Measured
from killick.runtime.progress import DisplayFactory
from killick.studies.trained_job import open_job

METRIC = "clean_training_loss"
_IMAGES = 1000


@torch.no_grad()
def measure(
    folder: Path,
    options: Mapping[str, Any],
    kept: Measured,
    *,
    device: torch.device,
    show: DisplayFactory,
) -> None:
    """Measure the cross-entropy on training images that are neither augmented nor mixed."""
    if kept.records:
        return
    job = open_job(folder, device)
    images = limit_images(job.parts.train, _IMAGES)
    labels, total = images.labels.to(device), 0.0
    for place, block in job.blocks(images):
        logits = predict(job.model, block).logits
        total += float(cross_entropy(logits, labels[place], reduction="sum"))
    kept.add({"metric": METRIC, "images": len(images), "value": total / len(images)})
