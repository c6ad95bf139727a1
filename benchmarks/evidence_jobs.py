"""Cells of the evidence: a trained and evaluated model each, and what people ask of it."""

import statistics
from collections.abc import Callable, Sequence
from typing import Any

from killick.corruptions.suites import list_corruptions
from killick.results.rows import Row
from killick.results.run_folder import Run

CORRUPTIONS, CBAR = (list_corruptions(kind, "cifar") for kind in ("c", "cbar"))
FOLDERS = {  # of cells, and the grid they belong to
    "first-references": "first",
    "first": "first",
    **dict.fromkeys(("second", "running", "vit", "convnext", "chosen"), "second"),
    "again": "again",
    "choosing": "choosing",
    "finished": "finished",
    "tempered": "tempered",
}
ICELESS = tuple(name for name in CORRUPTIONS if name != "frost")  # Killick's is drawn, not a photo
OOD_SETS = ("textures", "scenes", "characters")
MADE = ("noise", "blobs", "scrambled")  # OOD images of Killick's own
HIGHEST = 5


class Cell:
    """A trained and evaluated model: its rows, and what it is."""

    def __init__(self, grid: str, network: str, arm: str, seed: int, rows: Sequence[Row]) -> None:
        self.grid, self.network, self.arm, self.seed = grid, network, arm, seed
        self.single = [row for row in rows if row["inference"] in ("single", "")]
        self.marginal = [row for row in rows if row["inference"] == "marginal"]

    def mean(
        self,
        suite: str,
        metric: str,
        *,
        rows: Sequence[Row] | None = None,
        of: str = "value",
        scaling: str = "",
        **where: Any,
    ) -> float:
        """Of what the rows of a suite say, over corruptions and severities, or sets."""
        found = [
            float(row[of])
            for row in (self.single if rows is None else rows)
            if row["suite"] == suite
            and row["metric"] == metric
            and row["score"] in ("", "energy")
            and row["scaling"] == scaling
            and whole_or_one(row)
            and all(_among(row[key], wanted) for key, wanted in where.items())
        ]
        return statistics.fmean(found)


class RunCell(Cell):
    """One whose folder is at hand."""

    def __init__(self, run: Run) -> None:
        grid, network = FOLDERS[run.folder.parent.name], str(run.recipe["network"]["name"])
        arm, seed = str(run.job["arm"]), int(run.job["seed"])
        super().__init__(grid, network.partition(":")[2], arm, seed, run.rows)
        self.run, self.epochs = run, int(run.recipe["epochs"]) + run.epochs_before


MEASURES: dict[str, Callable[[Cell], float]] = {
    "clean": lambda cell: cell.mean("clean", "top1"),
    "corrupted": lambda cell: cell.mean("corruptions", "top1"),
    "corrupted, without frost": lambda cell: cell.mean("corruptions", "top1", corruption=ICELESS),
    "severity 5": lambda cell: cell.mean("corruptions", "top1", severity=HIGHEST),
    "C-bar": lambda cell: cell.mean("cbar", "top1"),
    "C-bar, severity 5": lambda cell: cell.mean("cbar", "top1", severity=HIGHEST),
    "shift": lambda cell: cell.mean("shift", "top1"),
    "smooth ECE, clean": lambda cell: cell.mean("clean", "smooth_ece"),
    "smooth ECE, corrupted": lambda cell: cell.mean("corruptions", "smooth_ece"),
    "smooth ECE, C-bar": lambda cell: cell.mean("cbar", "smooth_ece"),
    "smooth ECE, shift": lambda cell: cell.mean("shift", "smooth_ece"),
    "ECE, corrupted": lambda cell: cell.mean("corruptions", "ece"),
    "NLL, corrupted": lambda cell: cell.mean("corruptions", "nll"),
    "OOD AUROC": lambda cell: cell.mean("ood", "auroc", set=OOD_SETS),
    "OOD FPR at 95 %": lambda cell: cell.mean("ood", "fpr_at_95_tpr_in", set=OOD_SETS),
    **{
        f"OOD AUROC, {name}": lambda cell, name=name: cell.mean("ood", "auroc", set=name)  # type: ignore[misc]
        for name in OOD_SETS + MADE
    },
}


HELD_MEASURES = {
    name: MEASURES[name]
    for name in (
        *("clean", "corrupted", "severity 5", "C-bar"),
        *("smooth ECE, clean", "smooth ECE, corrupted", "NLL, corrupted"),
    )
}
# Of cells that set training images aside, to fit a temperature on.
TEMPERED_MEASURES: dict[str, Callable[[Cell], float]] = MEASURES | {
    f"{title}, {where}, temperature": lambda cell, suite=suite, metric=metric: cell.mean(
        suite, metric, scaling="temperature"
    )
    for where, suite in (("clean", "clean"), ("corrupted", "corruptions"))
    for title, metric in (("smooth ECE", "smooth_ece"), ("ECE", "ece"), ("NLL", "nll"))
}
TEMPERED_MEASURES["temperature"] = lambda cell: cell.mean("clean", "temperature")


def whole_or_one(row: Row) -> bool:
    """Whether it is of one corruption at one severity, or of a set without; no mean of others."""
    if row["suite"] not in ("corruptions", "cbar"):
        return True
    return row["corruption"] in (*CORRUPTIONS, *CBAR) and row["severity"] != ""


def _among(value: Any, wanted: Any) -> bool:
    return value in wanted if isinstance(wanted, tuple) else value == wanted
