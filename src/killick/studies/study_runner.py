"""Runs a study from its plan to its report. Read `run_study` top to bottom."""

import json
import pkgutil
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from killick.errors import KillickError
from killick.experiments.execution import Execution
from killick.experiments.experiment import check_jobs
from killick.experiments.jobs import Job, make_jobs
from killick.results.csv_text import to_csv
from killick.results.rows import Row
from killick.results.run_folder import Run, read_run
from killick.runtime.atomic_files import write_atomic
from killick.runtime.progress import choose_display
from killick.studies.findings import Findings, Results, make_results
from killick.studies.study import Plan

if TYPE_CHECKING:
    from killick.experiments.scheduler import Failure
    from killick.report.sections import Section

ROWS, ABOUT = "study.csv", "study.json"
_ABOUT = ("size", "recipe", "settings", "seeds", "evaluation", "models")
_PROPOSED = (
    "The paper's “proposed” is masked-label here: its text masks towards the uniform distribution,"
    " its released code towards the label."
)


@dataclass(frozen=True)
class StudyRun:
    """The outcome of a study.

    Attributes:
        report: The HTML page; None if no job is finished.
        findings: What it shows; None likewise.
        failed: The jobs that failed, with title and problem.
        interrupted: Whether it was interrupted; the same call resumes it.
    """

    report: Path | None
    findings: Findings | None
    failed: "list[Failure]" = field(default_factory=list)
    interrupted: bool = False


def plan_jobs(plan: Plan, output: Path) -> list[Job]:
    """The jobs of a study, checked as far as possible before anything is trained."""
    study = plan.study
    jobs = make_jobs(
        plan.recipe,
        plan.settings,
        plan.arms,
        plan.seeds,
        output,
        plan.evaluation,
        measure=study.measure,
        options=plan.measure_options,
    )
    if plan.models:  # compared image by image, whatever seeds they were trained with
        jobs = [replace(job, seed=0) for job in jobs]
    check_jobs(jobs)
    if study.check is not None:
        study.check(plan.options, jobs)
    return jobs


def run_study(plan: Plan, output: Path, **execution: Any) -> StudyRun:
    """Train, evaluate and measure the jobs of a study, and write its report.

    Finished jobs are kept and interrupted ones resumed, as in `compare`, whose arguments about
    execution these are. Beside `report.html` there are `study.csv`, every number by arm and seed,
    and `study.json`, the plan.
    """
    # What plans alone need imports no torch, which takes seconds.
    from killick.experiments.scheduler import Failure, run_jobs
    from killick.report.writer import write_report

    how = Execution(**execution)
    how.check(output)
    planned = plan_jobs(plan, output)
    outcome = run_jobs(planned, output, how)
    failed, interrupted = list(outcome.failed), outcome.interrupted
    finished = outcome.finished
    if not finished:
        return StudyRun(None, None, failed, interrupted)
    folders = [job.folder for job in finished]
    if plan.study.finish is not None and not interrupted:
        try:
            finish = pkgutil.resolve_name(plan.study.finish)
            show = choose_display(None, how.quiet)
            folders += finish(plan, finished, output, device=how.device, show=show)
        except KeyboardInterrupt:
            interrupted = True
        except KillickError as problem:
            failed.append(Failure(plan.study.name, str(problem)))
    runs = [_planned_rows(read_run(folder), plan.evaluation) for folder in folders]
    results = make_results(plan, runs)
    findings = plan.study.findings(results)
    report = write_report(
        runs,
        output,
        title=f"{plan.study.title} ({plan.study.item})" if plan.study.item else plan.study.title,
        command=shlex.join(how.command) or None,
        failed=replace(outcome, failed=failed).missing,
        before=[_section(plan, findings)],
        lead=findings.headline,
        data=results.report,
    )
    write_atomic(output / ROWS, _rows(results))
    about = {
        "study": plan.study.name,
        "item": plan.study.item,
        "headline": findings.headline,
        **{name: getattr(plan, name) for name in _ABOUT},
        "options": asdict(plan.options),
    }
    write_atomic(output / ABOUT, json.dumps(about, indent=2) + "\n")
    return StudyRun(report, findings, failed, interrupted)


def _planned_rows(run: Run, evaluation: Mapping[str, Any]) -> Run:
    """A run with the rows of the planned evaluation; its folder may hold others."""
    limit = str(evaluation.get("limit") or "")
    names, severities = evaluation.get("corruptions"), evaluation.get("severities")

    def is_planned(row: Row) -> bool:
        if row["suite"] not in ("corruptions", "cbar") or row["mean_of"]:
            return True
        named = names is None or row["corruption"] in names
        return named and (severities is None or row["severity"] in severities)

    rows = [row for row in run.rows if str(row["limit"]) == limit and is_planned(row)]
    return replace(run, rows=rows)


def _section(plan: Plan, findings: Findings) -> "Section":
    """The study's own part of the report."""
    from killick.report.sections import Content, Section

    study, missing = plan.study, plan.missing_sets
    notes = (*study.notes, *([_PROPOSED] if study.item else []))
    notes += (f"{missing[0].upper()}{missing[1:]}.",) if missing else ()
    title = f"{study.item}, here and in the paper" if study.item else "Beyond the paper"
    return Section("study", title, 0, lambda _: Content(findings.figures, findings.tables, notes))


def _rows(results: Results) -> str:
    """Every number by arm and seed: report measures first, then what the study measured."""
    factors = [name for own in results.factors.values() for name in own]
    lines: list[Mapping[str, Any]] = [
        {**results.factors.get(arm, {}), "arm": arm, "seed": seed, "metric": key, "value": value}
        for arm, numbers in results.report.table.items()
        for key, number in numbers.items()
        for seed, value in number.values.items()
    ]
    lines += results.measured
    names = dict.fromkeys(["arm", "seed", *factors, *(name for line in lines for name in line)])
    columns = [*(name for name in names if name not in ("metric", "value")), "metric", "value"]
    return to_csv(columns, ([line.get(column) for column in columns] for line in lines))
