"""The predictions of an arm for each image, as far as its runs kept them."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from killick.report.evaluations import predictions_of
from killick.report.run_groups import ArmRuns, seed_of
from killick.results.predictions import Array


@dataclass(frozen=True)
class LabeledPredictions:
    """The predictions of one run for some test sets, one after another."""

    seed: int  # of the run
    confidence: Array  # of the predicted class
    correct: Array  # whether the prediction is right
    spread: Array  # over references; empty with one reference


def labeled_predictions(
    arm: ArmRuns, suites: tuple[str, ...], inference: str = "single"
) -> list[LabeledPredictions]:
    """All images of some suites, for each seed that has predictions."""
    found = []
    for run in arm.runs:
        parts = [
            getattr(predictions, inference)
            for predictions in predictions_of(run)
            if predictions.about.get("suite") in suites
        ]
        parts = [part for part in parts if "correct" in part]
        if parts:
            found.append(
                LabeledPredictions(
                    seed_of(run),
                    _join(parts, "confidence").astype(np.float64),
                    _join(parts, "correct").astype(bool),
                    _join([part for part in parts if "spread" in part], "spread"),
                )
            )
    return found


def energies(arm: ArmRuns) -> Iterator[tuple[int, str, Array]]:
    """The energy of each image: seed, OOD set or "" for the clean test set, `(n,)`."""
    for run in arm.runs:
        for predictions in predictions_of(run):
            suite = predictions.about.get("suite")
            if suite in ("clean", "ood"):
                name = "" if suite == "clean" else str(predictions.about["set"])
                yield seed_of(run), name, predictions.single["energy"].astype(np.float64)


def _join(parts: list[dict[str, Array]], name: str) -> Array:
    return np.concatenate([part[name] for part in parts]) if parts else np.zeros(0)
