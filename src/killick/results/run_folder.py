"""A run folder as it is read: rows, predictions, curves and provenance, without model or data.

All files are text and plain arrays, so a folder can be read on another machine, by another version.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from killick.errors import DataError
from killick.results.predictions import Predictions, prediction_files, read_predictions
from killick.results.rows import Row, read_rows

JOB = "job.json"  # the arm and seed of a run in a comparison


@dataclass(frozen=True)
class Run:
    """What is known of a run.

    Attributes:
        name: Of the folder.
        folder: Where it was found; a file of rows alone has the folder that it is in.
        rows: Its results.
        metrics: The lines of `metrics.jsonl`.
        recipe: `recipe.yaml`; empty if it is not there, as the next two.
        environment: `environment.json`.
        job: `job.json`, with `arm` and `seed`, if it is part of a comparison.
    """

    name: str
    folder: Path
    rows: list[Row]
    metrics: list[dict[str, Any]] = field(default_factory=list)
    recipe: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)
    job: dict[str, Any] = field(default_factory=dict)

    @property
    def epochs_before(self) -> int:
        """How many epochs of its schedule another run had trained before it went on."""
        schedule = self.recipe.get("schedule")
        schedule = schedule if isinstance(schedule, dict) else {}
        begin, end = schedule.get("begin", 0), schedule.get("end", 1)
        epochs = self.recipe.get("epochs", 0)
        if not all(type(number) in (int, float) for number in (begin, end, epochs)):
            return 0  # no recipe that Killick wrote
        if not 0 < begin < end <= 1 or not 0 <= epochs < 2**31:
            return 0
        return round(float(epochs * begin / (end - begin)))

    @cached_property
    def predictions(self) -> list[Predictions]:
        """Those that were kept, of the weights that its rows are about."""
        weights = {str(row["weights"]) for row in self.rows}
        found = [read_predictions(path) for path in prediction_files(self.folder)]
        return [each for each in found if str(each.about.get("weights")) in weights]


def read_run(where: Path) -> Run:
    """A run folder, a folder of an evaluation, or a file with rows."""
    rows = read_rows(where)
    if where.is_file():
        return Run(where.parent.name, where.parent, rows)
    return Run(
        where.absolute().name,
        where,
        rows,
        metrics=read_metrics(where / "metrics.jsonl"),
        recipe=_read_yaml(where / "recipe.yaml"),
        environment=_read_json(where / "environment.json"),
        job=read_job(where),
    )


def find_runs(places: Iterable[Path]) -> list[Run]:
    """The runs in some places: run folders, files with rows, or folders that hold such folders.

    Raises:
        DataError: If a place is not there or holds no rows.
    """
    found: dict[Path, Run] = {}
    for place in places:
        if not place.exists():
            raise DataError(f"expected a run folder or a file with rows, found nothing at {place}.")
        if place.is_file() and place.suffix not in (".csv", ".jsonl"):
            raise DataError(f"expected a run folder, rows.csv or rows.jsonl, found {place}.")
        inside = [place] if _has_rows(place) else [p for p in _folders(place) if _has_rows(p)]
        inside.sort(key=lambda path: str(_read_json(path / "environment.json").get("started", "")))
        if not inside:
            raise DataError(
                f"expected rows.csv or rows.jsonl in {place} or in its folders, found none. Runs"
                " have them once they are trained or evaluated."
            )
        for each in inside:
            found.setdefault(each.resolve(), read_run(each))
    return list(found.values())


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The lines of a `metrics.jsonl`; one that was cut off by a kill is left out."""
    if not path.exists():
        return []
    entries = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(entry, dict) and isinstance(entry.get("step"), int):
            entries.append(entry)
    return entries


def read_job(folder: Path) -> dict[str, Any]:
    """Which arm and seed of a comparison a run is, and whether it is finished; empty if of none."""
    return _read_json(folder / JOB)


def _has_rows(place: Path) -> bool:
    if place.is_file():
        return True
    return (place / "rows.jsonl").exists() or (place / "rows.csv").exists()


def _folders(place: Path) -> list[Path]:
    return sorted(path for path in place.iterdir() if path.is_dir())


def _read_json(path: Path) -> dict[str, Any]:
    """An object; empty where there is none, or where it was cut off."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
    except Exception:  # beside its own errors, YAML raises what dates and numbers do
        return {}
    return found if isinstance(found, dict) else {}
