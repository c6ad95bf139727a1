"""What fewer bits cost and save: one trained model, exported to ONNX in every precision.

    python benchmarks/precisions.py                      # trains on embedded shapes: minutes

Accuracy, agreement and accepted share are those that `killick export` measures on all 2,000 test
images; time is onnxruntime's for 64 images on one thread over that of the float32 file.
"""

import argparse
import csv
import tempfile
from collections.abc import Callable
from pathlib import Path

import onnxruntime
import torch
from paired_timing import RESULTS, compare

import killick
from killick.storage.export_metadata import PRECISIONS
from killick.storage.exported_file import Exported
from killick.training import load_recipe, train


def main() -> None:
    """Train once, export in every precision, compare."""
    parser = argparse.ArgumentParser(description="What fewer bits cost and save.")
    parser.add_argument("--run", type=Path, help="a run of shapes-compare, instead of a new one")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as place:
        run = options.run or Path(place) / "run"
        if options.run is None:
            changes = {"protocol.name": "masked", "protocol.target": "label"}
            train(load_recipe("shapes-compare", changes), run, quiet=True)
        made = {
            precision: killick.export(run, Path(place) / precision, precision=precision, limit=2000)
            for precision in PRECISIONS
        }
        write(made, measure_time(made))


def measure_time(made: dict[str, Exported]) -> dict[str, float]:
    """Ratios of time to the first file, in turns."""
    shape = next(iter(made.values())).about.image_shape
    images = torch.randint(256, (64, *shape)).to(torch.uint8).numpy()

    def run(path: Path) -> Callable[[], object]:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        return lambda: session.run(None, {"images": images})

    contenders = {name: run(exported.path) for name, exported in made.items()}
    rows = compare("precisions", "resnet_small, batch 64", contenders, rounds=60, items=64)
    return {row.contender: row.ratio for row in rows}  # and float32's to itself: the noise


def write(made: dict[str, Exported], ratios: dict[str, float]) -> None:
    """A line for each precision."""
    path = RESULTS / "precisions-cpu.csv"
    with open(path, "w", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(
            ["precision", "kilobytes", "accuracy", "model accuracy", "same label"]
            + [
                "largest probability difference",
                "accepted",
                "time over float32",
                "control",
                "images",
            ]
        )
        for precision, exported in made.items():
            seen = exported.about.measured["images"]
            table.writerow(
                [
                    precision,
                    round(exported.path.stat().st_size / 1000),
                    round(seen["accuracy"], 4),
                    round(seen["model_accuracy"], 4),
                    round(seen["same_label"], 4),
                    round(seen["largest_probability_difference"], 6),
                    round(seen["accepted"], 4),
                    ratios.get(precision, 1.0),
                    ratios["float32 (control)"],
                    seen["count"],
                ]
            )
    print(path.read_text())


if __name__ == "__main__":
    main()
