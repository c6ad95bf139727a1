"""What a hidden reference does to a trained model: the reference half of its pairs, faded out.

The pair is `[share * reference, x - reference]`: at 1 it is the one of evaluation, at 0 the one
that masking shows in training, and in between nothing that was ever trained on. A model that was
trained towards the uniform distribution can obey by noticing zeros alone (a gate): then it answers
as ever until `share` is small.

- `mean`: the mean of the stored references takes the place of one in both halves, the other way to
  nearly hide a reference.
- `batch`: as `faded`, but BatchNorm takes the statistics of the batch, all of it hidden or shown,
  as in training; except that here a batch has up to 1,000 plain pictures and a single reference.

`evidence.py` measures this of its models. By itself, on the embedded shapes, with a small ResNet
on a CPU (some minutes, `results/gate-shapes-cpu.csv`):

    python benchmarks/gate.py
"""

import csv
import math
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from paired import RESULTS
from torch import Tensor

import kedge
from kedge.anchored import Anchored
from kedge.batchnorm import tracked_norms
from kedge.data.images import ImageSet
from kedge.data.sources import load_sets
from kedge.training import load_recipe, train

SHARES = (0.0, 0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0)
FIELDS = ("pair", "share", "reference", "top1", "confidence", "entropy")
BATCH = 1000
FEW = 500  # of the shapes, on a CPU
ARMS = {
    "label, by batch": {"protocol.target": "label"},
    "uniform, by batch": {"protocol.target": "uniform"},
    "uniform, by sample": {"protocol.target": "uniform", "protocol.scope": "sample"},
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
    model = kedge.load(run / "model")
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
    """Train on shapes, fade references, write the means over references and seeds."""
    test = load_sets("shapes").test
    assert test is not None
    rows: list[dict[str, Any]] = []
    for arm, settings in ARMS.items():
        for seed in range(3):
            recipe = load_recipe(
                "shapes-compare", {"protocol.name": "masked", **settings, "seed": seed}
            )
            with tempfile.TemporaryDirectory() as folder:
                train(recipe, Path(folder) / "run", quiet=True)
                model = kedge.load(Path(folder) / "run" / "model")
            assert isinstance(model, Anchored)
            for found in fade_references(model, test.images()[:FEW], test.labels[:FEW], (0.0, 1.0)):
                rows.append({"arm": arm, "seed": seed, **found})
        hidden = [row for row in rows if row["arm"] == arm and row["share"] == 0.0]
        for pair in ("faded", "batch"):
            each = [row["confidence"] for row in hidden if row["pair"] == pair]
            print(f"{arm}: confidence of hidden pairs ({pair}): {sum(each) / len(each):.3f}")
    write_table(RESULTS / "gate-shapes-cpu.csv", ("arm", "seed", *FIELDS), rows)


if __name__ == "__main__":
    main()
