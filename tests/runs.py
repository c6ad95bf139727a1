"""Small runs, shared by the tests of training."""

import os
import signal
from pathlib import Path

import torch
from PIL import Image

import killick
from killick.results.run_folder import read_metrics
from killick.training import Recipe, loop, make_recipe, train
from killick.training.checkpoint import load_checkpoint


def make_image_folder(folder: Path) -> Path:
    """20 images of 4 classes, of several sizes, that a network can tell apart by colour."""
    generator = torch.Generator().manual_seed(0)
    colours = [(200, 40, 40), (40, 200, 40), (40, 40, 200), (200, 200, 40)]
    for kind, colour in enumerate(colours):
        (folder / f"class{kind}").mkdir()
        for number in range(5):
            noise = torch.randint(-30, 30, (36 + number, 40, 3), generator=generator)
            pixels = (noise + torch.tensor(colour)).clamp(0, 255).to(torch.uint8)
            Image.fromarray(pixels.numpy()).save(folder / f"class{kind}" / f"{number}.png")
    return folder


def small(image_folder: Path, **changes) -> Recipe:
    """A run of seconds: 16 images of 16 px, 4 steps an epoch."""
    values = {
        "network": {"name": "killick:resnet_small"},
        "data": {"name": f"imagefolder:{image_folder}", "size": 16, "validation": 0},
        "augment": {"crop": "pad", "padding": 2, "flip": True},
        "protocol": {"name": "masked", "target": "label", "alpha": 0.5, "stored": 2},
        "optimizer": {"lr": 0.02},
        "epochs": 3,
        "batch": 4,
        "log_every": 1,
    }
    for name, value in changes.items():
        group, _, key = name.partition("__")
        if key:
            values.setdefault(group, {})[key] = value
        else:
            values[group] = value
    return make_recipe(values)


def weights_of(folder: Path) -> dict[str, torch.Tensor]:
    return killick.load(folder / "model").state_dict()


def assert_same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> None:
    assert a.keys() == b.keys()
    for name in a:
        assert torch.equal(a[name], b[name]), name


def losses_of(folder: Path) -> list[float]:
    return [loss for e in read_metrics(folder / "metrics.jsonl") for loss in e.get("losses", [])]


def train_and_stop(recipe, folder, steps, monkeypatch, **options):
    """Ctrl-C after so many steps."""
    take = loop.TrainingRun.take_step

    def interrupted(run):
        take(run)
        if run.done == steps:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(loop.TrainingRun, "take_step", interrupted)
    outcome = train(recipe, folder, quiet=True, **options)
    monkeypatch.setattr(loop.TrainingRun, "take_step", take)
    assert not outcome.finished
    assert load_checkpoint(folder)[0]["step"] == steps


EVERYTHING = {
    "average__decay": 0.9,
    "augment__mixup": 0.4,
    "augment__cutmix": 1.0,
    "augment__erase": 0.5,
    "augment__smoothing": 0.1,
    "network__name": "timm:resnet10t",
    "network__arguments": {"drop_rate": 0.3},
    "protocol__target": "uniform",
}
