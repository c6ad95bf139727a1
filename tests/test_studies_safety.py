import statistics
from pathlib import Path

import pytest

from killick.experiments.job_runner import run_job
from killick.results.rows import read_rows
from killick.results.run_folder import read_run
from killick.studies.results import make_results
from killick.studies.running import plan_cells, run_study
from killick.studies.safety import PAPER, STUDY, tabulate_paper
from killick.studies.shifted import describe_sets, errors_of, tabulate_safety
from killick.studies.study import make_plan

pytestmark = pytest.mark.usefixtures("here", "few_shapes")

NAMES = ["standard", "anchored", "masked-label"]


def finish(plan, output: Path):
    """All cells, in this process: what is shown, the results, and the rows of each arm."""
    cells = plan_cells(plan, output)
    for each in cells:
        assert run_job(each, threads=1, device="cpu")["status"] == "finished"
    results = make_results(plan, [read_run(each.folder) for each in cells])
    return STUDY.show(results), results, {each.arm: read_rows(each.folder) for each in cells}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("smoke")


@pytest.fixture(scope="module")
def smoke(folder):
    return finish(make_plan(STUDY, "smoke"), folder)


@pytest.fixture(scope="module")
def shifted(tmp_path_factory, pictures):
    """With the paper's foreign sets by name, and two shifted ones."""
    evaluation = {
        "suites": ("clean", "corruptions", "calibration", "ood", "shift"),
        "ood": {name: f"pictures:{pictures}" for name in ("iSUN", "Textures", "Places365")},
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
        assert line[f"AUROC: {name}"] == f"{100 * area:.1f}"
        areas.append(area)
    assert line["AUROC: mean of 3"] == f"{100 * statistics.fmean(areas):.1f}"
    assert "AUROC: Vision OOD" not in line


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
    assert sorted(errors_of(results, arm)[0].values()) == pytest.approx(sorted(found))
    line = line_of(shown.tables[0], arm)
    assert line["smooth ECE: mean over sets"] == f"{statistics.fmean(found):.3f}"
    spread = statistics.stdev(found)
    assert line["smooth ECE: standard deviation over sets"] == f"{spread:.3f}"


def test_over_which_sets_the_mean_runs_is_said(smoke, shifted):
    assert describe_sets(smoke[1]) == (
        "4 sets: 1 common corruption at severities 3, 5; 1 C-bar corruption at severities 3, 5"
    )
    assert describe_sets(shifted[1]) == (
        "3 sets: 1 common corruption at severity 3; again and more"
    )
    assert describe_sets(smoke[1]) in smoke[0].tables[0].says


def test_shifted_sets_count_like_corrupted_ones(shifted):
    shown, results, rows = shifted
    errors = errors_of(results, "standard")[0]
    assert errors.keys() == {("corruptions", "fog", 3), ("shift", "again", 0), ("shift", "more", 0)}
    (again,) = values(rows["standard"], "shift", "smooth_ece", set="again")
    assert errors["shift", "again", 0] == again
    line = line_of(shown.tables[0], "standard")
    mean = statistics.fmean(errors.values())
    assert line["smooth ECE: mean over sets"] == f"{mean:.3f}"


def test_vision_ood_is_the_mean_of_the_paper_s_three_sets_alone(shifted):
    shown, _, rows = shifted
    line = line_of(shown.tables[0], "standard")
    three = [
        values(rows["standard"], "ood", "auroc", set=name, score="energy")[0]
        for name in ("iSUN", "Textures", "Places365")
    ]
    assert line["AUROC: Vision OOD"] == f"{100 * statistics.fmean(three):.1f}"
    assert "AUROC: mean of 6" in line
    assert line["mean − that of standard"] == "–"
    assert not any("do not compare" in note for note in shown.notes)


def test_the_page_shows_both_measures_and_says_who_is_better(smoke, folder):
    ran = run_study(make_plan(STUDY, "smoke"), folder, device="cpu", quiet=True)
    assert ran.failed == []
    assert "Are anchored networks safer?" in ran.report.read_text(encoding="utf-8")
    shown = ran.shown
    assert shown == smoke[0]
    (figure,) = shown.figures
    assert [panel.name for panel in figure.panels] == [
        "study-safety-auroc",
        "study-safety-corruptions",
        "study-safety-cbar",
    ]
    assert len([each for each in figure.records if each[0] == "AUROC of the energy"]) == 9
    assert len([each for each in figure.records if "C-bar" in each[0]]) == 9  # clean, 3 and 5
    assert "masked-label against standard" in shown.says
    assert any("do not compare" in note for note in shown.notes)


def test_what_was_not_evaluated_is_left_out_and_not_an_error(tmp_path):
    evaluation = {"suites": ("clean",), "limit": 30, "corruptions": None, "severities": (3,)}
    plan = make_plan(STUDY, "smoke", options={"protocols": ["standard"]}, evaluation=evaluation)
    shown, results, _ = finish(plan, tmp_path)
    line = line_of(tabulate_safety(results), "standard")
    assert line["smooth ECE: mean over sets"] == "–"
    assert shown.figures[0].panels == ()
    assert describe_sets(results) == "no sets"


def test_the_paper_s_vision_ood_is_the_mean_of_its_three_sets():
    # As its table 3 has it, of which table 7 has the parts.
    published = {
        "SwinV2-T": (76.54, 77.65),
        "SwinV2-S": (77.13, 79.56),
        "ViT-B/16": (77.29, 76.88),
        "SwinV2-B": (75.89, 78.91),
    }
    table = tabulate_paper()
    assert len(table.rows) == 12 == len(PAPER)
    for network, (standard, proposed) in published.items():
        for protocol, value in (("standard", standard), ("masked-label", proposed)):
            line = line_of(table, f"{network}, {protocol}")
            assert float(line["AUROC: Vision OOD"]) == pytest.approx(value, abs=0.011)
            assert line["AUROC: NINCO"] != "–"
        assert line_of(table, f"{network}, anchored")["AUROC: NINCO"] == "–"
