"""Latency of exported files: the folded network over the plain one, in onnxruntime. Aim: 1.02.

Both are files of `killick.export` in float32 with the same normalization inside and the same outputs:
logits, probabilities and energy. One thread, so that time on the processor is latency.

    python benchmarks/export_latency.py
"""

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path

import onnxruntime
import torch
from paired_timing import Ratio, compare, write

import killick

NORMALISE = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
SETTINGS = [
    ("killick:resnet18", 32, 1, 300),
    ("killick:resnet18", 32, 32, 60),
    ("timm:resnet18", 224, 1, 150),
    ("timm:resnet18", 224, 32, 24),
    ("timm:vit_small_patch16_224", 224, 1, 60),
    ("timm:vit_small_patch16_224", 224, 32, 12),
]


def make_files(name: str, side: int, place: Path) -> dict[str, Path]:
    """The plain network, and the same one anchored, its halves told apart, and folded."""
    torch.manual_seed(0)
    net = killick.nets.create(name).eval()
    standard = killick.standard(net, NORMALISE, image_shape=(3, side, side))
    model = killick.anchor(standard).eval()
    for stem in model.stems:
        weight = model.net.get_parameter(f"{stem.name}.weight").data
        weight.mul_(0.5 + torch.rand_like(weight))
    model.set_references(torch.randint(256, (1, 3, side, side)).to(torch.uint8))
    made = {"plain": standard, "folded": model}
    return {key: killick.export(value, place / key).path for key, value in made.items()}


def measure(name: str, side: int, batch: int, rounds: int, files: dict[str, Path]) -> list[Ratio]:
    """Both files in turns."""
    images = torch.randint(256, (batch, 3, side, side)).to(torch.uint8).numpy()

    def run(path: Path) -> Callable[[], object]:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        return lambda: session.run(None, {"images": images})

    contenders = {key: run(path) for key, path in files.items()}
    setting = f"{name}, {side} px, batch {batch}, onnxruntime {onnxruntime.__version__}"
    return compare("exported", setting, contenders, rounds=rounds, items=batch)


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description="Latency of folded over plain ONNX files.")
    parser.add_argument("--rounds", type=float, default=1, help="times the usual number of rounds")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows: list[Ratio] = []
    for name in dict.fromkeys(setting[0] for setting in SETTINGS):
        with tempfile.TemporaryDirectory() as place:
            sizes = [setting for setting in SETTINGS if setting[0] == name]
            files = make_files(name, sizes[0][1], Path(place))
            for _, side, batch, rounds in sizes:
                rows += measure(name, side, batch, max(2, round(rounds * options.rounds)), files)
    write("exported-cpu", rows)


if __name__ == "__main__":
    main()
