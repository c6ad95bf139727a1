"""A run folder as it is read: rows, predictions, curves and provenance, without model or data.

All files are text and plain arrays, so a folder can be read on another machine, by another version.
"""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from killick.errors import DataError, FileError
from killick.results.measurements import read_json_lines
from killick.results.predictions import Predictions, prediction_files, read_predictions
from killick.results.rows import Row, read_rows
from killick.runtime.plain_files import read_text

JOB = "job.json"  # the arm and seed of a run in a comparison


@dataclass(frozen=True)
class Run:
    """What is known of a run; what is not there is empty."""

    name: str  # of the folder
    folder: Path  # a file of rows alone has the folder that it is in
    rows: list[Row]
    metrics: list[dict[str, Any]] = field(default_factory=list)  # lines of `metrics.jsonl`
    recipe: dict[str, Any] = field(default_factory=dict)  # `recipe.yaml`
    environment: dict[str, Any] = field(default_factory=dict)  # `environment.json`
    job: dict[str, Any] = field(default_factory=dict)  # `job.json`: its arm and seed

    @property
    def epochs_before(self) -> int:
        """How many epochs of its schedule another run had trained before it went on."""
        try:
            schedule = self.recipe["schedule"]
            begin, end = schedule["begin"], schedule["end"]
            return max(0, round(float(self.recipe["epochs"] * begin / (end - begin))))
        except (LookupError, TypeError, ValueError, ArithmeticError):
            return 0  # no recipe that Killick wrote

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
        recipe=_read_mapping(where / "recipe.yaml", yaml.safe_load),
        environment=read_environment(where),
        job=read_job(where),
    )


def find_runs(places: Iterable[Path]) -> list[Run]:
    """The runs in some places: run folders, files with rows, or folders that hold such folders.

    Raises:
        DataError: If a place is not there or holds no rows.
    """
    found: dict[Path, Run] = {}
    for place in places:
        if _has_rows(place) or (place.is_file() and place.suffix in (".csv", ".jsonl")):
            inside = [place]
        else:
            folders = filter(_has_rows, place.glob("*"))
            inside = sorted(folders, key=lambda folder: (_start(folder), folder))
        if not inside:
            raise DataError(
                f"expected a run folder, rows.csv or rows.jsonl at {place}, found none. Runs have"
                " rows once they are trained or evaluated."
            )
        for each in inside:
            found.setdefault(each.resolve(), read_run(each))
    return list(found.values())


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The lines of a `metrics.jsonl`; one that was cut off by a kill is left out."""
    numbers = ("step", "epoch", "loss", "accuracy", "lr")
    return [
        entry
        for entry in read_json_lines(path)
        if isinstance(entry.get("step"), int)
        if all(_is_number(entry.get(name, 0)) for name in numbers)
    ]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not abs(value) > 1e300  # NaN is one


def read_environment(folder: Path) -> dict[str, Any]:
    """Versions, machine and command of a run; empty if unknown."""
    return _read_mapping(folder / "environment.json", json.loads)


def read_job(folder: Path) -> dict[str, Any]:
    """Which arm and seed of a comparison a run is, and whether it is finished; empty if of none."""
    return _read_mapping(folder / JOB, json.loads)


def _has_rows(folder: Path) -> bool:
    return any((folder / name).is_file() for name in ("rows.jsonl", "rows.csv"))


def _start(folder: Path) -> str:
    return str(read_environment(folder).get("started", ""))


def _read_mapping(path: Path, parse: Callable[[str], Any]) -> dict[str, Any]:
    """What a file holds; empty where there is none, or where it was cut off."""
    if not path.exists():
        return {}
    try:
        found = parse(read_text(path))
    except FileError:
        raise
    except Exception:  # beside its own errors, YAML raises what dates and numbers do
        return {}
    return found if isinstance(found, dict) else {}
