"""Metrics over the usual libraries, on one CPU thread.

Claims: relplot takes at least 10 times as long for the smooth calibration error of 500,000 images,
scikit-learn at least 3 times as long for the AUROC of 1,000,000 scores. The inputs are float32 as a
model gives them; arrays are made of them beforehand.

    python benchmarks/metrics.py            # print
    python benchmarks/metrics.py --write    # and write results/metrics.csv
"""

import sys
from importlib import import_module

import numpy as np
import torch
from paired_timing import Ratio, compare, write
from sklearn.metrics import average_precision_score, roc_auc_score

from killick.metrics import aupr, auroc, smooth_ece, smooth_ece_interval


def measure_calibration(n: int, kind: str, rounds: int) -> list[Ratio]:
    """Smooth calibration error with automatic bandwidth."""
    relplot = import_module("relplot")  # it has no types
    generator = torch.Generator().manual_seed(0)
    confidence = 1 - torch.rand(n, generator=generator).pow(3) * 0.9
    gap = {"calibrated": 0.0, "overconfident": 0.2}[kind]
    correct = torch.rand(n, generator=generator) < confidence - gap
    f, y = confidence.numpy(), correct.double().numpy()
    ours, theirs = smooth_ece(confidence, correct), float(relplot.smECE(f, y))
    print(f"{kind}: killick {ours:.5f}, relplot {theirs:.5f}")
    return compare(
        "metrics",
        f"smooth ECE, {n:,} images, {kind}",
        {
            "killick": lambda: smooth_ece(confidence, correct),
            "relplot": lambda: relplot.smECE(f, y),
        },
        rounds=rounds,
        items=n,
    )


def measure_interval(n: int, rounds: int) -> list[Ratio]:
    """The bootstrap of 200 resamples over one estimate."""
    generator = torch.Generator().manual_seed(0)
    confidence = 1 - torch.rand(n, generator=generator).pow(3) * 0.9
    correct = torch.rand(n, generator=generator) < confidence
    return compare(
        "metrics",
        f"interval of smooth ECE, {n:,} images",
        {
            "one estimate": lambda: smooth_ece(confidence, correct),
            "200 resamples": lambda: smooth_ece_interval(confidence, correct, generator=generator),
        },
        rounds=rounds,
        items=n,
    )


def measure_detection(n: int, rounds: int) -> list[Ratio]:
    """AUROC and average precision of `n` scores, half of them out of distribution."""
    generator = torch.Generator().manual_seed(0)
    inside = torch.randn(n // 2, generator=generator)
    outside = torch.randn(n // 2, generator=generator) + 0.7
    labels = np.repeat([0, 1], n // 2)
    scores = torch.cat([inside, outside]).numpy()
    print(f"difference of AUROC: {auroc(inside, outside) - roc_auc_score(labels, scores):.1e}")
    rows = compare(
        "metrics",
        f"AUROC, {n:,} scores",
        {
            "killick": lambda: auroc(inside, outside),
            "scikit-learn": lambda: roc_auc_score(labels, scores),
        },
        rounds=rounds,
        items=n,
    )
    return rows + compare(
        "metrics",
        f"average precision, {n:,} scores",
        {
            "killick": lambda: aupr(inside, outside),
            "scikit-learn": lambda: average_precision_score(labels, scores),
        },
        rounds=rounds,
        items=n,
    )


def main() -> None:
    """Measure, and write if told to."""
    torch.set_num_threads(1)
    rows = measure_calibration(500_000, "calibrated", rounds=15)
    rows += measure_calibration(500_000, "overconfident", rounds=15)
    rows += measure_calibration(10_000, "calibrated", rounds=30)
    rows += measure_interval(10_000, rounds=10)
    rows += measure_detection(1_000_000, rounds=15)
    if "--write" in sys.argv[1:]:
        write("metrics", rows)


if __name__ == "__main__":
    main()
