"""A comparison, from arms and seeds to a report. Read `compare` top to bottom."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from killick.data.sources import load_sets
from killick.errors import DataError, OptionError, check_option
from killick.evaluation.plan import Choices
from killick.experiments.arms import Arm, parse_arms
from killick.experiments.job_runner import rename_job
from killick.experiments.jobs import Job, make_jobs
from killick.experiments.scheduler import check_work, work
from killick.results.run_folder import read_run

RECIPE = "shapes-compare"


@dataclass(frozen=True)
class Compared:
    """What became of a comparison.

    Attributes:
        report: The page; None if no cell is finished.
        cells: All of them.
        failed: A line for each cell that failed.
        interrupted: Whether somebody interrupted it; the same call goes on.
    """

    report: Path | None
    cells: list[Job]
    failed: list[str] = field(default_factory=list)
    interrupted: bool = False


def compare(
    recipe: str | Path = RECIPE,
    *,
    settings: Mapping[str, Any] | None = None,
    arms: Sequence[str | Arm] = (),
    seeds: Sequence[int] = (0, 1),
    output: str | Path = "comparison",
    evaluation: Mapping[str, Any] | None = None,
    baseline: str | None = None,
    jobs: int | None = None,
    engine: str = "local",
    cpus: int | None = None,
    gpus: float | None = None,
    address: str | None = None,
    device: str = "auto",
    title: str | None = None,
    command: Sequence[str] = (),
    quiet: bool = False,
) -> Compared:
    """Train and evaluate arms with several seeds, and write a report about them.

    Each arm and seed is a cell with a run folder of its own in `output`. A finished one is never
    run again, an interrupted one goes on, and one that fails is reported while the others go on.

    Args:
        recipe: That all arms share, by name or file.
        settings: That all arms share too, by dotted name.
        arms: Texts, see `parse_arm`, or arms; by default all that are known.
        seeds: Of each arm.
        output: A folder.
        evaluation: Options of `killick.evaluate`.
        baseline: The arm that others are compared with; by default the standard one.
        jobs: Cells that run at once on this machine; by default one for each core, or for each GPU.
        engine: "local", or "ray": on a Ray cluster, over a folder that all its machines share.
        cpus: With Ray: cores for each cell; by default 1.
        gpus: With Ray: GPUs for each cell, also a share of one; by default 1 where there are some.
        address: With Ray: of the cluster; by default the one that is found, else this machine.
        device: "auto", "cpu", "cuda" or "cuda:1".
        title: Of the report.
        command: That a reader can repeat.
        quiet: Show nothing.
    """
    output = Path(output)
    check_work(output, jobs, engine, cpus, gpus, address)
    chosen = parse_arms(arms)
    check_baseline(baseline, chosen)
    cells = make_jobs(recipe, settings or {}, chosen, seeds, output, evaluation or {})
    check_jobs(cells)
    worked = work(
        cells,
        output,
        jobs=jobs,
        engine=engine,
        cpus=cpus,
        gpus=gpus,
        address=address,
        device=device,
        command=command,
        quiet=quiet,
    )
    there = [cell for cell in cells if cell.finished]
    if not there:
        return Compared(None, cells, worked.failed, worked.interrupted)
    from killick.report.writer import write_report  # draws: cells' own processes need not

    for cell in there:
        rename_job(cell)
    report = write_report(
        [read_run(cell.folder) for cell in there],
        output,
        baseline=baseline,
        title=title,
        command=shlex.join(command) or None,
        failed=[*worked.failed, *worked.unfinished],
    )
    return Compared(report, cells, worked.failed, worked.interrupted)


def check_baseline(baseline: str | None, arms: Sequence[Arm]) -> None:
    """Refuse a baseline that is none of the arms."""
    if baseline is not None:
        check_option("the baseline", baseline, [arm.name for arm in arms])


def check_jobs(cells: Sequence[Job]) -> None:
    """Refuse what would only be found after training: unknown names, data that are not there."""
    asked = cells[0].evaluation
    references = asked.get("references", 1)
    if type(references) is not int or references < 1:
        raise OptionError(f"expected at least 1 reference, found {references!r}.")
    names = {each.name for each in fields(Choices)}
    values = {name: value for name, value in asked.items() if name in names}
    listed: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in values.items()
    }
    Choices(**listed).check()
    used = {phase.recipe.data.name for cell in cells for phase in cell.phases}
    used |= {*dict(asked.get("ood", {})).values(), *dict(asked.get("shift", {})).values()}
    check_places(sorted(used))


def check_data(cells: Sequence[Job]) -> None:
    """Refuse folders and CIFAR that lack what every cell needs; cells tell of other data."""
    recipes = [phase.recipe.data for cell in cells for phase in cell.phases]
    for name, root in dict.fromkeys(
        (data.name, data.root) for data in recipes if not data.download
    ):
        if name.partition(":")[0] in ("pack", "hf", "shapes", "digits"):
            continue
        sets = load_sets(name, root=root)
        for part, word in ((sets.train, "train"), (sets.test, "test")):
            if part is None:
                raise DataError(f"expected pictures to {word} on in {name}, found none.")
            if part.classes < 2:
                raise DataError(f"expected at least 2 classes in {name}, found {part.classes}.")


def check_places(names: Sequence[str]) -> None:
    """Refuse data, by name, that have a path where there is nothing."""
    for data in names:
        kind, _, place = data.partition(":")
        path = Path(place.partition("#")[0])
        if kind in ("imagefolder", "imagenet", "pictures", "pack") and not path.exists():
            raise DataError(f"expected data at {path} for {data}, found nothing there.")
