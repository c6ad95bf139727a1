import statistics
from pathlib import Path

import pytest

from killick.experiments.job_runner import run_job
from killick.results.rows import read_rows
from killick.results.run_folder import read_run
from killick.studies.findings import make_results
from killick.studies.paper_tables import shifted_errors
from killick.studies.safety import STUDY
from killick.studies.study import make_plan
from killick.studies.study_runner import plan_jobs

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("few_shapes")]

NAMES = ["standard", "anchored", "masked-label"]


def finish(plan, output: Path):
    """All jobs, in this process: what is shown, the results, and the rows of each arm."""
    jobs = plan_jobs(plan, output)
    for each in jobs:
        assert run_job(each, threads=1, device="cpu")["status"] == "finished"
    results = make_results(plan, [read_run(each.folder) for each in jobs])
    return STUDY.findings(results), results, {each.arm: read_rows(each.folder) for each in jobs}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("smoke")


@pytest.fixture(scope="module")
def smoke(folder):
    return finish(make_plan(STUDY, "smoke"), folder)


@pytest.fixture(scope="module")
def shifted(tmp_path_factory, image_folder):
    """With the paper's OOD sets by name, and two shifted ones."""
    evaluation = {
        "suites": ("clean", "corruptions", "calibration", "ood", "shift"),
        "ood": {name: f"images:{image_folder}" for name in ("iSUN", "Textures", "Places365")},
        "shift": {"again": "shapes", "more": "shapes"},
        "corruptions": ("fog",),
        "severities": (3,),
        "limit": 40,
    }
    plan = make_plan(STUDY, "smoke", options={"protocols": ["standard"]}, evaluation=evaluation)
    return finish(plan, tmp_path_factory.mktemp("shifted"))


def values(rows, suite: str, metric: str, **known) -> list[float]:
    return [
        row["value"]
        for row in rows
        if (row["suite"], row["metric"], row["inference"]) == (suite, metric, "single")
        and not row["scaling"]
        and all(row[name] == value for name, value in known.items())
    ]


def line_of(table, name: str) -> dict[str, str]:
    (row,) = [row for row in table.rows if row[0] == name]
    return dict(zip(table.columns, row, strict=True))


@pytest.mark.parametrize("arm", NAMES)
def test_auroc_is_that_of_the_energy_by_set_and_its_mean_the_plain_one(smoke, arm):
    shown, _, rows = smoke
    line = line_of(shown.tables[0], arm)
    areas = []
    for name in ("noise", "blobs", "scrambled"):
        (area,) = values(rows[arm], "ood", "auroc", set=name, score="energy")
        assert line[f"AUROC, %: {name} (synthetic)"] == f"{100 * area:.1f}"
        assert (f"{arm} on {name} (synthetic)" in shown.tables[0].note) == (area < 0.5)
        areas.append(area)
    assert line["AUROC, %: synthetic mean"] == f"{100 * statistics.fmean(areas):.1f}"


@pytest.mark.parametrize("arm", NAMES)
def test_calibration_is_the_mean_and_spread_over_all_corrupted_sets(smoke, arm):
    shown, results, rows = smoke
    found = [
        value
        for suite, corruption in (("corruptions", "fog"), ("cbar", "sparkles"))
        for severity in (3, 5)
        for value in values(
            rows[arm], suite, "smooth_ece", corruption=corruption, severity=severity
        )
    ]
    assert len(found) == 4
    assert sorted(shifted_errors(results, arm)[0]) == pytest.approx(sorted(found))
    line = line_of(shown.tables[0], arm)
    assert line["smooth ECE: mean over sets"] == f"{statistics.fmean(found):.3f}"
    spread = statistics.stdev(found)
    assert line["smooth ECE: deviation over sets"] == f"{spread:.3f}"


def test_shifted_sets_count_like_corrupted_ones(shifted):
    shown, results, rows = shifted
    found = [*values(rows["standard"], "shift", "smooth_ece")]
    assert len(found) == 2
    found += values(rows["standard"], "corruptions", "smooth_ece", corruption="fog", severity=3)
    assert sorted(shifted_errors(results, "standard")[0]) == pytest.approx(sorted(found))
    line = line_of(shown.tables[0], "standard")
    assert line["smooth ECE: mean over sets"] == f"{statistics.fmean(found):.3f}"
    areas = [
        value
        for name in ("iSUN", "Textures", "Places365")
        for value in values(rows["standard"], "ood", "auroc", set=name, score="energy")
    ]
    assert line["AUROC, %: Vision OOD"] == f"{100 * statistics.fmean(areas):.1f}"
    assert line["AUROC, %: mean"] == line["AUROC, %: Vision OOD"]  # without synthetic sets


def test_what_was_not_evaluated_is_left_out_and_not_an_error(tmp_path):
    evaluation = {"suites": ("clean",), "limit": 30, "corruptions": None, "severities": (3,)}
    plan = make_plan(STUDY, "smoke", options={"protocols": ["standard"]}, evaluation=evaluation)
    shown, *_ = finish(plan, tmp_path)
    line = line_of(shown.tables[0], "standard")
    assert line["smooth ECE: mean over sets"] == "–"
    assert shown.figures[0].panels == ()
