"""Small comparisons, shared by the tests of the grid."""

from dataclasses import asdict
from pathlib import Path

import yaml
from runs import small

from killick.experiments.arms import parse_arms
from killick.experiments.job_runner import run_job
from killick.experiments.jobs import Job, make_jobs
from killick.results.rows import Row, read_rows

DEVICE = "cpu"  # of cells that run in this process
# Seconds: one corruption, few pictures, two references.
SHOWN = {
    "suites": ["clean", "corruptions", "calibration"],
    "corruptions": ["fog"],
    "severities": [3],
    "references": 2,
    "workers": 0,
}


def write_recipe(pictures: Path, folder: Path, **changes) -> Path:
    """A recipe of seconds, as a file."""
    file = folder / "small.yaml"
    file.write_text(yaml.safe_dump(asdict(small(pictures, data__workers=0, **changes))))
    return file


def cells_of(recipe: Path, output: Path, *arms: str, seeds=(0,), shown=SHOWN, **settings):
    """The cells of a comparison."""
    return make_jobs(recipe, settings, parse_arms(arms), seeds, output, shown)


def results_of(cells: list[Job]) -> dict[str, list[Row]]:
    """The rows of each cell, without what may differ between two runs of the same cell."""
    return {
        cell.title: sorted(read_rows(cell.folder), key=lambda row: sorted(map(str, row.items())))
        for cell in cells
    }


class HereJobs:
    """In the place of `LocalJobs`: runs cells in this process, which saves starting others."""

    def __init__(self, cells: list[Job], **options) -> None:
        self._waiting = list(cells)
        self._command = options["command"]

    def collect(self, seconds: float):
        """The next cell."""
        cell = self._waiting.pop(0)
        return [(cell, run_job(cell, device=DEVICE, command=self._command))]

    def stop(self) -> None:
        """Nothing runs meanwhile."""

    def close(self) -> None:
        """Nothing is left."""
