"""A network, a data set and a loader of your own: fine-tuned with masked references, then evaluated.

Torchvision's random images stand in for yours.

    python examples/own_data.py runs/own
"""

import sys

import torch
from torch.utils.data import DataLoader
from torchvision.datasets import FakeData
from torchvision.transforms import v2

import killick

normalize = (0.5, 0.5, 0.5), (0.25, 0.25, 0.25)
to_float = [v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(*normalize)]
train_set = FakeData(256, (3, 32, 32), 10, v2.Compose([v2.RandomHorizontalFlip(), *to_float]))
test_set = FakeData(64, (3, 32, 32), 10, v2.Compose(to_float), random_offset=256)
loader = DataLoader(test_set, batch_size=32)

net = killick.nets.create("killick:resnet_small", num_classes=10)
data = {"train": train_set, "test": loader}
run = killick.train(net, data, sys.argv[1], normalize=normalize, settings={"epochs": 1})
rows = killick.evaluate(run.folder, loader, ("clean", "ood"), normalize=normalize)
for row in rows:  # or pandas.DataFrame(rows)
    if row["metric"] in ("top1", "auroc"):
        print(row["suite"], row["set"], row["inference"], row["metric"], row["value"])
