"""A study, from its plan to its page. Read `run_study` top to bottom."""

import csv
import importlib
import io
import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from killick.errors import KillickError
from killick.experiments.experiment import check_data, check_jobs, check_places
from killick.experiments.job_runner import rename_job
from killick.experiments.jobs import Job, make_jobs
from killick.experiments.scheduler import check_work, work
from killick.report.formatting import capitalise, count_words
from killick.report.sections import Content, Section
from killick.report.tables import TextTable
from killick.report.writer import write_report
from killick.results.rows import Row
from killick.results.run_folder import Run, read_run
from killick.runtime.atomic_files import write_atomic
from killick.runtime.progress import choose_display
from killick.studies.equality import Equality, compare_with_paper, is_about_the_paper
from killick.studies.results import Results, make_results
from killick.studies.shown import Shown
from killick.studies.study import Plan

ROWS, ABOUT = "study.csv", "study.json"
_SEE = "the size paper has"


@dataclass(frozen=True)
class Ran:
    """What became of a study.

    Attributes:
        report: The page; None if no cell is finished.
        shown: What it shows; None likewise.
        equality: What was as in the paper; None for what goes beyond it.
        failed: A line for each cell that failed.
        interrupted: Whether somebody interrupted it; the same call goes on.
    """

    report: Path | None
    shown: Shown | None
    equality: Equality | None
    failed: list[str] = field(default_factory=list)
    interrupted: bool = False


def plan_cells(plan: Plan, output: Path) -> list[Job]:
    """The cells of a study, checked as far as that goes before anything is trained."""
    study = plan.study
    cells = make_jobs(
        plan.recipe,
        plan.settings,
        plan.arms,
        plan.seeds,
        output,
        plan.evaluation,
        measure=study.measure,
        options=plan.measured_with,
    )
    check_jobs(cells)
    if study.needs is not None:
        check_places(study.needs(plan.options))
    if study.check is not None:
        study.check(plan.options, [phase.recipe for cell in cells for phase in cell.phases])
    return cells


def run_study(
    plan: Plan,
    output: Path,
    *,
    jobs: int | None = None,
    engine: str = "local",
    cpus: int | None = None,
    gpus: float | None = None,
    address: str | None = None,
    device: str = "auto",
    command: Sequence[str] = (),
    quiet: bool = False,
) -> Ran:
    """Train, evaluate and measure the cells of a study, and write a page about them.

    A finished cell is never run again and an interrupted one goes on, as in `compare`, whose
    arguments these are. Beside `report.html` there are `study.csv`, every number by arm and seed,
    and `study.json`, what was asked for.
    """
    check_work(output, jobs, engine, cpus, gpus, address)
    cells = plan_cells(plan, output)
    check_data([cell for cell in cells if not cell.finished])
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
    failed, interrupted = list(worked.failed), worked.interrupted
    there = [cell for cell in cells if cell.finished]
    equality = compare_with_paper(plan) if is_about_the_paper(plan.study) else None
    if not there:
        return Ran(None, None, equality, failed, interrupted)
    for cell in there:
        rename_job(cell)
    folders = [cell.folder for cell in there]
    if plan.study.finish is not None and not interrupted:
        try:
            folders += _finish(plan, there, output, device, quiet)
        except KeyboardInterrupt:
            interrupted = True
        except KillickError as problem:
            failed.append(f"{plan.study.name}: {problem}")
    runs = [_as_asked(read_run(folder), plan.evaluation) for folder in folders]
    results = make_results(plan, runs)
    shown = plan.study.show(results)
    report = write_report(
        runs,
        output,
        title=f"{plan.study.title} ({plan.study.item})" if plan.study.item else plan.study.title,
        command=shlex.join(command) or None,
        failed=[*failed, *worked.unfinished],
        before=[_section(plan, shown, equality, results)],
        lead=shown.says,
        data=results.scene,
    )
    write_atomic(output / ROWS, _rows(results))
    write_atomic(output / ABOUT, json.dumps(_about(plan, shown, equality), indent=2) + "\n")
    return Ran(report, shown, equality, failed, interrupted)


