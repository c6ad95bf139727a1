"""What the arms answered to each image, as far as their runs kept it."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from killick.report.comparison import Arm, answers_of, seed_of

Array = np.ndarray[Any, Any]

CORRUPTED = ("corruptions", "cbar")


@dataclass(frozen=True)
class Judged:
    """Some sets of one run, images one after another.

    Attributes:
        seed: Of the run.
        confidence: `(n,)`, of the predicted class.
        correct: `(n,)`, whether that was right.
        spread: `(n,)`, over references; empty with one reference.
    """

    seed: int
    confidence: Array
    correct: Array
    spread: Array


def judged(arm: Arm, suites: tuple[str, ...], inference: str = "single") -> list[Judged]:
    """For each seed all images of some suites; seeds without answers are left out.

    Args:
        arm: Whose runs are looked at.
        suites: "clean", "corruptions", "cbar".
        inference: "single", or "marginal" with the spread over references.
    """
    found = []
    for run in arm.runs:
        parts = [
            getattr(answers, inference)
            for answers in answers_of(run)
            if answers.about.get("suite") in suites
        ]
        parts = [part for part in parts if "correct" in part]
        if parts:
            found.append(
                Judged(
                    seed_of(run),
                    _join(parts, "confidence").astype(np.float64),
                    _join(parts, "correct").astype(bool),
                    _join([part for part in parts if "spread" in part], "spread"),
                )
            )
    return found


def energies(arm: Arm) -> Iterator[tuple[int, str, Array]]:
    """The energy of each image: seed, OOD set or "" for the clean test set, `(n,)`."""
    for run in arm.runs:
        for answers in answers_of(run):
            suite = answers.about.get("suite")
            if suite in ("clean", "ood"):
                name = "" if suite == "clean" else str(answers.about["set"])
                yield seed_of(run), name, answers.single["energy"].astype(np.float64)


def _join(parts: list[dict[str, Array]], name: str) -> Array:
    return np.concatenate([part[name] for part in parts]) if parts else np.zeros(0)
