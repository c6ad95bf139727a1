"""Small models and sets, shared by the tests of evaluation."""

import copy
from functools import lru_cache
from pathlib import Path

import torch
from conftest import small_cnn
from torch import nn

import killick
from killick.data.image_set import ImageSet

MEAN_STD = ((0.5, 0.5, 0.5), (0.25, 0.25, 0.25))
NAMES = ("red", "green", "blue", "grey")


def make_set(count: int = 300, size: int = 16, seed: int = 0) -> ImageSet:
    """Coloured noise: the class is the channel that is brightest, or none."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % 4
    images = torch.randint(20, 130, (count, 3, size, size), generator=generator)
    for channel in range(3):
        images[labels == channel, channel] += 12
    images += torch.randint(-9, 9, (count, 3, 1, 1), generator=generator)
    return ImageSet.of("colours", images.clamp(0, 255).to(torch.uint8), labels, NAMES)


class Colours(nn.Module):
    """Classifies by mean colour; knows its classes without training."""

    def __init__(self, classes: int = 4) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(20.0))
        self.classes = classes

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        means = x.mean((2, 3))
        grey = means.mean(1, keepdim=True) + 0.08
        logits = self.weight * torch.cat([means, grey], 1)
        return nn.functional.pad(logits, (0, self.classes - 4))


def make_standard(classes: int = 4, size: int = 16) -> killick.Standard:
    return killick.standard(Colours(classes), MEAN_STD, image_shape=(3, size, size)).eval()


def make_anchored(references: int = 3) -> killick.Anchored:
    """A few steps of training: better than chance, and each reference makes a difference."""
    model = copy.deepcopy(_trained())
    images = make_set(references, seed=3).images()
    return model.set_references(images).eval()


@lru_cache
def _trained() -> killick.Anchored:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = killick.anchor(
            small_cnn(classes=4), normalize=MEAN_STD, example=torch.rand(2, 3, 16, 16)
        ).train()
        masking = killick.ReferenceMasking(alpha=0.25, target="label")
        optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
        data = make_set(400, seed=1)
        for chosen in torch.randperm(400).repeat(5).split(50):
            masking.loss(model, data.images()[chosen], data.labels[chosen]).backward()
            optimizer.step()
            optimizer.zero_grad()
        return model.eval()


def find(rows: list[dict], metric: str, **columns) -> dict:
    """The one row with these columns; empty ones where nothing is said."""
    wanted = {"scaling": "", "score": "", "reference": "", "corruption": "", **columns}
    found = [
        row
        for row in rows
        if row["metric"] == metric and all(row[name] == value for name, value in wanted.items())
    ]
    assert len(found) == 1, (metric, columns, len(found))
    return found[0]


def evaluate_all(folder: str | Path) -> None:
    """All suites, with rows in a folder."""
    torch.manual_seed(0)
    suites = ("clean", "corruptions", "calibration", "ood", "occlusion", "adversarial", "conformal")
    options = {"corruptions": ["gaussian_noise"], "validation": make_set(260, seed=9)}
    killick.evaluate(
        make_anchored(), make_set(), suites, folder=folder, quiet=True, device="cpu", **options
    )
