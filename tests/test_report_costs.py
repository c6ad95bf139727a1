"""Costs in the report: passes from rows, measured step times, and gains against them."""

import csv
import io
import json

import pytest
from report_grid import make_grid
from report_runs import LABEL, STANDARD

from killick.report.figures import drawing
from killick.report.report_data import make_report_data
from killick.report.sections import SECTIONS, Content
from killick.report.statistics import between
from killick.results.rows import read_rows, write_rows
from killick.results.run_folder import find_runs

ARMS = {"sam": STANDARD, "standard": STANDARD, "masked-label": LABEL, "tuned": LABEL}
SPEEDS = {"standard": (900, 1000, 1100, 5), "sam": (500, 400, 600, 9000)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Four arms: a step of one costs two, one has no log, one is tuned for a quarter more epochs."""
    folder = make_grid(tmp_path_factory.mktemp("costs"), ARMS)
    for run in find_runs([folder]):
        arm = run.job["arm"]
        rows = read_rows(run.folder)
        for row in rows:
            row["training_cost"] = {"sam": 2.0, "tuned": 1 + 12 / 3}.get(arm, 1.0)
            row["epochs"] = 3 if arm == "tuned" else 12
            row["start"] = "standard" if arm == "tuned" else ""
            row["components"] = '{"sam": {"rho": 0.05}}' if arm == "sam" else ""
            row["inference_cost"] = 5.0 if row["inference"] == "marginal" else 1.0
        write_rows(run.folder, rows)
        lines = [
            {"kind": "train", "step": n, "epoch": n, "loss": 1.0, "images_per_second": speed}
            for n, speed in enumerate(SPEEDS.get(arm, ()))
        ]
        (run.folder / "metrics.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))
    return folder


def made(folder) -> tuple[Content, dict[str, dict[str, str]]]:
    data = make_report_data(find_runs([folder]))
    with drawing():
        content = SECTIONS.find("costs").make(data)
    lines = csv.DictReader(io.StringIO(content.tables[0].csv)) if content.tables else []
    return content, {line["arm"]: line for line in lines}


def test_costs_are_those_of_rows_and_times_are_relative_to_the_baseline(folder):
    _, lines = made(folder)
    assert {arm: line["training"] for arm, line in lines.items()} == {
        "standard": "1",
        "sam": "2",
        "masked-label": "1",
        "tuned": "1.25",
    }
    assert lines["masked-label"]["mean over references"] == "5"
    # The medians are 950 and 550 images per second.
    assert [lines[arm]["step time"] for arm in ARMS] == [f"{950 / 550:.2f}", "1.00", "–", "–"]


def test_the_baseline_is_the_arm_without_regularizers(folder):
    assert make_report_data(find_runs([folder])).comparison.baseline.name == "standard"


def test_gains_are_differences_to_the_baseline(folder):
    content, _ = made(folder)
    (figure,) = content.figures
    assert [panel.name for panel in figure.panels] == [
        "costs-training-corrupted-top1",
        "costs-training-corrupted-smooth-ece",
    ]
    comparison = make_report_data(find_runs([folder])).comparison
    for metric, factor in (("corrupted_top1", 100), ("corrupted_smooth_ece", 1)):
        gap = between(comparison, "sam", "standard", metric)
        (record,) = [each for each in figure.records if each[0] == metric and each[2] == "sam"]
        expected = [factor * value for value in (gap.value, gap.low, gap.high)]
        assert list(record[3:]) == pytest.approx([2.0, *expected])


def test_times_on_different_devices_are_not_compared(folder):
    for run in find_runs([folder]):
        device = "cpu" if run.job["arm"] == "sam" else "another"
        (run.folder / "environment.json").write_text(json.dumps({"device": device}))
    assert made(folder)[1]["sam"]["step time"] == "–"


def test_arms_that_cost_the_same_have_no_such_section(report_data):
    assert SECTIONS.find("costs").make(report_data) == Content()
