"""A transform, a loss and an optimizer of one's own in a run of Killick: python own_transform.py FOLDER."""

import sys

import torch
from torchvision.transforms import v2

from killick.training import load_recipe, train

recipe = load_recipe(
    "digits-small",
    {"epochs": 1, "data.limit": 256, "optimizer.class_path": "timm.optim.Lamb"},
)
transform = v2.Compose([v2.RandomRotation(10), v2.RandomResizedCrop(32, scale=(0.7, 1))])
loss = torch.nn.CrossEntropyLoss(label_smoothing=0.1)
outcome = train(recipe, sys.argv[1], transform=transform, loss=loss, quiet=True)
print({row["metric"]: round(row["value"], 3) for row in outcome.rows})
