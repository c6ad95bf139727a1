"""What a hidden reference does to a trained model: the reference half of its pairs, faded out.

The pair is `[share * reference, x - reference]`: at 1 it is the one of evaluation, at 0 the one
that masking shows in training, and in between nothing that was ever trained on. A model that was
trained towards the uniform distribution can obey by noticing zeros alone (a gate): then it answers
as ever until `share` is small.

- `mean`: the mean of the stored references takes the place of one in both halves, the other way to
  nearly hide a reference.
- `batch`: as `faded`, but BatchNorm takes the statistics of the batch, all of it hidden or shown,
  as in training; except that here a batch has up to 1,000 plain images and a single reference.

`evidence.py` measures this of its models. By itself, on the embedded shapes, with a small ResNet
on a CPU (a quarter of an hour, `results/gate-shapes-cpu.csv`); or some arms, by their names:

    python benchmarks/gate.py
    python benchmarks/gate.py "uniform, by batch"
"""

import csv
import math
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from paired_timing import RESULTS
from torch import Tensor

import killick
from killick.core.anchored import Anchored
from killick.core.batchnorm import tracked_norms
from killick.data.image_set import ImageSet
from killick.data.sources import load_sets
from killick.training import load_recipe, train

SHARES = (0.0, 0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0)
FIELDS = ("pair", "share", "reference", "top1", "confidence", "entropy")
BATCH = 1000
FEW = 500  # of the shapes, on a CPU
VIT = {
    "network.name": "timm:vit_tiny_patch16_224",
    "network.arguments": {
        "img_size": 32,
        "patch_size": 4,
        "embed_dim": 64,
        "depth": 4,
        "num_heads": 4,
    },
    "data.limit": None,
    "batch": 64,
    "schedule.warmup": 0.1,
    "optimizer.name": "adamw",
    "optimizer.lr": 2e-3,
    "optimizer.weight_decay": 0.05,
    "optimizer.decay": "matrices",
}
LABEL, UNIFORM = {"protocol.target": "label"}, {"protocol.target": "uniform"}
# What is trained, and for how many seeds. A ViT learns from more images, and takes six minutes.
ARMS: dict[str, tuple[dict[str, Any], int]] = {
    "label, by batch": (LABEL, 3),
    "uniform, by batch": (UNIFORM, 3),
    "uniform, by sample": ({**UNIFORM, "protocol.scope": "sample"}, 3),
    "ViT, label, by batch": ({**LABEL, **VIT}, 1),
    "ViT, uniform, by batch": ({**UNIFORM, **VIT}, 1),
}
Found = dict[str, float | str]


@torch.inference_mode()
def fade_references(
    model: Anchored, images: Tensor, labels: Tensor, shares: Sequence[float] = SHARES
) -> list[Found]:
    """Accuracy, mean confidence and entropy (1: uniform) for each share and stored reference."""
    model.eval()
    stored = model.prepare(model.references)
    rows: list[Found] = []
    for number, reference in enumerate(stored[:5]):
        for share in shares:
            found = _judge(model, images, labels, share * reference, reference)
            rows.append({"pair": "faded", "share": share, "reference": number, **found})
        for share in (0.0, 1.0) if tracked_norms(model) else ():
            with _statistics_of_batches(model):
                found = _judge(model, images, labels, share * reference, reference)
            rows.append({"pair": "batch", "share": share, "reference": number, **found})
    mean = stored.mean(0)
    rows.append({"pair": "mean", "share": 1.0, **_judge(model, images, labels, mean, mean)})
    return rows


def _judge(
    model: Anchored, images: Tensor, labels: Tensor, first: Tensor, reference: Tensor
) -> Found:
    correct = confidence = entropy = 0.0
    for x, true in zip(images.split(BATCH), labels.split(BATCH), strict=True):
        residual = model.prepare(x) - reference
        logits = model.net(torch.cat([first.expand_as(residual), residual], 1)).double()
        probs, logs = logits.softmax(1), logits.log_softmax(1)
        correct += float((logits.argmax(1) == true).sum())
        confidence += float(probs.amax(1).sum())
        entropy -= float((probs * logs).sum()) / math.log(logits.shape[1])
    n = len(images)
    return {"top1": correct / n, "confidence": confidence / n, "entropy": entropy / n}


@contextmanager
def _statistics_of_batches(model: Anchored) -> Iterator[None]:
    """BatchNorm as in training, without a trace in its running statistics."""
    norms = tracked_norms(model)
    before = [norm.momentum for norm in norms]
    for norm in norms:
        norm.training, norm.momentum = True, 0.0
    try:
        yield
    finally:
        for norm, momentum in zip(norms, before, strict=True):
            norm.training, norm.momentum = False, momentum


def measure_gate(run: Path, test: ImageSet, device: str) -> None:
    """Write `gate.csv` beside a trained anchored model; nothing for a standard one."""
    model = killick.load(run / "model")
    if not isinstance(model, Anchored):
        return
    rows = fade_references(model.to(device), test.images().to(device), test.labels.to(device))
    write_table(run / "gate.csv", FIELDS, rows)


def write_table(path: Path, fields: Sequence[str], rows: Sequence[dict[str, Any]]) -> None:
    """Rows as CSV, numbers to six places."""
    with open(path, "w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, fields, restval="", lineterminator="\n")
        table.writeheader()
        table.writerows(
            {k: round(v, 6) if isinstance(v, float) else v for k, v in row.items()} for row in rows
        )


def main() -> None:
    """Train on shapes, hide references, write down what was found of each arm and seed."""
    asked = sys.argv[1:] or list(ARMS)
    test = load_sets("shapes").test
    assert test is not None
    file = RESULTS / "gate-shapes-cpu.csv"
    rows: list[dict[str, Any]] = []
    if file.exists():
        with open(file, newline="", encoding="utf-8") as kept:
            rows = [row for row in csv.DictReader(kept) if row["arm"] not in asked]
    for arm in asked:
        settings, seeds = ARMS[arm]
        for seed in range(seeds):
            recipe = load_recipe(
                "shapes-compare", {"protocol.name": "masked", **settings, "seed": seed}
            )
            with tempfile.TemporaryDirectory() as folder:
                train(recipe, Path(folder) / "run", quiet=True)
                model = killick.load(Path(folder) / "run" / "model")
            assert isinstance(model, Anchored)
            for found in fade_references(model, test.images()[:FEW], test.labels[:FEW], (0.0, 1.0)):
                rows.append({"arm": arm, "seed": seed, **found})
            print(arm, seed, [row["confidence"] for row in rows[-13:]], flush=True)
        write_table(file, ("arm", "seed", *FIELDS), rows)


if __name__ == "__main__":
    main()
