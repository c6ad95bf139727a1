"""Smooth calibration error and OOD detection in a `MetricCollection`, over batches of logits."""

import torch
from torchmetrics import MetricCollection
from torchmetrics.classification import MulticlassAccuracy

from killick.integrations.torchmetrics import EnergyAUROC, SmoothCalibrationError

accuracy = MulticlassAccuracy(num_classes=10, average="micro", ignore_index=-1)
metrics = MetricCollection([accuracy, SmoothCalibrationError(), EnergyAUROC()])
for _ in range(5):
    logits, labels = torch.randn(64, 10), torch.randint(10, (64,))
    labels[::4] = -1  # OOD images
    metrics.update(logits, labels)
print({name: round(float(value), 3) for name, value in metrics.compute().items()})
