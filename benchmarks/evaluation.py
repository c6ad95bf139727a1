"""Evaluation at 224 px: clean and C (19 corruptions, five severities), over the forward passes alone.

    python benchmarks/evaluation.py               5,000 JPEGs, ResNet-50, bfloat16: on a GPU, some minutes
    python benchmarks/evaluation.py --tiny        tries it, on any machine

Target: at most 1.3. The forward passes are those of the same network on as many images, one batch of
250 again and again, in bfloat16 and channels_last. Images are synthetic, of 224 px and 11 kB;
`seconds` is all of `killick.evaluate`, from file names to rows, and its parts are what it prints.
"""

import argparse
import csv
import tempfile
import time
from pathlib import Path

import torch
from decoding import make_folder
from paired_timing import RESULTS, device_name
from torch import nn

import killick
from killick.runtime.devices import choose_device, wait_for

SETS = 1 + 19 * 5
BATCH = 250


def seconds_of_passes(net: nn.Module, images: int, size: int, device: torch.device) -> float:
    """Of nothing but forward passes."""
    x = torch.rand(min(BATCH, images), 3, size, size, device=device)
    x = x.contiguous(memory_format=torch.channels_last)
    passes = images // len(x)
    with torch.no_grad(), torch.autocast(device.type, torch.bfloat16):
        for _ in range(5):
            net(x)
        wait_for(device)
        began = time.perf_counter()
        for _ in range(passes):
            net(x)
        wait_for(device)
    return time.perf_counter() - began


def main() -> None:
    """Measure; and write, unless tiny."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--tiny", action="store_true", help="a few images, nothing is written")
    tiny = parser.parse_args().tiny
    device = choose_device("auto")
    count, size = (20, 32) if tiny else (5000, 224)
    name = "timm:resnet10t" if tiny else "timm:resnet50"
    net = killick.nets.create(name, num_classes=10).to(device).eval()
    with tempfile.TemporaryDirectory() as work:
        make_folder(Path(work) / "test", (size, size, 1_000 if tiny else 11_000), count)
        began = time.perf_counter()
        killick.evaluate(
            net,
            f"imagefolder:{work}",
            ("clean", "corruptions"),
            normalize=((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
            size=size,
            precision="bfloat16",
            quiet=False,
        )
        seconds = time.perf_counter() - began
    passes = seconds_of_passes(net, SETS * count, size, device)
    row = {
        "images": SETS * count,
        "network": name,
        "seconds": round(seconds, 2),
        "passes alone": round(passes, 2),
        "ratio": round(seconds / passes, 3),
        "device": device_name(device),
        "torch": torch.__version__.split("+")[0],
    }
    print(row)
    if tiny:
        return
    kind = "gpu" if device.type == "cuda" else "cpu"
    with open(RESULTS / f"evaluation-{kind}.csv", "w", newline="") as file:
        table = csv.DictWriter(file, fieldnames=list(row), lineterminator="\n")
        table.writeheader()
        table.writerow(row)


if __name__ == "__main__":
    main()
