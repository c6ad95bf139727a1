"""Check an exported network on the machine where it is to run, without Killick.

    python check.py                                      the file beside this script, on the CPU
    python check.py --device cuda                        on a GPU

It shows the network the images of examples.npz, one by one and all together, and compares what
comes out with what came out when it was exported. model.onnx needs numpy and onnxruntime, model.pt2
numpy and torch. Exit code 0: the same; 1: not.
"""

import argparse
import json
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

try:
    import numpy as np
except ImportError:
    sys.exit("cannot check: it needs numpy. Install it: pip install numpy")

Network = Callable[[Any], list[Any]]


def main() -> int:
    """Compare, tell, and return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu", help="cpu (default), cuda, or cuda:1")
    asked = parser.parse_args()
    here = Path(__file__).resolve().parent
    about = json.loads((here / "model.json").read_text(encoding="utf-8"))
    with np.load(here / "examples.npz", allow_pickle=False) as file:
        kept = {name: file[name] for name in file.files}
    images, tolerance = kept.pop("images"), float(kept.pop("tolerance"))
    open_network = open_onnx if (here / "model.onnx").exists() else open_torch
    network, runtime = open_network(here, asked.device)
    worst = 0.0
    for size in (1, len(images)):
        parts = [network(images[begin : begin + size]) for begin in range(0, len(images), size)]
        columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
        found = dict(zip(about["outputs"], columns, strict=True))
        for name, expected in kept.items():
            off = difference(name, found[name], expected, kept, about)
            worst = max(worst, off)
            if not off <= tolerance:
                print(
                    f"NOT THE SAME: {name} is off by {off:.1e} in batches of {size}, allowed are"
                    f" {tolerance:.0e} ({runtime})"
                )
                return 1
    print(
        f"{about['name']}, {about['precision']}: {len(images)} examples give what they gave when it"
        f" was exported, one by one and together (largest difference {worst:.1e}, allowed"
        f" {tolerance:.0e}; {runtime})"
    )
    return 0


def open_onnx(here: Path, device: str) -> tuple[Network, str]:
    """The network in model.onnx, and by what it is run."""
    import onnxruntime

    kind, _, number = device.partition(":")
    providers: list[Any] = ["CPUExecutionProvider"]
    if kind != "cpu":
        wanted = f"{kind.upper()}ExecutionProvider"
        if wanted not in onnxruntime.get_available_providers():
            sys.exit(f"onnxruntime {onnxruntime.__version__} has no {wanted}")
        providers.insert(0, (wanted, {"device_id": int(number or 0)}))
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(here / "model.onnx"), options, providers=providers)

    def run(images: Any) -> list[Any]:
        return list(session.run(None, {"images": images}))

    return run, f"onnxruntime {onnxruntime.__version__}, {session.get_providers()[0]}"


def open_torch(here: Path, device: str) -> tuple[Network, str]:
    """The network in model.pt2, and by what it is run."""
    import torch
    from torch.export.passes import move_to_device_pass

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, about how it reads
        program = torch.export.load(str(here / "model.pt2"))
    if device != "cpu":
        program = move_to_device_pass(program, device)
    module = program.module()

    def run(images: Any) -> list[Any]:
        with torch.no_grad():
            return [output.cpu().numpy() for output in module(torch.from_numpy(images).to(device))]

    return run, f"torch {torch.__version__}, {device}"


def difference(name: str, found: Any, expected: Any, kept: dict[str, Any], about: Any) -> float:
    """How far apart two outputs are: of logits and energies, relative to the largest logit."""
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return float("inf")
    scale = max(1.0, float(np.abs(kept["logits"]).max()))
    if name == "in_distribution":
        # Where the energy is at the threshold to within rounding, both answers are right.
        margin = np.abs(kept["energy"] - about["threshold"]["energy"])
        return float(margin[found != expected].max(initial=0.0)) / scale
    if not np.isfinite(found).all():
        return float("inf")
    apart = float(np.abs(found - expected).max())
    return apart / scale if name in ("logits", "energy") else apart


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Exception as problem:  # a runtime that is not installed, a missing or damaged file
        sys.exit(f"cannot check: {type(problem).__name__}: {' '.join(str(problem).split())}")