def _as_asked(run: Run, asked: Mapping[str, Any]) -> Run:
    """A run with the rows of the evaluation that is asked for; its folder may hold others."""
    limit = str(asked.get("limit") or "")
    files = {"corruptions": asked.get("corruption_files"), "cbar": asked.get("cbar_files")}
    names, severities = asked.get("corruptions"), asked.get("severities")

    def is_asked(row: Row) -> bool:
        if str(row["limit"]) != limit:
            return False
        if row["suite"] not in files or str(row["corruption"]).startswith("mean of"):
            return True
        if row["source"] and (row["source"] == "files") != bool(files[row["suite"]]):
            return False
        named = names is None or row["corruption"] in names
        return named and (severities is None or row["severity"] in severities)

    return replace(run, rows=[row for row in run.rows if is_asked(row)])


def _finish(plan: Plan, cells: Sequence[Job], output: Path, device: str, quiet: bool) -> list[Path]:
    assert plan.study.finish is not None
    module, _, name = plan.study.finish.partition(":")
    finish = getattr(importlib.import_module(module), name)
    found: list[Path] = finish(plan, cells, output, device=device, show=choose_display(None, quiet))
    return found


def _section(plan: Plan, shown: Shown, equality: Equality | None, results: Results) -> Section:
    """The study's own part of the page."""
    study = plan.study
    tables = list(shown.tables)
    notes = [
        f"{capitalise(check.verdict)}: {check.what} ({check.found})." for check in shown.checks
    ]
    notes += shown.notes
    notes.append(f"{_tell_seeds(results)}; ± is the standard deviation over them.")
    if study.item:
        notes.append(
            "What the paper calls proposed stands here as masked-label. Its text masks towards the"
            " uniform distribution; its released code, and by all signs its tables, towards the"
            " label."
        )
    notes += [f"The paper leaves open ({_SEE} what was taken): {line}" for line in study.unsaid]
    if equality is not None:
        tables.append(make_equality_table(equality))
        notes.append(f"As in the paper's settings: {', '.join(equality.equal) or 'nothing'}.")
    title = f"{study.item}, here and in the paper" if study.item else "Beyond the paper"
    content = Content(shown.figures, tuple(tables), tuple(notes))
    return Section("study", title, 0, lambda _: content)


def _tell_seeds(results: Results) -> str:
    """How many seeds the arms have, which differ where not all is finished."""
    counts = sorted({len(arm.seeds) for arm in results.scene.comparison.arms})
    if len(counts) > 1:
        return f"Each arm has {counts[0]} to {counts[-1]} seeds here"
    return f"Each arm was trained with {count_words(counts[0], 'seed')}"


def make_equality_table(equality: Equality) -> TextTable:
    """What was not as in the paper."""
    return TextTable(
        "study-settings",
        "What was not as in the paper",
        ("setting", "here", "in the paper's recipe"),
        equality.different,
        "The paper's recipe is what --size paper runs; where text and released code differ, the"
        " recipe says which was taken.",
    )


def _rows(results: Results) -> str:
    """Every number by arm and seed: measures first, then what was measured beside."""
    factors = list(dict.fromkeys(name for own in results.factors.values() for name in own))
    lines: list[Mapping[str, Any]] = [
        {**results.factors.get(arm, {}), "arm": arm, "seed": seed, "metric": key, "value": value}
        for arm, numbers in results.scene.table.items()
        for key, number in numbers.items()
        for seed, value in number.values.items()
    ]
    lines += results.measured
    first = ["arm", "seed", *factors]
    others = dict.fromkeys(
        name for line in lines for name in line if name not in (*first, "metric", "value")
    )
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, [*first, *others, "metric", "value"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return text.getvalue()


def _about(plan: Plan, shown: Shown, equality: Equality | None) -> dict[str, Any]:
    return {
        "study": plan.study.name,
        "item": plan.study.item,
        "size": plan.size,
        "recipe": plan.recipe,
        "settings": dict(plan.settings),
        "options": asdict(plan.options),
        "seeds": list(plan.seeds),
        "evaluation": dict(plan.evaluation),
        "says": shown.says,
        "checks": [asdict(check) for check in shown.checks],
        "not as in the paper": [] if equality is None else [list(e) for e in equality.different],
    }
