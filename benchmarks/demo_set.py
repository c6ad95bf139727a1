"""How the embedded textures were chosen: accuracy of standard training, clean and corrupted.

    python benchmarks/demo_set.py        # a minute for each setting on one core

The set should hurt a standard network as much as CIFAR-10 does: 15 to 20 points between clean
and corrupted accuracy. Only the standard arm is trained here. The last one of `TRIED` is what the
data source and its recipe have.

`results/demo/standard.csv` is what the choice was made from: one seed, 250 test images, drawn from
the same distributions in another random order. Its first two lines have the pattern on a shape
alone, which the network did not learn; they cannot be repeated here. This script prints its lines.
"""

import json
import tempfile
import time
from pathlib import Path

import torch

import killick
from killick.data.sources.textures import CONTRAST, PERIOD, make_textures
from killick.training.recipe_files import load_recipe

RECIPE = "textures-compare"
TEST = 250
Range = tuple[float, float]
# Contrast, period, epochs.
TRIED: list[tuple[Range, Range, int]] = [
    ((0.3, 0.8), (3.5, 6.0), 16),
    ((0.15, 0.5), (3.5, 6.0), 16),
    ((0.1, 0.35), (3.2, 5.5), 20),
    ((0.07, 0.3), (3.0, 5.0), 20),
    (CONTRAST, PERIOD, load_recipe(RECIPE).epochs),
]


def measure(contrast: Range, period: Range, epochs: int, seed: int = 0) -> dict[str, object]:
    """Train and evaluate a standard network on one variant of the set."""
    data = load_recipe(RECIPE).data
    count = (data.limit or 0) + int(data.validation or 0)
    x, y, test_x, test_y = make_textures(count, TEST, 0, contrast, period)
    settings: dict[str, object] = {"data.limit": data.limit, "data.validation": data.validation}
    settings |= {"protocol.name": "standard", "epochs": epochs, "seed": seed}
    began = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        killick.train(RECIPE, (x, y), f"{folder}/run", settings=settings, quiet=True, device="cpu")
        rows = killick.evaluate(
            f"{folder}/run", (test_x, test_y), suites=("clean", "corruptions"), device="cpu"
        )
        lines = (Path(folder) / "run" / "metrics.jsonl").read_text().splitlines()
    trained = [each["accuracy"] for each in map(json.loads, lines) if each["kind"] == "train"]
    top1 = [row for row in rows if row["metric"] == "top1"]
    (clean,) = (row["value"] for row in top1 if row["suite"] == "clean")
    (corrupted,) = (
        row["value"] for row in top1 if row["mean_of"] == "c" and row["severity"] == "all"
    )
    return {
        "contrast": "{} to {}".format(*contrast),
        "period": "{} to {}".format(*period),
        "epochs": epochs,
        "seed": seed,
        "training accuracy": round(trained[-1], 3),
        "clean": round(clean, 4),
        "corrupted": round(corrupted, 4),
        "gap": round(clean - corrupted, 4),
        "cpu seconds": round(time.process_time() - began),
    }


def main() -> None:
    """Measure all settings, and print each."""
    torch.set_num_threads(1)
    for setting in TRIED:
        print(measure(*setting), flush=True)


if __name__ == "__main__":
    main()
